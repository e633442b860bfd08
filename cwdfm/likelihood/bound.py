"""What every likelihood bound is made of: the result, its terms, and how noise is stratified."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer, check_mask, check_tokens
from cwdfm.model.predict import model_device
from cwdfm.ops.random import Purpose, uniform

GOLDEN = (math.sqrt(5) - 1) / 2
END_DRAWS = 2  # of the last step: as few as have a variance


@dataclass(frozen=True)
class Bound:
    """An estimate of an upper bound on -log p of some sequences; where `exact`, -log p itself.

    - `nats_per_token`, and its `standard_error` over times and noise, for these very sequences.
    - `nats_B` [B] float64: the estimate for each sequence, summed over its free tokens.
    - `tokens`: how many free tokens the bound covers.
    - `exact`: whether these are -log p itself, as of an autoregressive model.
    """

    nats_per_token: float
    standard_error: float
    nats_B: Tensor
    tokens: int
    exact: bool = False

    @classmethod
    def of(
        cls, nats_B: Tensor, tokens: int, variance: float = 0.0, *, exact: bool = False
    ) -> "Bound":
        """From the sequences' own bounds [B], and the variance of their sum."""
        mean, error = float(nats_B.sum()) / tokens, math.sqrt(variance) / tokens
        return cls(mean, error, nats_B, tokens, exact=exact)

    @classmethod
    def estimated(cls, parts: "Sequence[Terms]", tokens: int) -> "Bound":
        """From the terms of all batches."""
        variance_B = torch.cat([part.variance_B for part in parts])
        return cls.of(torch.cat([part.mean_B for part in parts]), tokens, float(variance_B.sum()))

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)


@dataclass(frozen=True)
class Terms:
    """A batch's bound in parts, each summed over the free tokens of a sequence, float64.

    start + integral over D strata of the noise + cross-entropy of the last step
    """

    integral: Tensor  # [D, B]: an estimate from each stratum
    end: Tensor  # [END_DRAWS, B]: estimates
    start: Tensor | float = 0.0  # [B]: no estimate; of a flow, which starts with its source, none

    @property
    def mean_B(self) -> Tensor:
        """The estimate of the bound [B]."""
        return self.start + self.integral.mean(0) + self.end.mean(0)

    @property
    def variance_B(self) -> Tensor:
        """The variance of that estimate [B]."""
        return stratified_variance(self.integral) + self.end.var(0) / END_DRAWS


def free_tokens(
    model: object, x_1: Tensor, fixed: Tensor | None, vocab_size: int, batch_size: int
) -> tuple[Tensor, Tensor, int]:
    """What a likelihood is asked of, checked: x_1 and fixed, and how many tokens are free.

    Both are [B, N] and on the model's device; without `fixed` all tokens are free.
    """
    check_tokens("x_1", x_1, vocab_size)
    check_integer("batch_size", batch_size)
    fixed = torch.zeros_like(x_1, dtype=torch.bool) if fixed is None else fixed
    check_mask("fixed", fixed, (x_1.shape[0], x_1.shape[1]))
    tokens = int((~fixed).sum())
    if tokens == 0:
        raise InputError("all positions are fixed: no token is left whose likelihood to find")
    device = model_device(model) or x_1.device
    return x_1.to(device), fixed.to(device), tokens


def stratified_variance(estimates_DB: Tensor) -> Tensor:
    """The variance [B] of the mean over D strata in a row, from one estimate in each.

        Var ~ sum_d (f_d - 2 f_{d+1} + f_{d+2})^2 / (6 D (D - 2))

    The strata's own means differ, which adds nothing to the variance of their mean, but much to
    the spread of the f_d: near N / 12 times as much, for an integrand of 2 N v times a constant.
    Second differences leave such a line out and keep what is drawn: the noise, and where in its
    stratum a sequence's v lies. The last counts as if drawn for each sequence apart: somewhat too
    much for sequences in a row, which share it evenly (`stratum_places`); too little for few that
    step through a data set by a large Fibonacci number, whose places fall together. The outermost
    strata count less than the others: where the noise is largest at an end, as with a uniform
    source of few tokens, the error is somewhat too small.
    Two strata have only their difference, which counts the line: an error far too large.
    """
    strata = len(estimates_DB)
    if strata == 2:
        return estimates_DB.var(0) / 2
    return estimates_DB.diff(n=2, dim=0).square().sum(0) / (6 * strata * (strata - 2))


def stratum_places(seed: int, stratum: int, index_B: Tensor) -> Tensor:
    """Where in a stratum each sequence's point lies, float64 [B] in [0, 1).

    Each is uniform; the golden-ratio rotation u + i GOLDEN mod 1 spreads consecutive sequences
    evenly, whichever part of the data set they come from.
    """
    zero = torch.zeros(1, dtype=torch.int64, device=index_B.device)
    start = uniform(seed, Purpose.TIME, zero, stratum, zero)
    return (start + index_B.double() * GOLDEN) % 1.0
