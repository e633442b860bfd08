"""Diversity of token sequences: entropy, distinct n-grams, repetition.

Perplexity alone rewards repetition, so report these statistics with it. They are computed on the
sampler's tokens, not the evaluator LM's.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, describe
from cwdfm.metrics.folds import Estimate, fold_slices, mean_estimate

MAX_N = 4  # longest n-grams, used for `repetition`
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TextStatistics:
    """Statistics per sample, averaged over samples; `corpus_distinct` pools all samples.

    - `entropy`: unigram entropy of a sample in bits, -sum_v (c_v / N) log2(c_v / N), where c_v is
      the count of token v in the sample (the paper, after Gat et al. 2024);
    - `distinct[n-1]`: distinct n-grams of a sample divided by its N - n + 1 n-grams;
    - `corpus_distinct[n-1]`: the same for the n-grams of all samples together. It shows whether
      samples repeat each other, and decreases with the number of samples;
    - `repetition`: the fraction of 4-grams that occurred earlier in the same sample,
      1 - distinct-4; None for samples shorter than 4 tokens;
    - `longest_run`: length of the longest run of one token.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "entropy": self.entropy.to_json(),
            "distinct": {str(n): d.to_json() for n, d in enumerate(self.distinct, start=1)},
            "corpus_distinct": {str(n): d for n, d in enumerate(self.corpus_distinct, start=1)},
            "repetition": self.repetition and self.repetition.to_json(),
            "longest_run": self.longest_run.to_json(),
        }


def text_statistics(tokens: Tensor | np.ndarray, *, folds: int = 5) -> TextStatistics:
    """Entropy, distinct n-grams and repetition of token ids [B, N]; the paper uses 5 folds."""
    x_BN = token_ids(tokens)
    slices = fold_slices(len(x_BN), folds)
    entropy_B, run_B = sample_entropies(x_BN), np.array([_longest_run(row_N) for row_N in x_BN])
    distinct, corpus = [], []
    for code_BM in _ngram_codes(x_BN):
        distinct_B = np.array([len(np.unique(code_M)) for code_M in code_BM])
        distinct.append(mean_estimate(distinct_B / code_BM.shape[1], slices))
        corpus.append((int(code_BM.max()) + 1) / code_BM.size)
    repetition = None
    if len(distinct) == MAX_N:
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


def sample_entropies(x_BN: Ids) -> NDArray[np.float64]:
    """The unigram entropy [B] of each sample in bits."""
    return np.array([_entropy(row_N) for row_N in x_BN])


def _entropy(row_N: Ids) -> float:
    share_V = np.unique(row_N, return_counts=True)[1] / len(row_N)
    return float((share_V * np.log2(1 / share_V)).sum())


def _longest_run(row_N: Ids) -> int:
    ends = np.flatnonzero(np.diff(row_N))  # positions before a different token
    return int(np.diff(ends, prepend=-1, append=len(row_N) - 1).max())


def _ngram_codes(x_BN: Ids) -> list[Ids]:
    """For n = 1, 2, ...: codes [B, N - n + 1] of the n-grams, numbered 0..(distinct n-grams - 1).

    The code of an n-gram combines the code of its first n - 1 tokens with its last token. Codes are
    renumbered for each n, so that they fit into 64 bits for any vocabulary.
    """
    unigram_BN = _renumber(x_BN)
    vocab = int(unigram_BN.max()) + 1
    codes = [unigram_BN]
    while len(codes) < min(MAX_N, x_BN.shape[1]):
        longer = codes[-1][:, :-1] * vocab + unigram_BN[:, len(codes) :]
        codes.append(_renumber(longer))
    return codes


def _renumber(x_BN: Ids) -> Ids:
    codes: Ids = np.unique(x_BN, return_inverse=True)[1].reshape(x_BN.shape)
    return codes


def token_ids(tokens: Tensor | np.ndarray, name: str = "tokens") -> Ids:
    """Token ids [B, N] as an array; raises InputError for anything else."""
    x_BN = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
    valid = isinstance(x_BN, np.ndarray) and x_BN.dtype.kind in "iu" and x_BN.ndim == 2
    if not valid or not x_BN.size:
        raise InputError(
            f"{name} must be integer ids [samples, length] with at least one sample, got "
            f"{describe(tokens)}; for one sequence use {name}[None]"
        )
    return x_BN.astype(np.int64, copy=False)
