"""Unmasking orders: solvers that choose which coordinates to reveal next.

With a mask source and the true posterior, revealing one coordinate at a time samples the data
distribution in any order. The order may depend on anything known before the tokens are drawn: on
the model's prediction, but not on the proposed tokens.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import DrawOptions, Info, Solver, State, advance, check_step
from cwdfm.solver.proposal import propose
from cwdfm.source import Source
from cwdfm.weight import Confidence, Entropy, Margin, PredictionWeight

Score = Literal["confidence", "margin", "entropy"]

# Confidence scores of a prediction p: max p, p(best) - p(second best), -H(p). Higher is better.
SCORES: dict[Score, PredictionWeight] = {
    "confidence": Confidence(),
    "margin": Margin(),
    "entropy": Entropy(),
}


@dataclass(frozen=True)
class BestFirst(DrawOptions, Solver):
    """Reveal the masked coordinates with the most confident predictions first.

    The model is conditioned on t = kappa^-1(fraction of the free coordinates that is revealed),
    separately for each sequence. The last step, to t_next = 1, reveals all remaining coordinates.
    A finished sequence needs no further evaluations.
    """

    @property
    @abstractmethod
    def scores(self) -> tuple[Score, ...]:
        """The scores that a step needs. The last one sorts the coordinates."""

    @abstractmethod
    def count(
        self,
        schedule: Schedule,
        state: State,
        masked_B: Tensor,
        scored: list[Tensor],
        t_next: float,
    ) -> Tensor:
        """How many of the masked_B [B] coordinates a step to t_next < 1 reveals, int64 [B].

        `scored` are the `scores` [B, N], sorted; those of coordinates not masked come last.
        """

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
        masked_BN = masked_positions(self, source, state)
        masked_B, free_B = masked_BN.sum(1), (~state.fixed).sum(1).clamp(min=1)
        t_B = schedule.inverse(1 - state.start_survival * masked_B.double() / free_B)
        rows = Positions.of(masked_BN)
        scores = [SCORES[name] for name in self.scores]
        proposal_BN, scored = propose(model, source, state, t_B, rows, self, scores)
        order_BN = best_first(state, scored[-1], masked_BN)
        count_B = masked_B
        if t_next < 1:
            scored = [score_BN.gather(1, order_BN) for score_BN in scored]
            count_B = self.count(schedule, state, masked_B, scored, t_next).minimum(masked_B)
        chosen_BN = first_of(order_BN, count_B)
        return unmask(source, state, proposal_BN, chosen_BN, rows, (t, t_next))


def masked_positions(solver: Solver, source: Source, state: State) -> Tensor:
    """The coordinates that are still masked, bool [B, N]. Requires a mask source."""
    if not source.marks_noise:
        raise InputError(
            f"{type(solver).__name__} reveals each token once, and {source} does not mark which "
            f"tokens are masked; use a MaskSource, or the Euler solver"
        )
    return source.movable(state.tokens, state.fixed)


def best_first(state: State, score_BN: Tensor, masked_BN: Tensor) -> Tensor:
    """Sort the coordinates by descending score, int64 [B, N], masked coordinates first.

    Ties are broken at random.
    """
    u_BN = uniform_BN(state.seed, Purpose.TIE, state.index, state.step, score_BN.shape[1])
    shuffled_BN = u_BN.argsort(dim=1)
    score_BN = score_BN.masked_fill(~masked_BN, -torch.inf).gather(1, shuffled_BN)
    return shuffled_BN.gather(1, score_BN.argsort(dim=1, descending=True, stable=True))


def first_of(order_BN: Tensor, count_B: Tensor) -> Tensor:
    """Mark the first count_B coordinates of each sequence's order, bool [B, N]."""
    place_N = torch.arange(order_BN.shape[1], device=order_BN.device)
    first_BN = place_N < count_B[:, None]
    return torch.zeros_like(first_BN).scatter(1, order_BN, first_BN)


def unmask(
    source: Source,
    state: State,
    proposal_BN: Tensor,
    chosen_BN: Tensor,
    rows: Positions,
    times: tuple[float, float],
) -> tuple[State, Info]:
    """Move to the proposals at chosen_BN. The logits were evaluated at `rows`."""
    tokens_BN = torch.where(chosen_BN, proposal_BN, state.tokens)
    none_BN = torch.zeros_like(chosen_BN)
    info = Info(*times, chosen_BN, none_BN, len(rows), rows.mask.any(1))
    return advance(source, state, tokens_BN), info
