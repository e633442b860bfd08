"""Tanimoto similarities of binary fingerprints, |a and b| / |a or b|.

Fingerprints are rows of 64-bit words [n, W]. All pairs of rows of two sets are compared without
storing an [n, m] matrix.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba.core.types import int64
from numba.extending import intrinsic
from numpy.typing import NDArray

from cwdfm.ops.dispatch import numba_jit

_ROWS = 64  # rows per task
_BLOCK = 1024  # rows of the other set compared at a time: 128 KiB, which stays cached


def pack_bits(bits_NK: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Pack zeros and ones [n, K] into words [n, K / 64]."""
    return np.packbits(bits_NK, axis=1).view(np.uint64)


def similarities(
    a_NW: NDArray[np.uint64], b_MW: NDArray[np.uint64], threads: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Largest, mean and root mean square similarity of each row of `a` to the rows of `b`."""
    out_N3 = np.zeros((len(a_NW), 3))
    a_NW, b_MW = np.ascontiguousarray(a_NW), np.ascontiguousarray(b_MW)
    ones_N, ones_M = (np.zeros(len(x), np.int64) for x in (a_NW, b_MW))
    _add_ones(a_NW, ones_N)
    _add_ones(b_MW, ones_M)

    def compare(start: int) -> None:  # numba releases the GIL
        rows = slice(start, start + _ROWS)
        _compare(a_NW[rows], ones_N[rows], b_MW, ones_M, out_N3[rows])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compare, range(0, len(a_NW), _ROWS)))
    largest_N, sum_N, squares_N = out_N3.T
    return largest_N, sum_N / len(b_MW), np.sqrt(squares_N / len(b_MW))


def _count_ones(_: Any, word: Any) -> Any:
    """Population count of a word. numba does not expose the CPU instruction for it."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return int64(word), build  # not unsigned: numba adds int64 and uint64 as floats


_popcount: Any = intrinsic(_count_ones)


@numba_jit
def _add_ones(a_NW: np.ndarray, ones_N: np.ndarray) -> None:
    """Add the number of ones in each row to `ones_N`."""
    for i in range(len(a_NW)):
        for k in range(a_NW.shape[1]):
            ones_N[i] += _popcount(a_NW[i, k])


@numba_jit
def _compare(
    a_NW: np.ndarray, ones_N: np.ndarray, b_MW: np.ndarray, ones_M: np.ndarray, out_N3: np.ndarray
) -> None:
    """Add up the largest similarity, the sum and the sum of squares of each row."""
    for start in range(0, len(b_MW), _BLOCK):
        for i in range(len(a_NW)):
            largest, total, squares = out_N3[i, 0], out_N3[i, 1], out_N3[i, 2]
            for j in range(start, min(start + _BLOCK, len(b_MW))):
                both = 0
                for k in range(a_NW.shape[1]):
                    both += _popcount(a_NW[i, k] & b_MW[j, k])
                either = ones_N[i] + ones_M[j] - both
                similarity = both / either if either else 1.0
                largest = max(largest, similarity)
                total += similarity
                squares += similarity * similarity
            out_N3[i, 0] = largest
            out_N3[i, 1] = total
            out_N3[i, 2] = squares
