"""The context-weighted path, which draws m ~ Binomial(N, kappa_t) coordinates by their alpha."""

from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from cwdfm.errors import InputError, check_instance
from cwdfm.path.algorithm1 import reveal_drawn
from cwdfm.path.base import MixturePath, Path, RevealOptions
from cwdfm.schedule import Schedule
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class ContextPath(Path):
    """The exact marginal p~_t at time t of the chain with rates alpha^i(x_t) lambda_t.

    By Theorem 1 the number m of revealed coordinates is Binomial(N, kappa_t). Algorithm 1 draws m,
    then m coordinates one by one, each with probability alpha^i / sum_j alpha^j.
    """

    weight: Weight

    def __post_init__(self) -> None:
        super().__post_init__()
        check_instance("weight", self.weight, Weight, "Neighbor(radius=1, scale=1.0)")
        if self.weight.needs_logits:
            raise InputError(
                f"the context-weighted path cannot use {self.weight}: it depends on the model's "
                f"logits and would need a model call for each revealed coordinate; use a weight of "
                f"the reveal mask (Neighbor, Distance) in the path, and this one in the solver"
            )

    @property
    def context_weight(self) -> Weight:
        return self.weight

    def reveal(self, kappa: Tensor, length: int, **options: Unpack[RevealOptions]) -> Tensor:
        return reveal_drawn(self.weight, kappa, length, **options)


def path_for(source: Source, schedule: Schedule, weight: Weight | None) -> Path:
    """The context-weighted path with this weight, or the mixture path if it is None."""
    if weight is None:
        return MixturePath(source, schedule)
    return ContextPath(source, schedule, weight)
