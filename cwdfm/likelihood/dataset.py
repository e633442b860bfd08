"""Test perplexity: the likelihood bound over the rows of a data split."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.errors import InputError, check_integer, check_mask, describe
from cwdfm.likelihood.bound import Bound
from cwdfm.method import Method
from cwdfm.model.predict import model_device
from cwdfm.weight import Weight


@dataclass(frozen=True)
class SplitBound:
    """A split's negative log-likelihood in nats per free token: exact, or an upper bound on it.

    `standard_error` is over sequences and noise together, from the spread of the sequences' own
    estimates: how far other sequences of the same law would lie. It is None for a single sequence,
    and what is printed behind ±. `noise_error` is over times and noise alone: how far other seeds
    would lie for these very sequences. It is a part of the former, and so the smaller of the two,
    but for the accuracy of both: with few draws a sequence it may be too large, see
    `stratified_variance`.
    """

    nats_per_token: float
    standard_error: float | None
    noise_error: float
    sequences: int
    of: int  # sequences in the split
    tokens: int
    draws: int
    seed: int
    exact: bool = False

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def perplexity_error(self) -> float | None:
        """The perplexity's standard error: perplexity times that of the exponent."""
        return None if self.standard_error is None else self.perplexity * self.standard_error

    @property
    def bits_per_token(self) -> float:
        """Nats over log 2."""
        return self.nats_per_token / math.log(2)

    def __str__(self) -> str:
        error = "" if self.perplexity_error is None else f" ± {self.perplexity_error:.2g}"
        kind = "" if self.exact else "at most "
        return (
            f"perplexity {kind}{self.perplexity:.4g}{error} ({self.bits_per_token:.4f} bits a "
            f"token, {self.sequences:,} of {self.of:,} sequences, {self.tokens:,} tokens)"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict of all of it."""
        return {
            "perplexity": self.perplexity,
            "perplexity_error": self.perplexity_error,
            "bits_per_token": self.bits_per_token,
            "nats_per_token": self.nats_per_token,
            "standard_error": self.standard_error,
            "noise_error": self.noise_error,
            "sequences": self.sequences,
            "of": self.of,
            "tokens": self.tokens,
            "draws": self.draws,
            "seed": self.seed,
            "exact": self.exact,
        }


def bound_split(
    method: Method,
    model: Any,
    rows: Tensor | NDArray[Any],
    *,
    limit: int | None = None,
    fixed: Tensor | None = None,
    filled: tuple[int, int] | None = None,
    weight: Weight | None = None,
    draws: int = 16,
    seed: int = 0,
    batch_size: int = 64,
) -> SplitBound:
    """The method's bound over token rows [R, N], such as a memory-mapped array.

    Rows are read a batch at a time, and the result does not depend on its size. With `limit` that
    many rows, evenly spread over the split, stand for it; a row's estimate is the same with and
    without. `fixed` [N] marks positions that are given in every row. `filled` (row, count) says
    that so many tokens at the end of that row only fill it up, and do not count: see
    `_without_fill`. `weight` is a flow's, see `elbo`.
    """
    _check_rows(rows)
    check_integer("batch_size", batch_size)
    check_integer("limit", len(rows) if limit is None else limit)
    fixed_N = torch.zeros(rows.shape[1], dtype=torch.bool) if fixed is None else fixed
    check_mask("fixed", fixed_N, (rows.shape[1],))
    fixed_N = fixed_N.cpu()
    count = min(len(rows), limit or len(rows))
    index_R = torch.arange(count) * len(rows) // count
    last, fill = filled or (-1, 0)
    full, short = (index_R != last).nonzero()[:, 0], (index_R == last).nonzero()[:, 0]
    asked = [(place_B, fixed_N) for place_B in full.split(batch_size)]
    asked += [(short, part_n) for part_n in _without_fill(method, fixed_N, fill)]
    device = model_device(model) or torch.device("cpu")
    likelihood: Callable[..., Bound] = method.likelihood
    if weight is not None:
        likelihood = partial(likelihood, weight=weight)
    nats_R, tokens_R = torch.zeros(2, count, dtype=torch.float64)
    variance = 0.0
    for place_B, given_n in asked:
        if not len(place_B):
            continue
        index_B = index_R[place_B]
        x_1 = _read(rows, index_B)[:, : len(given_n)].to(device)
        bound = likelihood(
            model,
            x_1,
            seed=seed,
            draws=draws,
            fixed=given_n.to(device).expand(x_1.shape),
            index=index_B.to(device),
            batch_size=batch_size,
        )
        nats_R[place_B] += bound.nats_B.cpu()
        tokens_R[place_B] += int((~given_n).sum())
        variance += (bound.standard_error * bound.tokens) ** 2
    mean, error = _ratio(nats_R, tokens_R)
    total = int(tokens_R.sum())
    return SplitBound(
        nats_per_token=mean,
        standard_error=error,
        noise_error=math.sqrt(variance) / total,
        sequences=count,
        of=len(rows),
        tokens=total,
        draws=draws,
        seed=seed,
        exact=method.exact,
    )


def _check_rows(rows: Tensor | NDArray[Any]) -> None:
    whole = isinstance(rows, np.ndarray) and rows.dtype.kind in "iu"
    whole = whole or (isinstance(rows, Tensor) and not rows.is_floating_point())
    if not whole or rows.ndim != 2 or 0 in rows.shape:
        raise InputError(
            f"rows must be token ids [sequences, length] with at least one of each, got "
            f"{describe(rows)}"
        )


def _ratio(nats_R: Tensor, tokens_R: Tensor) -> tuple[float, float | None]:
    """sum nats / sum tokens, and the standard error of such a ratio; None for a single row."""
    count, total = len(nats_R), float(tokens_R.sum())
    mean = float(nats_R.sum()) / total
    residual = float((nats_R - mean * tokens_R).square().sum())
    return mean, math.sqrt(residual * count / (count - 1)) / total if count > 1 else None


def _without_fill(method: Method, fixed_N: Tensor, fill: int) -> list[Tensor]:
    """How to leave the last `fill` tokens of a row out of its likelihood, a sum of such terms.

    Each term is that of the row's first n tokens, [n] saying which of them are given.
    A method that looks both ways is given them. One from left to right predicts each block without
    those behind it (a block of one token, if autoregressive): whole blocks of text stand alone,
    and in the block where the text ends the fill is given, as are the blocks before.
    """
    length = len(fixed_N)
    place_N, end = torch.arange(length), length - fill
    if isinstance(method, Autoregressive):
        block = 1
    elif isinstance(method, BlockDiffusion):
        block = method.block
    else:
        return [fixed_N | (place_N >= end)]
    whole = end // block * block
    broken_N = fixed_N | (place_N < whole) | (place_N >= end)
    terms = [fixed_N[:whole], broken_N[: whole + block]]
    return [given_n for given_n in terms if not bool(given_n.all())]


def _read(rows: Tensor | NDArray[Any], index_B: Tensor) -> Tensor:
    if isinstance(rows, Tensor):
        return rows[index_B.to(rows.device)].long()
    return torch.from_numpy(rows[index_B.numpy()].astype(np.int64))
