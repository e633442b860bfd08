"""Diversity of token sequences: entropy, distinct n-grams, repetition.

Perplexity alone rewards repetition, so these are reported beside it. All read the sampler's own
tokens, not an evaluator LM's.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, describe
from cwdfm.metrics.folds import Estimate, fold_slices, mean_estimate

LONGEST = 4  # n-grams up to this length; repetition counts these
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TextStatistics:
    """Per-sample statistics, averaged over samples; `corpus_distinct` is over all at once.

    - `entropy`: unigram entropy of a sample in bits, -sum_v (c_v / N) log2(c_v / N) with c_v the
      number of times token v occurs in it (the paper, after Gat et al. 2024);
    - `distinct[n-1]`: different n-grams of a sample over its N - n + 1 n-grams;
    - `corpus_distinct[n-1]`: the same with the n-grams of all samples together. It shows samples
      that repeat each other, and falls with their number;
    - `repetition`: the share of a sample's 4-grams that stood in it before, 1 - distinct-4;
      None for samples shorter than 4 tokens;
    - `longest_run`: how often the most repeated token stands in a row.
    """

    entropy: Estimate
    entropy_sample_std: float | None  # over samples, not over folds
    distinct: tuple[Estimate, ...]
    corpus_distinct: tuple[float, ...]
    repetition: Estimate | None
    longest_run: Estimate
    longest_run_of_all: int
    samples: int
    length: int

    def __str__(self) -> str:
        parts = [f"entropy {self.entropy} bits"]
        parts += [f"distinct-{n} {d.value:.3f}" for n, d in enumerate(self.distinct, start=1)]
        if self.repetition is not None:
            parts.append(f"repeated {LONGEST}-grams {self.repetition.value:.3f}")
        parts.append(f"longest run {self.longest_run.value:.3g}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """A plain dict of all of it."""
        return {
            "entropy": self.entropy.to_json(),
            "entropy_sample_std": self.entropy_sample_std,
            "distinct": {str(n): d.to_json() for n, d in enumerate(self.distinct, start=1)},
            "corpus_distinct": {str(n): d for n, d in enumerate(self.corpus_distinct, start=1)},
            "repetition": self.repetition and self.repetition.to_json(),
            "longest_run": self.longest_run.to_json(),
            "longest_run_of_all": self.longest_run_of_all,
            "samples": self.samples,
            "length": self.length,
        }


def text_statistics(tokens: Tensor | np.ndarray, *, folds: int = 5) -> TextStatistics:
    """Entropy, distinct n-grams and repetition of token ids [B, N]; the paper has 5 folds."""
    x_BN = _ids(tokens)
    slices = fold_slices(len(x_BN), folds)
    entropy_B, run_B = unigram_entropy(x_BN), _longest_run(x_BN)
    distinct, corpus = [], []
    for code_BM in _ngram_codes(x_BN):
        distinct.append(mean_estimate(_different(code_BM) / code_BM.shape[1], slices))
        corpus.append((int(code_BM.max()) + 1) / code_BM.size)
    repetition = None
    if len(distinct) == LONGEST:
        seen = distinct[-1]
        repetition = Estimate(1 - seen.value, tuple(1 - value for value in seen.folds))
    return TextStatistics(
        entropy=mean_estimate(entropy_B, slices),
        entropy_sample_std=float(entropy_B.std(ddof=1)) if len(x_BN) > 1 else None,
        distinct=tuple(distinct),
        corpus_distinct=tuple(corpus),
        repetition=repetition,
        longest_run=mean_estimate(run_B, slices),
        longest_run_of_all=int(run_B.max()),
        samples=len(x_BN),
        length=x_BN.shape[1],
    )


def unigram_entropy(x_BN: Ids) -> NDArray[np.float64]:
    """Entropy in bits [B] of the tokens of each sequence: log2 N - sum_v c_v log2 c_v / N."""
    length = x_BN.shape[1]
    sorted_BN = np.sort(x_BN, axis=1)
    first = np.ones(x_BN.shape, dtype=bool)
    first[:, 1:] = sorted_BN[:, 1:] != sorted_BN[:, :-1]
    start = np.flatnonzero(first)
    count = np.diff(start, append=x_BN.size)
    term_B = np.bincount(start // length, count * np.log2(count), len(x_BN))
    # A sequence of one token: 0 exactly, where the difference of two logarithms may round below.
    entropy_B: NDArray[np.float64] = np.maximum(np.log2(length) - term_B / length, 0.0)
    return entropy_B


def _ngram_codes(x_BN: Ids) -> list[Ids]:
    """For n = 1, 2, ...: the n-grams [B, N - n + 1] as numbers 0..(different ones - 1).

    An n-gram is the number of its first n - 1 tokens with one token behind; numbered anew each
    time, so that no vocabulary is too large for 64 bits.
    """
    unigram_BN = _numbered(x_BN)
    vocab = int(unigram_BN.max()) + 1
    codes = [unigram_BN]
    while len(codes) < min(LONGEST, x_BN.shape[1]):
        longer = codes[-1][:, :-1] * vocab + unigram_BN[:, len(codes) :]
        codes.append(_numbered(longer))
    return codes


def _numbered(x_BN: Ids) -> Ids:
    numbers: Ids = np.unique(x_BN, return_inverse=True)[1].reshape(x_BN.shape)
    return numbers


def _different(code_BM: Ids) -> Ids:
    """How many different codes each row holds."""
    sorted_BM = np.sort(code_BM, axis=1)
    count_B: Ids = 1 + (sorted_BM[:, 1:] != sorted_BM[:, :-1]).sum(1)
    return count_B


def _longest_run(x_BN: Ids) -> Ids:
    """The longest run of one token in each row: the furthest a place is from its run's start."""
    place_BN = np.broadcast_to(np.arange(x_BN.shape[1]), x_BN.shape)
    starts = np.ones(x_BN.shape, dtype=bool)
    starts[:, 1:] = x_BN[:, 1:] != x_BN[:, :-1]
    start_BN = np.maximum.accumulate(np.where(starts, place_BN, 0), axis=1)
    run_B: Ids = (place_BN - start_BN).max(1) + 1
    return run_B


def _ids(tokens: Tensor | np.ndarray) -> Ids:
    x_BN = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
    whole = isinstance(x_BN, np.ndarray) and x_BN.dtype.kind in "iu" and x_BN.ndim == 2
    if not whole or not x_BN.size:
        raise InputError(
            f"tokens must be integer ids [samples, length] with at least one sample, got "
            f"{describe(tokens)}; for one sequence use tokens[None]"
        )
    return x_BN.astype(np.int64, copy=False)
