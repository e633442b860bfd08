"""The speed of the library on this machine, compared with its peak speed and with a peer.

`suite` runs the cases of `training`, `sampling` and `pieces`. Each case times several
implementations of one workload. `bounds` counts the operations and bytes of each.
"""
