"""Top-k: in each step the coordinates that the model is surest of are unmasked."""

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
    masked_coordinates,
    share_times,
    unmask,
)
from cwdfm.source import Source


@dataclass(frozen=True)
class TopK(Solver):
    """The k best-scored masked coordinates take their proposals (Chang et al. 2022; Kim et al.
    2025 for the margin).

    After a step to t' at most floor(F (1 - kappa_t')) of a sequence's F free coordinates stay
    masked, as many as the path masks on average. So the grid "kappa" spreads them evenly over the
    steps, and Cosine with the grid "t" is MaskGIT's schedule. Every step unmasks at least one, the
    last step all that are left. With as many steps as free coordinates, or more, that is one a step
    for every convex kappa; a finished sequence costs nothing.

    - `score`: the largest probability, its margin over the second largest, or minus the entropy;
      of the model's own prediction, whatever temperature and top_p. It is never the probability of
      the token that was drawn: an order that looks at the draw would prefer likely tokens.
    - `temperature`, `top_p`, `dtype`: of the categorical draws.

    A model is told t = kappa^-1(share of the free coordinates that is revealed), per sequence.
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
        masked_BN = masked_coordinates(self, source, state)
        t_B = share_times(schedule, state, masked_BN)
        rows = Positions.of(masked_BN)
        asked = (model, source, state, t_B, rows, self)
        proposal_BN, (score_BN,) = propose(*asked, (SCORES[self.score],))
        order_BN = best_first(state, score_BN, masked_BN)
        chosen_BN = first_of(order_BN, _count(schedule, state, masked_BN, t_next))
        return unmask(source, state, proposal_BN, chosen_BN, rows, (t, t_next))


def _count(schedule: Schedule, state: State, masked_BN: Tensor, t_next: float) -> Tensor:
    """How many coordinates a step to t_next unmasks, int64 [B]."""
    masked_B, free_B = masked_BN.sum(1), (~state.fixed).sum(1)
    if t_next == 1:
        return masked_B
    # The slack keeps a whole number whole, whatever the rounding of kappa.
    stay = float(schedule.survival(t_next)) / state.left
    stay_B = (free_B.double() * stay + 1e-6).floor().long()
    return torch.minimum((masked_B - stay_B).clamp(min=1), masked_B)
