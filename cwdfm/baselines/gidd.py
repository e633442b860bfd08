"""GIDD (von Rütte et al. 2025): diffusion with a mixture of mask and uniform noise.

At s = 1 - t a token x is kept, masked, or replaced by one of V uniform tokens:

    q_s(y | x) = alpha [y = x] + beta(y),   alpha = (1 - s) / C,   beta(mask) = s / C,
    beta(y) = c / (C V),   c = B sqrt(s (1 - s)),   C = 1 + c,   B = 2 p_u / (1 - p_u).

Pure noise (s = 1) is all mask, and p_u is the probability of a uniform token at s = 1/2. The
network predicts a token from the other positions, p(x | z^-i), and the evidence of z^i is added by
Bayes' rule in every formula.

The start, all mask, is exactly the noise at s = 1. So with the reverse chain down to
s = S_END and one step from there to data,

    -log p(x_1) <= integral E sum_i divergence^i ds + E sum_i -log p^i(x_1^i | z at S_END).

The integral is estimated over v = s^(1/4), in which the variance of the integrand is bounded: a
uniform token has probability of the order of sqrt(s), and a divergence of the order of 1 / s.

Shapes: B batch, N length, K positions, k positions of a chunk, V data tokens, T = V + 1 ids, of
which the mask is the last.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from cwdfm.baselines.sedd.solver import Analytic
from cwdfm.errors import check_integer, require
from cwdfm.likelihood.bound import (
    Bound,
    BoundBatch,
    BoundTerms,
    LikelihoodOptions,
    PositionTerm,
    estimate_bound,
    position_sum,
)
from cwdfm.method.base import Method, SampleRequest, unsupported_solver
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.model.wrappers import BannedTokens
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.random import Purpose, uniform, uniform_BN
from cwdfm.schedule import Linear
from cwdfm.solver import Info, Samples, State, sample
from cwdfm.solver.step import Step, StepSolver
from cwdfm.source import MaskSource, UniformSource

S_END = 1e-6  # uniform noise has the order of sqrt(s), and the last step draws all of it at once


class Levels(NamedTuple):
    """Probabilities of the outcomes of noising a token, float64."""

    kept: Tensor  # alpha
    mask: Tensor  # beta(mask)
    token: Tensor  # beta(y) of each data token y


@dataclass(frozen=True)
class GIDD(Method):
    """A network of p(x_1^i | z^-i), and the noise that it was trained for.

    `p_uniform`: the fraction of uniform tokens at s = 1/2.
    """

    default_solver = "analytic"

    vocab_size: int
    p_uniform: float

    def __post_init__(self) -> None:
        check_integer("vocab_size", self.vocab_size, 2)
        valid = isinstance(self.p_uniform, float) and 0 < self.p_uniform < 1
        rule = "be a number between 0 and 1, exclusive (0 is a flow with a mask source)"
        require(valid, "p_uniform", rule, self.p_uniform)

    @property
    def source(self) -> MaskSource:
        """The state at s = 1, and the token ids."""
        return MaskSource(self.vocab_size)

    @property
    def num_tokens(self) -> int:
        return self.vocab_size + 1

    def sample(self, model: nn.Module, solver: object, request: SampleRequest) -> Samples:
        rule = Analytic() if solver is None else solver
        if not isinstance(rule, Analytic):
            reason = "a revealed token may be noise, which its steps would keep"
            unsupported_solver(self, solver, "Analytic() (solver analytic)", reason)
        model = BannedTokens(model, request.banned_tokens) if request.banned_tokens else model
        chain = HybridChain(rule, self)
        return sample(model, self.source, Linear(), chain, **request.loop_options)

    def likelihood(
        self, model: nn.Module, x_1: Tensor, **options: Unpack[LikelihoodOptions]
    ) -> Bound:
        terms = partial(_bound_terms, model, self)
        return estimate_bound(model, x_1, terms, self.vocab_size, **options)

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


@dataclass(frozen=True)
class HybridChain(StepSolver):
    """Steps of the reverse chain along t = 1 - s, drawn from the exact law of each token.

    `temperature` and `top_p` of the rule apply to the prediction.
    """

    rule: Analytic
    method: GIDD

    def take(self, step: Step) -> tuple[State, Info]:
        source, state, t, t_next = step.source, step.state, step.t, step.t_next
        positions = Positions.of(~state.fixed)  # a token that is not the mask may still be noise
        z_K, index_K = positions.take(state.tokens), state.index[positions.sequence]
        u_K = uniform(state.seed, Purpose.PROPOSAL, index_K, state.step, positions.position)
        t_B = torch.full_like(state.index, t, dtype=torch.float32)
        drawn_K = torch.empty_like(z_K)
        for k, logits_kV in predict_logits(step.model, source, state.tokens, t_B, positions):
            p_kV = self.rule.probabilities(logits_kV)
            law_kT = self.method.step_law(p_kV, z_K[k], 1 - t, 1 - t_next)
            drawn_K[k] = sample_categorical(law_kT.log(), u_K[k], dtype=self.rule.dtype)
        tokens_BN = positions.replace(state.tokens, drawn_K)
        return step.finish(tokens_BN, positions)


def _bound_terms(model: Model, method: GIDD, batch: BoundBatch) -> BoundTerms:
    x_1, free_BN = batch.x_1, ~batch.fixed

    def total(s_B: Tensor, step: int, term: PositionTerm) -> Tensor:
        """The sum [B] of a term over the free positions of noised sequences."""
        z_BN = method.corrupt(x_1, s_B, seed=batch.seed, step=step, index=batch.index)
        z_BN = torch.where(batch.fixed, x_1, z_BN)
        return position_sum(model, method.source, z_BN, x_1, free_BN, 1 - s_B, s_B, term)

    def divergence(logits_kV: Tensor, z_k: Tensor, x_1_k: Tensor, s_k: Tensor) -> Tensor:
        return method.divergence(logits_kV.softmax(-1), z_k, x_1_k, s_k)

    def last_step(logits_kV: Tensor, z_k: Tensor, x_1_k: Tensor, _: Tensor) -> Tensor:
        law_kT = method.step_law(logits_kV.softmax(-1), z_k, S_END, 0.0)
        return law_kT.sum(1).log() - law_kT.gather(1, x_1_k[:, None])[:, 0].log()

    low = S_END**0.25
    integral = [
        (1 - low) * 4 * v_B**3 * total(v_B**4, d, divergence) for d, v_B in batch.strata(low, 1.0)
    ]
    s_B = torch.full_like(batch.index, S_END, dtype=torch.float64)
    end = [total(s_B, step, last_step) for step in batch.end_steps]
    return BoundTerms(torch.stack(integral), torch.stack(end))
