"""Likelihood bounds: results, the estimator shared by all methods, and stratified times.

Shapes: B sequences, N length, D strata (draws per sequence), K positions, V data tokens.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer, check_mask, check_tokens
from cwdfm.loss.prediction import token_log_prob
from cwdfm.model.positions import Positions
from cwdfm.model.predict import evaluating, model_device, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.random import Purpose, sample_index, uniform
from cwdfm.source import Source

GOLDEN = (math.sqrt(5) - 1) / 2
END_DRAWS = 2  # draws of the last step; two are the minimum to estimate a variance
MAX_DRAWS = 10**5  # sanity limit: more draws would run for days

# (logits [k, V] float64, x [k], x_1 [k], noise level [k]) -> term [k]
PositionTerm = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """A negative log-likelihood, or an upper bound on it, in nats per token."""

    nats_per_token: float

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def bits_per_token(self) -> float:
        """Nats per token divided by log 2."""
        return self.nats_per_token / math.log(2)


@dataclass(frozen=True)
class Bound(NegativeLogLikelihood):
    """An estimated upper bound on -log p of some sequences, or -log p itself if `exact`.

    - `standard_error`: the standard error of `nats_per_token` over times and noise, for these
      sequences.
    - `nats_B` [B] float64: the estimate of each sequence, summed over its free tokens.
    - `tokens`: the number of free tokens that the bound covers.
    - `exact`: whether the values are -log p itself, as for an autoregressive model.
    """

    standard_error: float
    nats_B: Tensor
    tokens: int
    exact: bool = False


class LikelihoodOptions(TypedDict, total=False):
    """Options of all likelihoods. An exact likelihood uses only `fixed` and `batch_size`."""

    seed: int  # the random seed; default 0
    draws: int  # random times per sequence, at least 2; default 16
    fixed: Tensor | None  # [B, N] bool: tokens to condition on; default none
    index: Tensor | None  # [B]: global indices of the sequences; default 0..B-1
    batch_size: int  # default 256


@dataclass(frozen=True)
class BoundBatch:
    """A batch of sequences, and everything that determines their times and noise."""

    x_1: Tensor  # [B, N]
    fixed: Tensor  # [B, N]
    index: Tensor  # [B]
    seed: int
    draws: int

    def strata(self, low: float, high: float) -> Iterator[tuple[int, Tensor]]:
        """Yield (d, v) for each of the `draws` strata of [low, high], with a point v [B] in it."""
        for d in range(self.draws):
            offset_B = stratum_offsets(self.seed, d, self.index)
            yield d, low + (high - low) * (d + offset_B) / self.draws

    def noise(self, step: int) -> dict[str, Any]:
        """The keyword arguments of `Path.sample` that determine the draws of this step."""
        return {"seed": self.seed, "step": step, "index": self.index, "fixed": self.fixed}

    @property
    def end_steps(self) -> range:
        """The step numbers that seed the noise of the last step, numbered after the strata."""
        return range(self.draws, self.draws + END_DRAWS)


@dataclass(frozen=True)
class BoundTerms:
    """The terms of a batch's bound, summed over the free tokens of each sequence, float64:

    start + integral over the noise level (D strata) + cross-entropy of the last step
    """

    integral: Tensor  # [D, B]: one estimate per stratum
    end: Tensor  # [END_DRAWS, B]: independent estimates
    start: Tensor | float = 0.0  # [B]: exact; 0 for a flow, which starts from its source

    @property
    def mean_B(self) -> Tensor:
        """The estimate of the bound [B]."""
        return self.start + self.integral.mean(0) + self.end.mean(0)

    @property
    def variance_B(self) -> Tensor:
        """The variance of that estimate [B]."""
        return stratified_variance(self.integral) + self.end.var(0) / END_DRAWS


@torch.no_grad()
def estimate_bound(
    model: object,
    x_1: Tensor,
    terms: Callable[[BoundBatch], BoundTerms],
    vocab_size: int,
    *,
    exact: bool = False,
    check_fixed: Callable[[Tensor], None] | None = None,
    **options: Unpack[LikelihoodOptions],
) -> Bound:
    """Estimate the bound for the sequences x_1 [B, N], in batches.

    `terms` computes the bound's terms for a batch. `check_fixed` raises an InputError if the method
    does not support this mask of fixed tokens [B, N].
    """
    batch_size, draws = options.get("batch_size", 256), options.get("draws", 16)
    check_tokens("x_1", x_1, vocab_size)
    check_integer("batch_size", batch_size)
    fixed = options.get("fixed")
    fixed = torch.zeros_like(x_1, dtype=torch.bool) if fixed is None else fixed
    check_mask("fixed", fixed, (x_1.shape[0], x_1.shape[1]))
    tokens = int((~fixed).sum())
    if tokens == 0:
        raise InputError(
            "all positions are fixed, but a likelihood requires at least one free token"
        )
    if check_fixed is not None:
        check_fixed(fixed)
    if not exact:
        check_integer("draws", draws, 2, MAX_DRAWS)  # a standard error needs two
    device = model_device(model) or x_1.device
    x_1, fixed = x_1.to(device), fixed.to(device)
    index_B = sample_index(options.get("index"), len(x_1), device)
    parts = zip(*(x.split(batch_size) for x in (x_1, fixed, index_B)), strict=True)
    seed = options.get("seed", 0)
    with evaluating(model):
        results = [terms(BoundBatch(x, mask, i, seed, draws)) for x, mask, i in parts]
    nats_B = torch.cat([result.mean_B for result in results])
    variance = float(torch.cat([result.variance_B for result in results]).sum())
    if infinite := int((~nats_B.isfinite()).sum()):
        variance = math.inf
        warnings.warn(
            f"the bound is infinite for {infinite} of {len(nats_B)} sequences: the model assigns "
            f"probability zero to some of their tokens; mark special tokens that it never "
            f"predicts as fixed, or leave them out",
            stacklevel=3,
        )
    return Bound(float(nats_B.sum()) / tokens, math.sqrt(variance) / tokens, nats_B, tokens, exact)


def position_sum(
    model: Model,
    source: Source,
    x_BN: Tensor,
    x_1: Tensor,
    free_BN: Tensor,
    t_B: Tensor,
    level_B: Tensor,
    term: PositionTerm,
) -> Tensor:
    """The sum [B] of a term over the free positions of sequences x_BN with noise levels level_B.

    `t_B` are the times that the network is conditioned on.
    """
    positions = Positions.of(free_BN)
    inputs = positions.take(x_BN), positions.take(x_1), level_B[positions.sequence]
    term_K = torch.zeros(len(positions), dtype=torch.float64, device=x_BN.device)
    for k, logits_kV in predict_logits(model, source, x_BN, t_B, positions):
        term_K[k] = term(logits_kV.double(), *(x_K[k] for x_K in inputs))
    return positions.scatter(term_K).sum(1)


def cross_entropy(logits_kV: Tensor, _x_k: Tensor, x_1_k: Tensor, _level_k: Tensor) -> Tensor:
    """The term -log p(x_1^i) of each position."""
    return -token_log_prob(logits_kV, logits_kV.logsumexp(-1), x_1_k)


def exact_terms(model: Model, source: Source, input_BN: Tensor, batch: BoundBatch) -> BoundTerms:
    """The exact -sum_i log p(x_1^i) over the free positions i, from one pass over `input_BN`."""
    t_B, x_1 = torch.zeros(len(input_BN), device=input_BN.device), batch.x_1
    nats_B = position_sum(model, source, input_BN, x_1, ~batch.fixed, t_B, t_B, cross_entropy)
    zeros_2B = nats_B.new_zeros(END_DRAWS, len(nats_B))  # nothing has to be estimated
    return BoundTerms(zeros_2B, zeros_2B, nats_B)


def stratified_variance(estimates_DB: Tensor) -> Tensor:
    """The variance [B] of the mean over D adjacent strata, from one estimate f_d in each.

        Var ~ sum_d (f_d - 2 f_{d+1} + f_{d+2})^2 / (6 D (D - 2))

    The means of the strata differ. This adds nothing to the variance of the overall mean but
    dominates the spread of the f_d. Second differences remove a linear trend and keep the random
    part: the noise, and the position of v within its stratum. The outermost strata have less
    weight, so the estimate is slightly too small if the noise is largest at an end. It is slightly
    too large for consecutive sequences, whose points are spread evenly over a stratum
    (`stratum_offsets`). With two strata only their difference is available, which includes the
    trend: the estimate is far too large.
    """
    strata = len(estimates_DB)
    if strata == 2:
        return estimates_DB.var(0) / 2
    return estimates_DB.diff(n=2, dim=0).square().sum(0) / (6 * strata * (strata - 2))


def stratum_offsets(seed: int, stratum: int, index_B: Tensor) -> Tensor:
    """The offset of each sequence's point within a stratum, float64 [B] in [0, 1).

    Each offset is uniform. The golden-ratio rotation u + i GOLDEN mod 1 spreads the offsets of
    consecutive sequences evenly.
    """
    zero = torch.zeros(1, dtype=torch.int64, device=index_B.device)
    start = uniform(seed, Purpose.TIME, zero, stratum, zero)
    return (start + index_B.double() * GOLDEN) % 1.0
