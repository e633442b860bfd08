"""Top-k: each step reveals the coordinates with the most confident predictions."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.errors import check_choice
from cwdfm.schedule import Schedule
from cwdfm.solver.base import State
from cwdfm.solver.unmasking_order import SCORES, BestFirst, Score


@dataclass(frozen=True)
class TopK(BestFirst):
    """Reveal the k masked coordinates with the highest scores (Chang et al. 2022; Kim et al. 2025
    for the margin).

    After a step to t' at most floor(F (1 - kappa_t')) of a sequence's F free coordinates remain
    masked, the expected number under the path. The grid "kappa" therefore reveals equally many per
    step, and Cosine with the grid "t" is MaskGIT's schedule. Every step reveals at least one
    coordinate.

    - `score`: the largest probability, its margin over the second largest, or the negative entropy
      of the prediction. The score never uses the drawn token: that would favor likely tokens.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    score: Score = "confidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("score", self.score, tuple(SCORES))

    @property
    def scores(self) -> tuple[Score, ...]:
        return (self.score,)

    def count(
        self,
        schedule: Schedule,
        state: State,
        masked_B: Tensor,
        scored: list[Tensor],
        t_next: float,
    ) -> Tensor:
        # The tolerance keeps floor() exact when rounding puts an integer slightly below itself.
        remaining = float(schedule.survival(t_next)) / state.start_survival
        remaining_B = ((~state.fixed).sum(1).double() * remaining + 1e-6).floor().long()
        return (masked_B - remaining_B).clamp(min=1)
