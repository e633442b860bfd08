"""Samplers of a score: Euler steps and analytic steps.

Both decide for every position whether it jumps and then where to: `temperature` and `top_p` change
the target of a jump, not its probability. The last step, to data, follows Tweedie's rule in both.
With the absorbing graph and log-linear noise the two samplers are identical.

Shapes: B batch, N length, K positions, k positions of a chunk, V data tokens.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cwdfm.baselines.sedd.graph import Graph, JumpLaw
from cwdfm.baselines.sedd.noise import Noise
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.ops.random import Purpose, uniform
from cwdfm.solver import Info, State
from cwdfm.solver.base import DrawOptions
from cwdfm.solver.step import Step, StepSolver


@dataclass(frozen=True)
class ScoreSolver(DrawOptions, ABC):
    """A step rule for the reverse chain of a score."""

    @abstractmethod
    def law(
        self, graph: Graph, noise: Noise, logits_KV: Tensor, x_K: Tensor, s: float, s_next: float
    ) -> JumpLaw:
        """The distribution of a step from s to s_next < s."""


@dataclass(frozen=True)
class ScoreEuler(ScoreSolver):
    """A first-order step: p(y) = (s - s_next) d sigma/ds Q(y, x) s_y, with a total of at most 1."""

    def law(
        self, graph: Graph, noise: Noise, logits_KV: Tensor, x_K: Tensor, s: float, s_next: float
    ) -> JumpLaw:
        rate_K, weight_KV = graph.reverse_rate(logits_KV, x_K, noise.sigma_at(s))
        jump_K = ((s - s_next) * noise.rate_at(s) * rate_K).clamp(max=1)
        return JumpLaw(jump_K, 1 - jump_K, weight_KV)


@dataclass(frozen=True)
class Analytic(ScoreSolver):
    """Tweedie's rule: with the true score, the true distribution of each token after a step."""

    def law(
        self, graph: Graph, noise: Noise, logits_KV: Tensor, x_K: Tensor, s: float, s_next: float
    ) -> JumpLaw:
        return graph.tweedie(logits_KV, x_K, noise.sigma_at(s), noise.sigma_at(s_next))


@dataclass(frozen=True)
class ReverseChain(StepSolver):
    """A step rule as a `Solver` of the library's sampling loop, along t = 1 - s.

    With the absorbing graph the initial sequence is fully masked, as at sigma = infinity. The noise
    schedule begins at sigma(1), where a fraction exp(-sigma(1)) of the tokens is not masked. These
    are drawn from the network's prediction for the fully masked sequence, in the first step.

    `banned_tokens`: tokens that are never sampled.
    """

    rule: ScoreSolver
    graph: Graph
    noise: Noise
    banned_tokens: tuple[int, ...] = ()

    def take(self, step: Step) -> tuple[State, Info]:
        source, state, t, t_next = step.source, step.state, step.t, step.t_next
        x_BN = state.tokens
        positions = Positions.of(source.movable(x_BN, state.fixed))
        b_K, i_K = positions.sequence, positions.position
        jump_u_K, target_u_K = (
            uniform(state.seed, purpose, state.index[b_K], state.step, i_K)
            for purpose in (Purpose.FORWARD, Purpose.PROPOSAL)
        )
        tokens_BN = x_BN.clone()
        sigma = self.noise.sigma_at(1 - t)
        sigma_B = torch.full((len(x_BN),), sigma, dtype=torch.float32, device=x_BN.device)
        for k, logits_kV in predict_logits(step.model, source, x_BN, sigma_B, positions):
            b_k, i_k = b_K[k], i_K[k]
            law = self._law(logits_kV, x_BN[b_k, i_k], t, t_next)
            jumps_k = jump_u_K[k] < law.prob_K
            if bool(jumps_k.any()):
                drawn = self.rule.draw(law.log_weight_KV[jumps_k], target_u_K[k][jumps_k])
                tokens_BN[b_k[jumps_k], i_k[jumps_k]] = drawn
        return step.finish(tokens_BN, positions)

    def _law(self, logits_KV: Tensor, x_K: Tensor, t: float, t_next: float) -> JumpLaw:
        sigma, banned = self.noise.sigma_at(1 - t), list(self.banned_tokens)
        if banned:
            logits_KV = self.graph.excluding(logits_KV, x_K, sigma, banned)
        if t_next == 1:
            law = self.graph.tweedie(logits_KV, x_K, sigma, 0.0)
            return law.excluding(x_K, banned) if banned else law
        law = self.rule.law(self.graph, self.noise, logits_KV, x_K, 1 - t, 1 - t_next)
        if t > 0:
            return law
        kept = self.graph.unmasked_fraction(sigma)
        jump_K = kept + (1 - kept) * law.prob_K
        return replace(law, jump_K=jump_K, stay_K=1 - jump_K)
