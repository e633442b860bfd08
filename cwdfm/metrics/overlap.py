"""Overlap of samples with the training text: the fraction of their n-grams that occur in it.

A model that copies its training text also has a low perplexity. The overlap of held-out text is the
baseline that common phrases cause.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, check_integer
from cwdfm.metrics.folds import Estimate, fold_slices, mean_estimate
from cwdfm.metrics.text import token_ids

NGRAMS = (4, 8, 16, 32)  # default values of n
_SEED = 0x5EED
_CHUNK = 1 << 22  # training tokens at a time


@dataclass(frozen=True)
class Overlap:
    """The fraction of a sample's n-grams that occur in the training text, by n.

    n-grams do not cross the ends of training windows. `tokens` is the number of training tokens
    searched.
    """

    shares: dict[int, Estimate]
    tokens: int

    def to_json(self) -> dict[str, Any]:
        shares = {str(n): share.to_json() for n, share in self.shares.items()}
        return {"shares": shares, "tokens": self.tokens}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        shares = {int(n): Estimate.from_json(share) for n, share in data["shares"].items()}
        return cls(shares, data["tokens"])


def ngram_overlap(
    samples: Tensor | NDArray[Any],
    training: Tensor | NDArray[Any],
    *,
    ngrams: tuple[int, ...] = NGRAMS,
    folds: int = 5,
) -> Overlap:
    """Compare samples [B, N] with training windows [M, N'], which may be a memory-mapped file.

    n-grams longer than a sample or a window are skipped. n-grams are compared by 64-bit hashes:
    with a million sample n-grams and a billion training tokens, the probability of any false match
    is 10^-4.
    """
    x_BN = token_ids(samples, "samples")
    if not isinstance(training, Tensor | np.ndarray) or training.ndim != 2 or not len(training):
        raise InputError(
            f"training must be token ids [windows, length] with at least one window, got "
            f"{getattr(training, 'shape', training)}"
        )
    for n in ngrams:
        check_integer("ngrams", n)
    slices = fold_slices(len(x_BN), folds)
    sizes = [n for n in ngrams if n <= min(x_BN.shape[1], training.shape[1])]
    hashes = dict(_hashes(x_BN, sizes))
    known = {n: np.unique(hashes[n]) for n in sizes}
    found = {n: np.zeros(len(known[n]), dtype=bool) for n in sizes}
    rows = max(1, _CHUNK // training.shape[1])
    for start in range(0, len(training), rows):
        part = training[start : start + rows]
        part = part.cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
        for n, other in _hashes(part, sizes):
            _mark(found[n], known[n], other.ravel())
    shares = {}
    for n in sizes:
        seen_BM = found[n][np.searchsorted(known[n], hashes[n])]
        shares[n] = mean_estimate(seen_BM.mean(1), slices)
    return Overlap(shares, int(training.shape[0] * training.shape[1]))


def _mark(found: NDArray[np.bool_], known: NDArray[np.uint64], other: NDArray[np.uint64]) -> None:
    """Set `found` for the hashes in `known`, which is sorted, that are also in `other`."""
    index = np.searchsorted(known, other)
    index[index == len(known)] = 0
    found[index[known[index] == other]] = True


def _hashes(x_MN: NDArray[Any], sizes: list[int]) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield each n and the hashes [M, N - n + 1] of the n-grams of the rows.

    A hash is a polynomial modulo 2^64. Those of n-grams follow from those of the prefixes of a row,
    h <- h b + value(token).
    """
    value_MN = _mix(x_MN.astype(np.uint64))
    prefix = np.zeros((value_MN.shape[0], value_MN.shape[1] + 1), dtype=np.uint64)
    for i in range(value_MN.shape[1]):
        prefix[:, i + 1] = prefix[:, i] * _BASE + value_MN[:, i]
    for n in sizes:
        power = np.uint64(pow(int(_BASE), n, 1 << 64))
        yield n, prefix[:, n:] - prefix[:, :-n] * power


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread token ids over 64 bits (the finalizer of SplitMix64, Steele et al. 2014)."""
    x = (x + np.uint64(_SEED)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_BASE = np.uint64(int(_mix(np.array([1], dtype=np.uint64))[0]) | 1)  # odd, so that it is invertible
