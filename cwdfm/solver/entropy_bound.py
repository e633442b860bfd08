"""Entropy-bounded unmasking: reveal as many confident coordinates per step as a bound allows."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.errors import InputError, check_choice
from cwdfm.schedule import Schedule
from cwdfm.solver.base import State
from cwdfm.solver.unmasking_order import SCORES, BestFirst, Score


@dataclass(frozen=True)
class EntropyBound(BestFirst):
    """Reveal the longest prefix of the sorted masked coordinates with sum H - max H <= gamma
    (Ben-Hamu et al. 2025), where H are the entropies of the model's predictions in nats.

    sum H - max H bounds the error of drawing these tokens independently, because their joint
    entropy is at least the largest single entropy. gamma = 0 reveals one coordinate per step, plus
    those with zero entropy. gamma = inf reveals everything at once. The step size does not matter,
    but the bound holds in the last step only with at least as many steps as free coordinates.

    - `error`: the score that sorts the coordinates, most confident first: entropy, confidence or
      margin.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    gamma: float
    error: Score = "entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.gamma, int | float) and not isinstance(self.gamma, bool)
        if not number or not self.gamma >= 0:
            raise InputError(
                f"gamma must be a number >= 0, in nats, got {self.gamma!r}; 0 reveals one "
                f"coordinate per step, inf everything at once",
                fields=("gamma",),
            )
        check_choice("error", self.error, tuple(SCORES))

    @property
    def scores(self) -> tuple[Score, ...]:
        return ("entropy",) if self.error == "entropy" else ("entropy", self.error)

    def count(
        self,
        schedule: Schedule,
        state: State,
        masked_B: Tensor,
        scored: list[Tensor],
        t_next: float,
    ) -> Tensor:
        entropy_BN = -scored[0]
        # sum - max over a prefix is 0 for one coordinate, and nondecreasing in the length.
        error_BN = entropy_BN.cumsum(1) - entropy_BN.cummax(1).values
        return (error_BN <= self.gamma).long().cumprod(1).sum(1)
