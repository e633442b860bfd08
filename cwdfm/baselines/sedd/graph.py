"""The two forward chains of SEDD, and what a score implies for each.

A token is corrupted by a chain with rates d sigma/ds Q, so its distribution after noise sigma is
exp(sigma Q). The score is s_y = p_sigma(y) / p_sigma(x) for sequences y that differ from x in one
token. It gives the rates d sigma/ds Q(y, x) s_y of the reverse chain and, by Tweedie's rule, the
distribution of one token after a reverse step:

    p(y at sigma' | x at sigma) = [s exp(-c Q)]_y exp(c Q)(y, x),      c = sigma - sigma'

Shapes: B batch, N length, K positions, V data tokens.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cwdfm.ops.precision import sum_dtype
from cwdfm.path.base import independent_reveals
from cwdfm.source import MaskSource, Source, UniformSource

# Tweedie's rule leaves at least this fraction of s_y. An inexact score can make s exp(-c Q)
# negative, and a data token that can never be sampled would have likelihood zero.
FLOOR = 1e-3


@dataclass(frozen=True)
class JumpLaw:
    """The distribution of a step: jump with probability jump / (jump + stay), to y by weight."""

    jump_K: Tensor  # float64
    stay_K: Tensor  # float64
    log_weight_KV: Tensor  # of the data tokens to jump to, unnormalized

    @property
    def prob_K(self) -> Tensor:
        """The probability of a jump."""
        return self.jump_K / (self.jump_K + self.stay_K)

    def log_prob(self, x_K: Tensor, y_K: Tensor) -> Tensor:
        """log p(y | x) [K]."""
        weight_KV = self.log_weight_KV.double()
        to_K = weight_KV.gather(1, y_K[:, None])[:, 0] - weight_KV.logsumexp(-1)
        mass_K = torch.where(x_K == y_K, self.stay_K.log(), self.jump_K.log() + to_K)
        return mass_K - (self.jump_K + self.stay_K).log()

    def excluding(self, x_K: Tensor, tokens: list[int]) -> "JumpLaw":
        """The same step, but it never jumps to `tokens` and always jumps away from them."""
        weight_KV = self.log_weight_KV.clone()
        weight_KV[:, tokens] = -torch.inf
        leave_K = torch.isin(x_K, torch.tensor(tokens, device=x_K.device))
        jump_K = torch.where(leave_K, 1.0, self.jump_K)
        return JumpLaw(jump_K, torch.where(leave_K, 0.0, self.stay_K), weight_KV)


class LogitSums(NamedTuple):
    """The statistics of the logits l_y that score entropy needs, each [K].

    Sums are over the data tokens y other than the current token x.
    """

    log_sum: Tensor  # log sum_y exp(l_y)
    total: Tensor  # sum_y l_y
    target: Tensor  # l at x_1, whether or not x_1 = x

    @classmethod
    def of(cls, logits_KV: Tensor, x_K: Tensor, x_1_K: Tensor) -> "LogitSums":
        """The sums of the data tokens' logits. x may be the mask, which has no logit."""
        logits_KV = logits_KV.to(sum_dtype(logits_KV))
        current_KV = torch.arange(logits_KV.shape[1], device=x_K.device) == x_K[:, None]
        return cls(
            log_sum=logits_KV.masked_fill(current_KV, -torch.inf).logsumexp(-1),
            total=logits_KV.masked_fill(current_KV, 0.0).sum(-1),
            target=logits_KV.gather(1, x_1_K[:, None])[:, 0],
        )


@dataclass(frozen=True)
class Graph(ABC):
    """A forward chain that acts on each token independently."""

    vocab_size: int

    @property
    @abstractmethod
    def source(self) -> Source:
        """The limit of the chain, and its token ids."""

    @abstractmethod
    def ratio(self, sigma_K: Tensor) -> Tensor:
        """p(x_1 | x_1) / p(x | x_1) for a reachable x other than x_1."""

    @abstractmethod
    def unmasked_fraction(self, sigma: float) -> float:
        """The fraction of tokens that are not masked; 0 for a chain without masks."""

    @abstractmethod
    def max_weight(self, sigma: Tensor) -> Tensor:
        """The largest factor of a log-score in `score_entropy`."""

    @abstractmethod
    def score_entropy(self, sums: LogitSums, same_K: Tensor, sigma_K: Tensor) -> Tensor:
        """sum_{y != x} Q(y, x) [s_y - r_y log s_y + r_y (log r_y - 1)], [K].

        r_y = p(y | x_1) / p(x | x_1), and `same_K` is x = x_1.
        """

    @abstractmethod
    def reverse_rate(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """The total rate sum_{y != x} Q(y, x) s_y [K], and log-weights [K, V] of the targets."""

    @abstractmethod
    def tweedie(self, logits_KV: Tensor, x_K: Tensor, sigma: float, sigma_next: float) -> JumpLaw:
        """A reverse step by Tweedie's rule. A step to sigma_next = 0 yields data tokens only."""

    @abstractmethod
    def excluding(self, logits_KV: Tensor, x_K: Tensor, sigma: float, tokens: list[int]) -> Tensor:
        """The logits [K, V] for data that never has `tokens` at these positions."""

    @abstractmethod
    def v_of(self, sigma: float) -> float:
        """The variable v over which the likelihood bound is integrated (see `likelihood.py`)."""

    @abstractmethod
    def sigma_of(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """sigma and d sigma / dv at v."""

    def corrupt(
        self, x_1: Tensor, sigma_B: Tensor, fixed: Tensor, *, seed: int, step: int, index: Tensor
    ) -> Tensor:
        """x ~ exp(sigma Q)(x_1, .): a token is kept with probability exp(-sigma), else noise."""
        noise_BN = self.source.noise(index, x_1.shape[1], seed=seed, step=step)
        kept_BN = independent_reveals(
            (-sigma_B).exp(), fixed.shape[1], seed=seed, step=step, index=index, fixed=fixed
        )
        return torch.where(kept_BN, x_1, noise_BN)


@dataclass(frozen=True)
class Absorb(Graph):
    """Every token turns into the mask at rate 1 and stays there.

    The score is exp(logits) / (V expm1(sigma)), so a network that outputs zeros finds all tokens
    equally likely. With c = log sum_y exp(l_y) - log V, the score entropy of a masked token is

        (-log softmax(l)_{x_1} + e^c - 1 - c) / expm1(sigma):

    MDLM's cross-entropy, plus a penalty on scores that do not sum to 1 / expm1(sigma).
    """

    @property
    def source(self) -> MaskSource:
        return MaskSource(self.vocab_size)

    def ratio(self, sigma_K: Tensor) -> Tensor:
        return 1 / sigma_K.expm1()

    def unmasked_fraction(self, sigma: float) -> float:
        return math.exp(-sigma)

    def max_weight(self, sigma: Tensor) -> Tensor:
        return self.ratio(sigma)

    def score_entropy(self, sums: LogitSums, same_K: Tensor, sigma_K: Tensor) -> Tensor:
        c_K = sums.log_sum - math.log(self.vocab_size)
        penalty_K = c_K.expm1() - c_K
        return self.ratio(sigma_K) * (sums.log_sum - sums.target + penalty_K)

    def reverse_rate(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        c_K = _log_sum_exp(logits_KV) - math.log(self.vocab_size)
        return c_K.exp() / math.expm1(sigma), logits_KV

    def tweedie(self, logits_KV: Tensor, x_K: Tensor, sigma: float, sigma_next: float) -> JumpLaw:
        rate_K, weight_KV = self.reverse_rate(logits_KV, x_K, sigma)
        if sigma_next == 0:  # the mask is excluded
            return JumpLaw(torch.ones_like(rate_K), torch.zeros_like(rate_K), weight_KV)
        jump_K = (math.expm1(sigma - sigma_next) * rate_K).clamp(max=1)
        return JumpLaw(jump_K, 1 - jump_K, weight_KV)

    def excluding(self, logits_KV: Tensor, x_K: Tensor, sigma: float, tokens: list[int]) -> Tensor:
        logits_KV = logits_KV.to(sum_dtype(logits_KV))
        rest_KV = logits_KV.clone()
        rest_KV[:, tokens] = -torch.inf
        lost_K = logits_KV.logsumexp(-1) - rest_KV.logsumexp(-1)
        return rest_KV + lost_K[:, None]  # keeps the total rate of unmasking

    def v_of(self, sigma: float) -> float:
        return math.sqrt(-math.expm1(-sigma))

    def sigma_of(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return -torch.log1p(-(v**2)), 2 * v / (1 - v**2)


@dataclass(frozen=True)
class Uniform(Graph):
    """Every token turns into each of the V tokens at rate 1 / V.

    The logits are the log-scores. All are 0 for pure noise.
    """

    @property
    def source(self) -> UniformSource:
        return UniformSource(self.vocab_size)

    def ratio(self, sigma_K: Tensor) -> Tensor:
        return 1 + self.vocab_size / sigma_K.expm1()

    def unmasked_fraction(self, sigma: float) -> float:
        return 0.0

    def max_weight(self, sigma: Tensor) -> Tensor:
        return self.ratio(sigma) / self.vocab_size + 1  # of x_1, and of all others together

    def score_entropy(self, sums: LogitSums, same_K: Tensor, sigma_K: Tensor) -> Tensor:
        # If x = x_1, all ratios are 1 / r. Otherwise that of x_1 is r, and the others are 1.
        r_K, others = self.ratio(sigma_K), self.vocab_size - 1
        same_terms_K = -(sums.total + others * (r_K.log() + 1)) / r_K
        rest_K = sums.total - sums.target + (others - 1)
        changed_terms_K = r_K * (r_K.log() - 1 - sums.target) - rest_K
        terms_K = torch.where(same_K, same_terms_K, changed_terms_K)
        return (sums.log_sum.exp() + terms_K) / self.vocab_size

    def reverse_rate(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        others_KV = logits_KV.scatter(1, x_K[:, None], -torch.inf)
        return _log_sum_exp(others_KV).exp() / self.vocab_size, others_KV

    def tweedie(self, logits_KV: Tensor, x_K: Tensor, sigma: float, sigma_next: float) -> JumpLaw:
        change, x_K1 = sigma - sigma_next, x_K[:, None]
        kept, spread = math.exp(-change), -math.expm1(-change) / self.vocab_size
        staggered_KV = self.staggered_score(logits_KV, x_K, change)
        stay_K = staggered_KV.gather(1, x_K1)[:, 0].double().exp() * (kept + spread)
        weight_KV = staggered_KV.scatter(1, x_K1, -torch.inf)
        jump_K = weight_KV.exp().sum(-1, dtype=torch.float64) * spread
        return JumpLaw(jump_K, stay_K, weight_KV)

    def staggered_score(self, logits_KV: Tensor, x_K: Tensor, change: float) -> Tensor:
        """log [s exp(-change Q)]_y [K, V], up to a constant per position; see `FLOOR`."""
        log_score_KV = logits_KV.to(sum_dtype(logits_KV)).scatter(1, x_K[:, None], 0.0)
        log_score_KV = log_score_KV - log_score_KV.amax(-1, keepdim=True)  # avoids overflow
        score_KV = log_score_KV.exp()
        mean_K1 = score_KV.mean(-1, keepdim=True, dtype=torch.float64).to(score_KV.dtype)
        fraction_KV = math.exp(change) - math.expm1(change) * mean_K1 / score_KV
        return log_score_KV + fraction_KV.clamp(min=FLOOR).log()

    def excluding(self, logits_KV: Tensor, x_K: Tensor, sigma: float, tokens: list[int]) -> Tensor:
        # Go back to the data, remove the tokens, and add the noise again.
        data_KV = self.staggered_score(logits_KV.double(), x_K, sigma).exp()
        data_KV[:, tokens] = 0.0
        noise = -math.expm1(-sigma)
        noised_KV = (1 - noise) * data_KV + noise * data_KV.mean(-1, keepdim=True)
        return (noised_KV / noised_KV.gather(1, x_K[:, None])).log()

    def v_of(self, sigma: float) -> float:
        return math.sqrt(math.log1p(sigma))

    def sigma_of(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return (v**2).expm1(), 2 * v * (v**2).exp()


def _log_sum_exp(logits_KV: Tensor) -> Tensor:
    """log sum exp [K] in float64, summed in at least float32."""
    return logits_KV.to(sum_dtype(logits_KV)).logsumexp(-1).double()
