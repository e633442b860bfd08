"""Samplers that read a score: Euler steps, and the analytic ones.

Both decide for every coordinate on its own whether it moves, and then where: `temperature` and
`top_p` act on where a token goes, not on whether it does. The last step, to data, is Tweedie's rule
for either. With the absorbing graph and log-linear noise the two are one and the same.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cwdfm.baselines.sedd.graph import Graph, Move
from cwdfm.baselines.sedd.noise import Noise
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw, sample_categorical
from cwdfm.ops.random import Purpose, uniform
from cwdfm.schedule import Schedule
from cwdfm.solver import Info, Solver, State
from cwdfm.solver.base import moved
from cwdfm.solver.proposal import check_step
from cwdfm.source import Source


@dataclass(frozen=True)
class ScoreSolver(ABC):
    """One way to follow the reverse chain of a score."""

    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_draw(self.temperature, self.top_p, self.dtype)

    @abstractmethod
    def move(
        self, graph: Graph, noise: Noise, logits_KV: Tensor, x_K: Tensor, s: float, s_next: float
    ) -> Move:
        """The law of a step from s to s_next < s."""


@dataclass(frozen=True)
class ScoreEuler(ScoreSolver):
    """A first-order step: p(y) = (s - s_next) d sigma/ds Q(y, x) s_y, never more than 1 in all."""

    def move(
        self, graph: Graph, noise: Noise, logits_KV: Tensor, x_K: Tensor, s: float, s_next: float
    ) -> Move:
        rate_K, weight_KV = graph.rate(logits_KV, x_K, noise.sigma_at(s))
        go_K = ((s - s_next) * noise.rate_at(s) * rate_K).clamp(max=1)
        return Move(go_K, 1 - go_K, weight_KV)


@dataclass(frozen=True)
class Analytic(ScoreSolver):
    """Tweedie's rule: with a true score, the true law of each token after the step."""

    def move(
        self, graph: Graph, noise: Noise, logits_KV: Tensor, x_K: Tensor, s: float, s_next: float
    ) -> Move:
        return graph.tweedie(logits_KV, x_K, noise.sigma_at(s), noise.sigma_at(s_next))


@dataclass(frozen=True)
class Reverse(Solver):
    """A score's solver in the library's sampling loop, along t = 1 - s.

    With the absorbing graph the chain starts at sigma = infinity, where all is masked. The noise
    begins at sigma(1): there a share exp(-sigma(1)) of the tokens is no mask. They are drawn from
    what the network says of the fully masked sequence, as part of the first step.
    """

    rule: ScoreSolver
    graph: Graph
    noise: Noise
    without: tuple[int, ...] = ()

    @torch.no_grad()
    def step(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        state: State,
        t: float,
        t_next: float,
    ) -> tuple[State, Info]:
        check_step(t, t_next)
        x_BN = state.tokens
        sigma = self.noise.sigma_at(1 - t)
        rows = Positions.of(self.graph.rows(x_BN, state.fixed))
        b_K, i_K = rows.sequence, rows.position
        whether_K, where_K = (
            uniform(state.seed, purpose, state.index[b_K], state.step, i_K)
            for purpose in (Purpose.FORWARD, Purpose.PROPOSAL)
        )
        tokens_BN = x_BN.clone()
        sigma_B = torch.full((len(x_BN),), sigma, dtype=torch.float32, device=x_BN.device)
        for k, logits_kV in predict_logits(model, source, x_BN, sigma_B, rows):
            b_k, i_k = b_K[k], i_K[k]
            move = self._move(logits_kV, x_BN[b_k, i_k], t, t_next)
            goes_k = whether_K[k] < move.chance_K
            if bool(goes_k.any()):
                tokens_BN[b_k[goes_k], i_k[goes_k]] = sample_categorical(
                    move.weight_KV[goes_k],
                    where_K[k][goes_k],
                    temperature=self.rule.temperature,
                    top_p=self.rule.top_p,
                    dtype=self.rule.dtype,
                )
        went_BN = tokens_BN != x_BN
        none_BN = torch.zeros_like(went_BN)
        info = Info(t, t_next, went_BN, none_BN, len(rows), rows.mask.any(1))
        return moved(source, state, tokens_BN), info

    def _move(self, logits_KV: Tensor, x_K: Tensor, t: float, t_next: float) -> Move:
        sigma = self.noise.sigma_at(1 - t)
        if self.without:
            logits_KV = self.graph.conditioned(logits_KV, x_K, sigma, list(self.without))
        if t_next == 1:
            move = self.graph.tweedie(logits_KV, x_K, sigma, 0.0)
            return move.without(x_K, list(self.without)) if self.without else move
        move = self.rule.move(self.graph, self.noise, logits_KV, x_K, 1 - t, 1 - t_next)
        if t > 0:
            return move
        kept = self.graph.unmasked(sigma)
        chance_K = kept + (1 - kept) * move.chance_K
        return replace(move, go_K=chance_K, stay_K=1 - chance_K)
