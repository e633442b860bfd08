"""The mixture path: coordinates are revealed independently."""

from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from cwdfm.path.base import Path, RevealOptions, independent_reveals


@dataclass(frozen=True)
class MixturePath(Path):
    """p_t(x^i | x_0, x_1) = (1 - kappa_t) delta(x^i, x_0^i) + kappa_t delta(x^i, x_1^i)."""

    @property
    def context_weight(self) -> None:
        return None

    def reveal(self, kappa: Tensor, length: int, **options: Unpack[RevealOptions]) -> Tensor:
        return independent_reveals(kappa, length, **options)
