"""Entropy-bounded unmasking: as many coordinates a step as the model is sure enough of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice
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
class EntropyBound(Solver):
    """The longest run of the surest masked coordinates with sum H - max H <= gamma (Ben-Hamu et
    al. 2025), H being the entropies in nats of the model's predictions.

    sum H - max H bounds what drawing these tokens independently loses: their joint entropy is at
    least the largest single one. gamma = 0 unmasks one coordinate a step, and with it those that
    are certain; gamma = inf everything at once.

    - `error`: by what the coordinates are sorted, surest first: entropy, confidence or margin.
    - `temperature`, `top_p`, `dtype`: of the categorical draws. Entropies and the order are those
      of the model's own prediction.

    The sampler sets its own pace: times do not matter, and a finished sequence costs nothing. The
    last step, to t = 1, unmasks all that is left, so give as many steps as there are free
    coordinates for the bound to hold throughout. A model is told t = kappa^-1(share of the free
    coordinates that is revealed), per sequence.
    """

    gamma: float
    error: Score = "entropy"
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        number = isinstance(self.gamma, int | float) and not isinstance(self.gamma, bool)
        if not number or not self.gamma >= 0:
            raise InputError(
                f"gamma must be a number >= 0, in nats, got {self.gamma!r}; 0 unmasks one "
                f"coordinate a step, inf everything at once"
            )
        check_choice("error", self.error, tuple(SCORES))
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
        scores = dict.fromkeys(("entropy", self.error))  # one or two, in this order
        rows = Positions.of(masked_BN)
        asked = (model, source, state, t_B, rows, self)
        proposal_BN, scored = propose(*asked, [SCORES[name] for name in scores])
        order_BN = best_first(state, scored[-1], masked_BN)
        count_B = masked_BN.sum(1)
        if t_next < 1:
            sorted_BN = (-scored[0]).gather(1, order_BN)
            count_B = torch.minimum(self._longest(sorted_BN), count_B)
        chosen_BN = first_of(order_BN, count_B)
        return unmask(source, state, proposal_BN, chosen_BN, rows, (t, t_next))

    def _longest(self, entropy_BN: Tensor) -> Tensor:
        """The length [B] of the longest run from the start with sum - max <= gamma.

        It is at least 1, and sum - max never falls with the length.
        """
        loss_BN = entropy_BN.cumsum(1) - entropy_BN.cummax(1).values
        return (loss_BN <= self.gamma).long().cumprod(1).sum(1)
