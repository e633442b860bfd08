"""Top-k: each step reveals the coordinates with the most confident predictions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import check_choice
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Info, Solver, State
from cwdfm.solver.proposal import check_step, propose
from cwdfm.solver.unmasking_order import (
    SCORES,
    Score,
    best_first,
    first_of,
    masked_positions,
    revealed_fraction_times,
    unmask,
)
from cwdfm.source import Source


@dataclass(frozen=True)
class TopK(Solver):
    """Reveal the k masked coordinates with the highest scores (Chang et al. 2022; Kim et al. 2025
    for the margin).

    After a step to t' at most floor(F (1 - kappa_t')) of a sequence's F free coordinates remain
    masked, the expected number under the path. The grid "kappa" therefore reveals equally many per
    step, and Cosine with the grid "t" is MaskGIT's schedule. Every step reveals at least one
    coordinate, and the last step all remaining ones. A finished sequence needs no evaluations.

    - `score`: the largest probability, its margin over the second largest, or the negative entropy
      of the unmodified prediction. The score never uses the drawn token: that would favor likely
      tokens.
    - `temperature`, `top_p`, `dtype`: options of the categorical draws.

    The model is conditioned on t = kappa^-1(fraction of the free coordinates that is revealed),
    separately for each sequence.
    """

    score: Score = "confidence"
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_choice("score", self.score, tuple(SCORES))
        check_draw(self.temperature, self.top_p, self.dtype)

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
        t_B = revealed_fraction_times(schedule, state, masked_BN)
        rows = Positions.of(masked_BN)
        scores = (SCORES[self.score],)
        proposal_BN, (score_BN,) = propose(model, source, state, t_B, rows, self, scores)
        order_BN = best_first(state, score_BN, masked_BN)
        chosen_BN = first_of(order_BN, _count(schedule, state, masked_BN, t_next))
        return unmask(source, state, proposal_BN, chosen_BN, rows, (t, t_next))


def _count(schedule: Schedule, state: State, masked_BN: Tensor, t_next: float) -> Tensor:
    """The number of coordinates that a step to t_next reveals, int64 [B]."""
    masked_B, free_B = masked_BN.sum(1), (~state.fixed).sum(1)
    if t_next == 1:
        return masked_B
    # The tolerance keeps floor() exact when rounding puts an integer slightly below itself.
    remaining = float(schedule.survival(t_next)) / state.start_survival
    remaining_B = (free_B.double() * remaining + 1e-6).floor().long()
    return torch.minimum((masked_B - remaining_B).clamp(min=1), masked_B)
