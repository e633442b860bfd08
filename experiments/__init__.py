"""The paper's experiments and benchmarks, as commands of `python -m experiments`."""
