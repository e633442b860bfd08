"""Loops over arrays in plain Python, compiled by numba."""

from collections.abc import Callable
from importlib.util import find_spec

NUMBA = find_spec("numba") is not None


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function compiled by numba where that is installed, else as it is."""
    if not NUMBA:
        return function
    from numba import njit

    loop: Callable[..., None] = njit(cache=True, nogil=True)(function)
    return loop
