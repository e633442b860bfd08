"""Entropy-bounded unmasking: reveal as many confident coordinates per step as a bound allows."""

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
    masked_positions,
    revealed_fraction_times,
    unmask,
)
from cwdfm.source import Source


@dataclass(frozen=True)
class EntropyBound(Solver):
    """Reveal the longest prefix of the sorted masked coordinates with sum H - max H <= gamma
    (Ben-Hamu et al. 2025), where H are the entropies of the model's predictions in nats.

    sum H - max H bounds the error of drawing these tokens independently, because their joint
    entropy is at least the largest single entropy. gamma = 0 reveals one coordinate per step, plus
    those with zero entropy. gamma = inf reveals everything at once.

    - `error`: the score that sorts the coordinates, most confident first: entropy, confidence or
      margin.
    - `temperature`, `top_p`, `dtype`: options of the categorical draws. Entropies and scores use
      the unmodified prediction.

    The step size does not matter, and a finished sequence needs no further evaluations. The last
    step, to t = 1, reveals all remaining coordinates, so the bound holds throughout only with at
    least as many steps as free coordinates. The model is conditioned on t = kappa^-1(fraction of
    the free coordinates that is revealed), separately for each sequence.
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
                f"gamma must be a number >= 0, in nats, got {self.gamma!r}; 0 reveals one "
                f"coordinate per step, inf everything at once",
                fields=("gamma",),
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
        masked_BN = masked_positions(self, source, state)
        t_B = revealed_fraction_times(schedule, state, masked_BN)
        names = dict.fromkeys(("entropy", self.error))  # one or two distinct scores
        rows = Positions.of(masked_BN)
        scores = [SCORES[name] for name in names]
        proposal_BN, scored = propose(model, source, state, t_B, rows, self, scores)
        order_BN = best_first(state, scored[-1], masked_BN)
        count_B = masked_BN.sum(1)
        if t_next < 1:
            sorted_BN = (-scored[0]).gather(1, order_BN)
            count_B = torch.minimum(self._prefix_length(sorted_BN), count_B)
        chosen_BN = first_of(order_BN, count_B)
        return unmask(source, state, proposal_BN, chosen_BN, rows, (t, t_next))

    def _prefix_length(self, entropy_BN: Tensor) -> Tensor:
        """The length [B] of the longest prefix with sum - max <= gamma.

        It is at least 1, and sum - max is nondecreasing in the length.
        """
        error_BN = entropy_BN.cumsum(1) - entropy_BN.cummax(1).values
        return (error_BN <= self.gamma).long().cumprod(1).sum(1)
