"""The mixture path: coordinates are revealed independently."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.path.base import Path, independent_reveals


@dataclass(frozen=True)
class MixturePath(Path):
    """p_t(x^i | x_0, x_1) = (1 - kappa_t) delta(x^i, x_0^i) + kappa_t delta(x^i, x_1^i)."""

    @property
    def context_weight(self) -> None:
        return None

    def reveal(
        self,
        kappa: Tensor,
        length: int,
        *,
        seed: int,
        step: int,
        index: Tensor | None,
        fixed: Tensor | None,
    ) -> Tensor:
        return independent_reveals(kappa, length, seed=seed, step=step, index=index, fixed=fixed)
