"""The absorbing chain: tokens turn into masks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cwdfm.baselines.sedd.graph import Graph, Move, log_sum
from cwdfm.baselines.sedd.sums import Sums, masked_sums_of_head
from cwdfm.ops.precision import sum_dtype
from cwdfm.source import MaskSource


@dataclass(frozen=True)
class Absorb(Graph):
    """Every token turns into the mask at rate 1, and stays there.

    The score is that of the network over V expm1(sigma), so that a network that puts out zeros
    finds all tokens equally likely. Then with c = log sum_y exp(l_y) - log V a masked token's

        score entropy = (-log softmax(l)_{x_1} + e^c - 1 - c) / expm1(sigma)

    is MDLM's cross-entropy, and the price of a score that does not sum to 1 / expm1(sigma).
    """

    @property
    def source(self) -> MaskSource:
        return MaskSource(self.vocab_size)

    def rate_matrix(self) -> Tensor:
        q = -torch.eye(self.vocab_size + 1, dtype=torch.float64)
        q[:, -1] += 1
        return q

    def transition(self, sigma: float) -> Tensor:
        p = math.exp(-sigma) * torch.eye(self.vocab_size + 1, dtype=torch.float64)
        p[:, -1] += -math.expm1(-sigma)
        return p

    def log_score(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> Tensor:
        return logits_KV - math.log(self.vocab_size * math.expm1(sigma))

    def ratio(self, sigma_K: Tensor) -> Tensor:
        return 1 / sigma_K.expm1()

    def unmasked(self, sigma: float) -> float:
        return math.exp(-sigma)

    def largest_weight(self, sigma: Tensor) -> Tensor:
        return self.ratio(sigma)

    def head_sums(self, hidden_KD: Tensor, readout: nn.Linear, x_K: Tensor, x_1_K: Tensor) -> Sums:
        return masked_sums_of_head(hidden_KD, readout, x_1_K, self.vocab_size)

    def entropy(self, sums: Sums, same_K: Tensor, sigma_K: Tensor) -> Tensor:
        c_K = sums.log_sum - math.log(self.vocab_size)
        unnormalised_K = c_K.expm1() - c_K
        return self.ratio(sigma_K) * (sums.log_sum - sums.target + unnormalised_K)

    def rate(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        c_K = log_sum(logits_KV) - math.log(self.vocab_size)
        return c_K.exp() / math.expm1(sigma), logits_KV

    def tweedie(self, logits_KV: Tensor, x_K: Tensor, sigma: float, sigma_next: float) -> Move:
        rate_K, weight_KV = self.rate(logits_KV, x_K, sigma)
        if sigma_next == 0:  # the mask is cut off
            return Move(torch.ones_like(rate_K), torch.zeros_like(rate_K), weight_KV)
        go_K = (math.expm1(sigma - sigma_next) * rate_K).clamp(max=1)
        return Move(go_K, 1 - go_K, weight_KV)

    def conditioned(
        self, logits_KV: Tensor, x_K: Tensor, sigma: float, tokens: list[int]
    ) -> Tensor:
        logits_KV = logits_KV.to(sum_dtype(logits_KV))
        left_KV = logits_KV.clone()
        left_KV[:, tokens] = -torch.inf
        lost_K = logits_KV.logsumexp(-1) - left_KV.logsumexp(-1)
        return left_KV + lost_K[:, None]  # tokens are unmasked as often as before

    def place(self, sigma: float) -> float:
        return math.sqrt(-math.expm1(-sigma))

    def noise_at(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return -torch.log1p(-(v**2)), 2 * v / (1 - v**2)
