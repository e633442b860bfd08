"""Entropy pace: reveal coordinates that are apart, with a share of the entropy in every step."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cwdfm.errors import check_positive
from cwdfm.solver.step import Step
from cwdfm.solver.unmasking_order import BestFirst, Score, longest_prefix


@dataclass(frozen=True)
class EntropyPace(BestFirst):
    """Reveal the most certain masked coordinates that are more than `distance` apart, with the same
    share of the remaining entropy in every step.

    With H the entropies of the model's predictions, a step from t to t' reveals the longest prefix
    of the sorted coordinates with

        sum H - max H <= pace (kappa_t' - kappa_t) / (1 - kappa_t) sum_masked H.

    The left side bounds the error of drawing these tokens independently, as in `EntropyBound`. The
    right side is the share of the entropy that the path resolves in this step, so the error is
    spread over all steps of any budget. The grid "kappa" makes the shares of all steps equal. A
    smaller pace needs more evaluations, at most the number of steps.

    - `distance`, `temperature`, `top_p`, `dtype`: see `BestFirst` and `DrawOptions`.
    """

    order = "entropy"
    scores = ("entropy",)

    pace: float = 0.5
    distance: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("pace", self.pace)

    def count(
        self, step: Step, free_B: Tensor, masked_B: Tensor, scored: dict[Score, Tensor]
    ) -> Tensor:
        entropy_BN, schedule = -scored["entropy"], step.schedule
        rank_N = torch.arange(entropy_BN.shape[1], device=entropy_BN.device)
        total_B = entropy_BN.where(rank_N < masked_B[:, None], 0.0).sum(1)
        share = 1 - float(schedule.survival(step.t_next)) / float(schedule.survival(step.t))
        return longest_prefix(entropy_BN, self.pace * share * total_B[:, None])
