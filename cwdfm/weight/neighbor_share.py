"""NeighborShare: Neighbor as the paper's main text prints it, in proportion to the count."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.weight.base import ContextWeight
from cwdfm.weight.neighbor import Boundary, Neighbor


@dataclass(frozen=True)
class NeighborShare(ContextWeight):
    """alpha^i ~ n^i, the number of revealed coordinates within `radius` of i.

    Without a revealed neighbour a coordinate waits, until the last step if need be. Where nothing
    is revealed, as at t = 0, the formula is 0 / 0, and all are equal. (Where anything is, some
    masked coordinate stands beside it.)
    """

    radius: int = 1
    boundary: Boundary = "circular"

    def __post_init__(self) -> None:
        _ = self.window  # which refuses what it cannot be

    @property
    def window(self) -> Neighbor:
        """Whose neighbours are counted."""
        return Neighbor(self.radius, boundary=self.boundary)

    @property
    def equivariant(self) -> bool:
        return self.window.equivariant

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        count_BN = self.window.count(revealed_BN)
        some_B1 = revealed_BN.any(1, keepdim=True)
        return torch.where(some_B1, count_BN.double().log(), 0.0)
