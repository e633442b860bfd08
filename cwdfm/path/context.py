"""The context-weighted path: as many reveals as the mixture path, placed by a context weight."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.errors import InputError, check_instance
from cwdfm.path.algorithm1 import reveal_in_order
from cwdfm.path.base import Path
from cwdfm.random import Purpose, count_below_B, uniform_BN
from cwdfm.weight import Weight


@dataclass(frozen=True)
class ContextPath(Path):
    """p~_t: the time marginal of the chain with rates alpha^i(x_t) lambda_t, drawn exactly.

    By Theorem 1 the number m of revealed coordinates is Binomial(N, kappa_t). Algorithm 1 draws m
    and then m coordinates one by one, each with probability alpha^i / sum alpha.
    """

    weight: Weight

    def __post_init__(self) -> None:
        check_instance("weight", self.weight, Weight, "Neighbor(radius=1, scale=1.0)")
        if self.weight.needs_logits:
            raise InputError(
                f"the context-weighted path cannot use {self.weight}: it depends on the model's "
                f"logits, which would mean a model call for each revealed coordinate; use a weight "
                f"of the reveal mask alone (Neighbor, Distance) here and the other in the solver"
            )

    @property
    def context_weight(self) -> Weight:
        return self.weight

    def reveal(
        self, start_BN: Tensor, kappa_B: Tensor, index_B: Tensor, *, seed: int, step: int
    ) -> Tensor:
        # A sum of N independent reveals is Binomial(N, kappa), with no binomial sampler needed.
        count_B = count_below_B(seed, Purpose.REVEAL, index_B, step, kappa_B, start_BN)
        u_BN = uniform_BN(seed, Purpose.ORDER, index_B, step, start_BN.shape[1])
        return reveal_in_order(self.weight, start_BN, count_B, u_BN)
