"""GIDD as a method: sampling with exact steps of each token, and the likelihood bound.

The start, all mask, is exactly the noise at s = 1. So with the reverse chain down to
s = S_END and one step from there to data,

    -log p(x_1) <= integral E sum_i divergence^i ds + E sum_i -log p^i(x_1^i | z at S_END).

The integral is estimated over v = s^(1/4), in which the variance of the integrand is bounded: a
uniform token has probability of the order of sqrt(s), and a divergence of the order of 1 / s.

Shapes: B batch, N length, K positions, k positions of a chunk, V data tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn

from cwdfm.baselines.gidd.noise import HybridNoise
from cwdfm.baselines.sedd.solver import Analytic
from cwdfm.likelihood.bound import Bound, BoundBatch, BoundTerms, LikelihoodOptions, estimate_bound
from cwdfm.method.base import Method, SampleRequest, refuse_solver
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.model.wrappers import BannedTokens
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.random import Purpose, uniform
from cwdfm.schedule import Linear
from cwdfm.solver import Info, Samples, State, sample
from cwdfm.solver.step import Step, StepSolver
from cwdfm.source import MaskSource

S_END = 1e-6  # uniform noise has the order of sqrt(s), and the last step draws all of it at once

# (p [k, V], z [k], x_1 [k], s [k]) -> term [k]
PositionTerm = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class GIDD(Method):
    """A network of p(x_1^i | z^-i), with the noise that it was trained for (see `HybridNoise`)."""

    default_solver = "analytic"

    vocab_size: int
    p_uniform: float

    def __post_init__(self) -> None:
        _ = self.noise  # checks the fields

    @property
    def noise(self) -> HybridNoise:
        """The forward process of a token."""
        return HybridNoise(self.vocab_size, self.p_uniform)

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
            refuse_solver(self, solver, "Analytic() (solver analytic)", reason)
        model = BannedTokens(model, request.banned_tokens) if request.banned_tokens else model
        chain = HybridChain(rule, self.noise)
        return sample(model, self.source, Linear(), chain, **request.loop_options)

    def likelihood(
        self, model: nn.Module, x_1: Tensor, **options: Unpack[LikelihoodOptions]
    ) -> Bound:
        def terms(batch: BoundBatch) -> BoundTerms:
            return _bound_terms(model, self, batch)

        return estimate_bound(model, x_1, terms, vocab_size=self.vocab_size, **options)


@dataclass(frozen=True)
class HybridChain(StepSolver):
    """Steps of the reverse chain along t = 1 - s, drawn from the exact law of each token.

    `temperature` and `top_p` of the rule apply to the prediction.
    """

    rule: Analytic
    noise: HybridNoise

    def take(self, step: Step) -> tuple[State, Info]:
        source, state, t, t_next = step.source, step.state, step.t, step.t_next
        positions = Positions.of(~state.fixed)  # a token that is not the mask may still be noise
        z_K, index_K = positions.take(state.tokens), state.index[positions.sequence]
        u_K = uniform(state.seed, Purpose.PROPOSAL, index_K, state.step, positions.position)
        t_B = torch.full_like(state.index, t, dtype=torch.float32)
        drawn_K = torch.empty_like(z_K)
        for k, logits_kV in predict_logits(step.model, source, state.tokens, t_B, positions):
            p_kV = self.rule.probabilities(logits_kV)
            law_kT = self.noise.step_law(p_kV, z_K[k], 1 - t, 1 - t_next)
            drawn_K[k] = sample_categorical(law_kT.log(), u_K[k], dtype=self.rule.dtype)
        tokens_BN = positions.replace(state.tokens, drawn_K)
        return step.finish(tokens_BN, positions)


def _bound_terms(model: Model, method: GIDD, batch: BoundBatch) -> BoundTerms:
    noise = method.noise

    def total(s_B: Tensor, step: int, term: PositionTerm) -> Tensor:
        """The sum [B] of a term over the free positions of noised sequences."""
        z_BN = noise.corrupt(batch.x_1, s_B, seed=batch.seed, step=step, index=batch.index)
        z_BN = torch.where(batch.fixed, batch.x_1, z_BN)
        positions = Positions.of(~batch.fixed)
        z_K, x_1_K = positions.take(z_BN), positions.take(batch.x_1)
        s_K = s_B[positions.sequence]
        term_K = torch.zeros_like(s_K)
        for k, logits_kV in predict_logits(model, method.source, z_BN, 1 - s_B, positions):
            p_kV = logits_kV.double().softmax(-1)
            term_K[k] = term(p_kV, z_K[k], x_1_K[k], s_K[k])
        return positions.scatter(term_K).sum(1)

    def last_step(p_kV: Tensor, z_k: Tensor, x_1_k: Tensor, _: Tensor) -> Tensor:
        law_kT = noise.step_law(p_kV, z_k, S_END, 0.0)
        return law_kT.sum(1).log() - law_kT.gather(1, x_1_k[:, None])[:, 0].log()

    low = S_END**0.25
    integral = [
        (1 - low) * 4 * v_B**3 * total(v_B**4, d, noise.divergence)
        for d, v_B in batch.strata(low, 1.0)
    ]
    s_B = torch.full_like(batch.index, S_END, dtype=torch.float64)
    end = [total(s_B, step, last_step) for step in batch.end_steps]
    return BoundTerms(torch.stack(integral), torch.stack(end))
