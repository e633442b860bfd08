"""Benchmarks of the library, relative to the peak speed of the machine and to flow_matching.

`suite` runs the cases of `training`, `sampling` and `pieces`. Each case times several
implementations of one workload. `bounds` counts the operations and bytes of each implementation.
"""
