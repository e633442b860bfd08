"""The commands of `python -m experiments`."""

PROGRAM = "python -m experiments"  # in usage messages
