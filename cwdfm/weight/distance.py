"""Distance weights: coordinates close to a revealed one move first."""

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from cwdfm.errors import MAX_LENGTH, check_choice, check_integer, check_scale
from cwdfm.weight.base import ContextWeight
from cwdfm.weight.neighbor import WindowBoundary


@dataclass(frozen=True)
class Distance(ContextWeight):
    """alpha^i ~ exp(-scale * min(d^i, radius)), d^i = distance to the nearest revealed coordinate.

    This is the paper's second proxy for uncertainty. `radius` caps the distance because, as the
    paper finds, the proxy saturates early. Distances wrap around with boundary="circular", but not
    with "cut"; for "auto" see `Neighbor`.
    """

    scale: float = 1.0
    radius: int = 16
    boundary: WindowBoundary = "auto"

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)
        check_integer("radius", self.radius, most=MAX_LENGTH)
        check_choice("boundary", self.boundary, get_args(WindowBoundary))

    @property
    def equivariant(self) -> bool:
        return self.boundary != "cut"

    def with_prompt(self) -> "Distance":
        return replace(self, boundary="cut") if self.boundary == "auto" else self

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        return -self.scale * self.distance(revealed_BN).double()

    def distance(self, revealed_BN: Tensor) -> Tensor:
        """Distance to the nearest revealed coordinate, capped at the radius, int64 [B, N]."""
        length = revealed_BN.shape[1]
        copies = 3 if self.boundary != "cut" else 1
        tiled_BL = revealed_BN.repeat(1, copies)
        before = self._since_revealed(tiled_BL)
        after = self._since_revealed(tiled_BL.flip(1)).flip(1)
        nearest = torch.minimum(before, after)
        middle = nearest[:, length : 2 * length] if copies == 3 else nearest
        return middle.clamp(max=self.radius)

    def _since_revealed(self, revealed_BL: Tensor) -> Tensor:
        """The distance to the nearest revealed coordinate on the left; >= radius if none."""
        position_L = torch.arange(revealed_BL.shape[1], device=revealed_BL.device)
        last_BL = torch.where(revealed_BL, position_L, -self.radius).cummax(dim=1).values
        return position_L - last_BL
