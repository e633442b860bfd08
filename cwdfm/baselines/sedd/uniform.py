"""The uniform chain: tokens turn into any others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cwdfm.baselines.sedd.graph import Graph, Move, log_sum
from cwdfm.baselines.sedd.sums import Sums, sums_of_head
from cwdfm.ops.precision import sum_dtype
from cwdfm.source import UniformSource

# The least share of s_y that Tweedie's rule may leave of it. A score that is not exact can make
# exp(-c Q) negative, and a data token that can never be drawn would have no likelihood.
FLOOR = 1e-3


@dataclass(frozen=True)
class Uniform(Graph):
    """Every token turns into each of the V tokens at rate 1 / V.

    The network's logits are the log-scores themselves; all are 0 for pure noise.
    """

    @property
    def source(self) -> UniformSource:
        return UniformSource(self.vocab_size)

    def rate_matrix(self) -> Tensor:
        v = self.vocab_size
        return torch.full((v, v), 1 / v, dtype=torch.float64) - torch.eye(v, dtype=torch.float64)

    def transition(self, sigma: float) -> Tensor:
        kept = math.exp(-sigma) * torch.eye(self.vocab_size, dtype=torch.float64)
        return kept - math.expm1(-sigma) / self.vocab_size

    def log_score(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> Tensor:
        return logits_KV.scatter(1, x_K[:, None], 0.0)

    def ratio(self, sigma_K: Tensor) -> Tensor:
        return 1 + self.vocab_size / sigma_K.expm1()

    def unmasked(self, sigma: float) -> float:
        return 0.0

    def largest_weight(self, sigma: Tensor) -> Tensor:
        return self.ratio(sigma) / self.vocab_size + 1  # of one, and of all others together

    def head_sums(self, hidden_KD: Tensor, readout: nn.Linear, x_K: Tensor, x_1_K: Tensor) -> Sums:
        return sums_of_head(hidden_KD, readout, x_K, x_1_K, self.vocab_size)

    def entropy(self, sums: Sums, same_K: Tensor, sigma_K: Tensor) -> Tensor:
        # With x = x_1 all ratios are 1 / r; else that of x_1 is r, and the others are 1.
        r_K, others = self.ratio(sigma_K), self.vocab_size - 1
        same_terms_K = -(sums.total + others * (r_K.log() + 1)) / r_K
        rest_K = sums.total - sums.target + (others - 1)
        moved_terms_K = r_K * (r_K.log() - 1 - sums.target) - rest_K
        return (sums.log_sum.exp() + torch.where(same_K, same_terms_K, moved_terms_K)) / (
            self.vocab_size
        )

    def rate(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        others_KV = logits_KV.scatter(1, x_K[:, None], -torch.inf)
        return log_sum(others_KV).exp() / self.vocab_size, others_KV

    def tweedie(self, logits_KV: Tensor, x_K: Tensor, sigma: float, sigma_next: float) -> Move:
        change, own_K1 = sigma - sigma_next, x_K[:, None]
        kept, spread = math.exp(-change), -math.expm1(-change) / self.vocab_size
        log_before_KV = self.staggered(logits_KV, x_K, change)
        stay_K = log_before_KV.gather(1, own_K1)[:, 0].double().exp() * (kept + spread)
        weight_KV = log_before_KV.scatter(1, own_K1, -torch.inf)
        go_K = weight_KV.exp().sum(-1, dtype=torch.float64) * spread
        return Move(go_K, stay_K, weight_KV)

    def staggered(self, logits_KV: Tensor, x_K: Tensor, change: float) -> Tensor:
        """log [s exp(-change Q)]_y [K, V], up to a number a row; what is negative is cut off."""
        log_score_KV = self.log_score(logits_KV.to(sum_dtype(logits_KV)), x_K, 0.0)
        log_score_KV = log_score_KV - log_score_KV.amax(-1, keepdim=True)  # no overflow
        score_KV = log_score_KV.exp()
        mean_K1 = score_KV.mean(-1, keepdim=True, dtype=torch.float64).to(score_KV.dtype)
        share_KV = math.exp(change) - math.expm1(change) * mean_K1 / score_KV
        return log_score_KV + share_KV.clamp(min=FLOOR).log()

    def conditioned(
        self, logits_KV: Tensor, x_K: Tensor, sigma: float, tokens: list[int]
    ) -> Tensor:
        # Back to the data, where the tokens are taken out, and forth to the noise again.
        data_KV = self.staggered(logits_KV.double(), x_K, sigma).exp()
        data_KV[:, tokens] = 0.0
        touched = -math.expm1(-sigma)
        noised_KV = (1 - touched) * data_KV + touched * data_KV.mean(-1, keepdim=True)
        return (noised_KV / noised_KV.gather(1, x_K[:, None])).log()

    def place(self, sigma: float) -> float:
        return math.sqrt(math.log1p(sigma))

    def noise_at(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return (v**2).expm1(), 2 * v * (v**2).exp()
