"""Neighbor weights: coordinates with many revealed neighbors move first."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.config import added
from cwdfm.errors import InputError, check_bool, check_choice, check_integer, check_scale
from cwdfm.weight.base import ContextWeight

Boundary = Literal["circular", "cut"]
WindowBoundary = Literal["auto", "circular", "cut"]


@dataclass(frozen=True)
class Neighbor(ContextWeight):
    """alpha^i ~ exp(scale * n^i), n^i = number of revealed coordinates within `radius` of i.

    - `boundary`: with "circular" windows the first and the last coordinate are neighbors, as
      Theorem 1 requires; "cut" truncates windows at the ends of the sequence. "auto" is circular,
      except that solvers truncate the windows of sequences with a prompt, because their end is not
      next to the beginning of the prompt. A fixed first token alone is not a prompt.
    - `grid`: (height, width) of a 2-D grid, flattened in row-major order; the window is then a
      square of side 2 radius + 1.
    - `center`: whether a revealed coordinate counts itself. This affects only its weight in a loss.
    """

    radius: int = 1
    scale: float = 1.0
    boundary: WindowBoundary = "auto"
    grid: tuple[int, int] | None = None
    center: bool = added(True)

    def __post_init__(self) -> None:
        check_bool("center", self.center)
        check_integer("radius", self.radius)
        check_scale("scale", self.scale)
        check_choice("boundary", self.boundary, get_args(WindowBoundary))
        if self.grid is not None:
            if not isinstance(self.grid, tuple) or len(self.grid) != 2:
                raise InputError(f"grid must be a tuple (height, width), got {self.grid!r}")
            for size in self.grid:
                check_integer("grid's height and width", size)

    @property
    def equivariant(self) -> bool:
        return self.boundary != "cut"

    def with_prompt(self) -> "Neighbor":
        return replace(self, boundary="cut") if self.boundary == "auto" else self

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        return self.scale * self.count(revealed_BN).double()

    def count(self, revealed_BN: Tensor) -> Tensor:
        """n^i, the number of revealed coordinates in the window, int64 [B, N]."""
        axes = self._axes(revealed_BN.shape[1])
        count = revealed_BN.long().reshape(len(revealed_BN), *axes)
        for axis in range(1, count.dim()):
            count = self._window_sum(count.movedim(axis, -1)).movedim(-1, axis)
        count_BN = count.reshape(revealed_BN.shape)
        return count_BN if self.center else count_BN - revealed_BN.long()

    def neighbors(self, length: int) -> Tensor:
        """The K neighbors of each coordinate, excluding itself, int64 [N, K]; -1 past a cut end."""
        axes = self._axes(length)
        sizes = torch.tensor(axes)
        steps = [range(-r, r + 1) for r in map(self._axis_radius, axes)]
        offsets_KA = torch.tensor([o for o in product(*steps) if any(o)])
        positions_NA = torch.cartesian_prod(*map(torch.arange, axes)).reshape(length, len(axes))
        target_NKA = positions_NA[:, None, :] + offsets_KA
        inside_NK = ((target_NKA >= 0) & (target_NKA < sizes)).all(-1)
        strides = torch.tensor([1] if len(axes) == 1 else [axes[1], 1])
        index_NK = ((target_NKA % sizes) * strides).sum(-1)
        if self.boundary != "cut":
            return index_NK
        return index_NK.masked_fill(~inside_NK, -1)

    def _axes(self, length: int) -> tuple[int, ...]:
        axes = self.grid or (length,)
        if self.grid is not None and self.grid[0] * self.grid[1] != length:
            raise InputError(
                f"grid {self.grid} has {self.grid[0] * self.grid[1]} cells, but the sequence has "
                f"length {length}; set grid=(height, width) with height * width = length"
            )
        if self.boundary != "cut" and 2 * self.radius >= min(axes):
            raise InputError(
                f"radius {self.radius} is too large for {'x'.join(map(str, axes))}: a circular "
                f"window of {2 * self.radius + 1} would overlap itself; use radius below "
                f"{min(axes)}/2, or boundary='cut'",
                fields=("radius", "boundary"),
            )
        return axes

    def _axis_radius(self, size: int) -> int:
        """The radius along an axis; a cut window does not extend past the end of the axis."""
        return min(self.radius, max(1, size - 1))

    def _window_sum(self, x: Tensor) -> Tensor:
        """Sums over windows of size 2 r + 1 along the last axis, from a cumulative sum."""
        r = self._axis_radius(x.shape[-1])
        if self.boundary != "cut":
            x = torch.cat([x[..., -r:], x, x[..., :r]], dim=-1)
        else:
            x = F.pad(x, (r, r))
        total = F.pad(x.cumsum(-1), (1, 0))
        return total[..., 2 * r + 1 :] - total[..., : -2 * r - 1]


@dataclass(frozen=True)
class NeighborShare(ContextWeight):
    """alpha^i ~ n^i, the number of revealed coordinates within `radius` of i.

    This is the form in the paper's main text. A coordinate without a revealed neighbor has weight
    0: it is not revealed before it has one, except in the last step. If nothing is revealed, as at
    t = 0, the formula is 0 / 0, and all weights are set equal. (Otherwise some masked coordinate
    has a revealed neighbor.)
    """

    radius: int = 1
    boundary: WindowBoundary = "auto"
    center: bool = added(True)

    def __post_init__(self) -> None:
        _ = self.window  # validates the fields

    @property
    def window(self) -> Neighbor:
        """The weight that counts neighbors."""
        return Neighbor(self.radius, boundary=self.boundary, center=self.center)

    @property
    def equivariant(self) -> bool:
        return self.window.equivariant

    def with_prompt(self) -> "NeighborShare":
        return replace(self, boundary="cut") if self.boundary == "auto" else self

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        count_BN = self.window.count(revealed_BN)
        any_revealed_B1 = revealed_BN.any(1, keepdim=True)
        return torch.where(any_revealed_B1, count_BN.double().log(), 0.0)
