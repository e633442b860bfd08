"""The hybrid noise of GIDD, and what a prediction implies for a step and for the likelihood.

At s = 1 - t a token x is kept, masked, or replaced by one of V uniform tokens:

    q_s(y | x) = alpha [y = x] + beta(y),   alpha = (1 - s) / C,   beta(mask) = s / C,
    beta(y) = c / (C V),   c = B sqrt(s (1 - s)),   C = 1 + c,   B = 2 p_u / (1 - p_u).

Pure noise (s = 1) is all mask, and p_u is the probability of a uniform token at s = 1/2. The
network predicts a token from the other positions, p(x | z^-i), and the evidence of z^i is added by
Bayes' rule in every formula.

Shapes: B batch, N length, K positions, V data tokens, T = V + 1 ids, of which the mask is the last.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cwdfm.errors import check_integer, require
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.source import UniformSource


class Levels(NamedTuple):
    """Probabilities of the outcomes of noising a token, float64."""

    kept: Tensor  # alpha
    mask: Tensor  # beta(mask)
    token: Tensor  # beta(y) of each data token y


@dataclass(frozen=True)
class HybridNoise:
    """Mask and uniform noise. `p_uniform`: the fraction of uniform tokens at s = 1/2."""

    vocab_size: int
    p_uniform: float

    def __post_init__(self) -> None:
        check_integer("vocab_size", self.vocab_size, 2)
        valid = isinstance(self.p_uniform, float) and 0 < self.p_uniform < 1
        rule = "be a number between 0 and 1, exclusive (0 is a flow with a mask source)"
        require(valid, "p_uniform", rule, self.p_uniform)

    def levels(self, s: Tensor) -> Levels:
        """alpha and beta at s."""
        c = 2 * self.p_uniform / (1 - self.p_uniform) * (s * (1 - s)).sqrt()
        return Levels((1 - s) / (1 + c), s / (1 + c), c / ((1 + c) * self.vocab_size))

    def corrupt(self, x_1: Tensor, s_B: Tensor, *, seed: int, step: int, index: Tensor) -> Tensor:
        """z ~ q_s(. | x_1), [B, N]."""
        length = x_1.shape[1]
        u_BN = uniform_BN(seed, Purpose.REVEAL, index, step, length)
        token_BN = UniformSource(self.vocab_size).noise(index, length, seed=seed, step=step)
        kept_B, mask_B, _ = self.levels(s_B)
        noised_BN = token_BN.masked_fill(u_BN < (kept_B + mask_B)[:, None], self.vocab_size)
        return torch.where(u_BN < kept_B[:, None], x_1, noised_BN)

    def step_law(self, p_KV: Tensor, z_K: Tensor, s: float, s_next: float) -> Tensor:
        """p(y at s_next | z at s) [K, T], unnormalized, of a prediction p(x | z^-i) [K, V].

        It is q(z | y) q_{s_next}(y). Noising from s_next to s, q(z | y) = a [z = y] + b(z), with
        a = alpha_s / alpha_{s_next} and b = beta_s - a beta_{s_next}.
        """
        now, later = (self.levels(p_KV.new_tensor(x)) for x in (s, s_next))
        a = now.kept / later.kept
        b_mask, b_token = now.mask - a * later.mask, now.token - a * later.token
        mask_K1 = later.mask.expand(len(p_KV), 1)
        marginal_KT = torch.cat([later.kept * p_KV + later.token, mask_K1], dim=1)
        z_K1 = z_K[:, None]
        law_KT = marginal_KT * torch.where(z_K1 == self.vocab_size, b_mask, b_token)
        return law_KT.scatter_add(1, z_K1, a * marginal_KT.gather(1, z_K1))

    def divergence(self, p_KV: Tensor, z_K: Tensor, x_1_K: Tensor, s_K: Tensor) -> Tensor:
        """The rate divergence [K] per unit of s between data and model.

        With the marginal q(y | x_1) of the data and the model's, qhat(y) = E_p q(y | x),

            r(z) / q(z) [KL(q || qhat) - log g + g - 1],   g = q(z) / qhat(z),

        where r(z), the rate of noising into z, is beta(mask) / (s (1 - s)) for the mask and
        beta(y) / (2 s (1 - s)) for a data token.
        """
        kept_K, mask_K, token_K = self.levels(s_K)
        top_K = torch.log1p(kept_K / token_K)  # log q(x_1) - log beta
        gain_KV = torch.log1p((kept_K / token_K)[:, None] * p_KV)  # log qhat(y) - log beta
        masked_K, same_K = z_K == self.vocab_size, z_K == x_1_K
        gain_z_K = gain_KV.gather(1, z_K.clamp(max=self.vocab_size - 1)[:, None])[:, 0]
        gain_1_K = gain_KV.gather(1, x_1_K[:, None])[:, 0]
        kl_K = (kept_K + token_K) * top_K - kept_K * gain_1_K - token_K * gain_KV.sum(1)
        log_g_K = torch.where(masked_K, 0.0, same_K * top_K - gain_z_K)
        rate_K = torch.where(masked_K, mask_K, token_K / 2) / (s_K * (1 - s_K))
        q_z_K = torch.where(masked_K, mask_K, token_K + same_K * kept_K)
        return rate_K / q_z_K * (kl_K - log_g_K + log_g_K.expm1())
