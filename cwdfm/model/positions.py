"""`Positions`: the coordinates of a batch at which a model's logits are needed."""

from functools import cached_property

import torch
from torch import Tensor

from cwdfm.ops.host_copy import HostCopy


class Positions:
    """K coordinates of a batch [B, N], in row-major order.

    `flat` [K] holds the flat indices b N + i, and `active` [A] the sequences that contain them,
    with None for all sequences.
    """

    def __init__(self, shape: tuple[int, int], flat_K: Tensor, active_A: Tensor | None) -> None:
        self.shape, self.flat, self.active = shape, flat_K, active_A

    @staticmethod
    def of(mask_BN: Tensor, *, dense: bool = False) -> "Positions":
        """The coordinates where a mask is true.

        With `dense`, no sequence is skipped, because (nearly) all contain some. On a GPU the host
        then need not wait for the mask before it calls the model.
        """
        return _MaskPositions(mask_BN, dense)

    @cached_property
    def mask(self) -> Tensor:
        """The coordinates as a mask, bool [B, N]."""
        return self.scatter(torch.ones_like(self.flat, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.flat)

    @property
    def sequence(self) -> Tensor:
        """The sequence index b [K]."""
        return self.flat // self.shape[1]

    @property
    def position(self) -> Tensor:
        """The position i [K] within the sequence."""
        return self.flat % self.shape[1]

    def take(self, x_BN: Tensor) -> Tensor:
        """The values [K] of x [B, N]; [K, D] of x [B, N, D]."""
        return x_BN.flatten(0, 1).index_select(0, self.flat)

    def flat_within(self, active_A: Tensor) -> Tensor:
        """The flat indices [K] in a batch that consists of the active sequences only."""
        slot_B = torch.empty(self.shape[0], dtype=torch.int64, device=active_A.device)
        slot_B[active_A] = torch.arange(len(active_A), device=active_A.device)
        return slot_B[self.sequence] * self.shape[1] + self.position

    def scatter(self, value_K: Tensor) -> Tensor:
        """A tensor [B, N] with these values at the coordinates and 0 elsewhere."""
        zeros_BN = torch.zeros(self.shape, dtype=value_K.dtype, device=value_K.device)
        return self.replace(zeros_BN, value_K)

    def replace(self, x_BN: Tensor, value_K: Tensor) -> Tensor:
        """A copy of x [B, N] with these values at the coordinates."""
        return x_BN.flatten().index_copy(0, self.flat, value_K).view_as(x_BN)


class _MaskPositions(Positions):
    """The coordinates where a mask is true.

    On a GPU their number is copied to the host asynchronously. The host waits for it on first use;
    work launched before that keeps the GPU busy.
    """

    def __init__(self, mask_BN: Tensor, dense: bool) -> None:
        self.shape = mask_BN.shape[0], mask_BN.shape[1]
        self.dense = dense and mask_BN.is_cuda  # on a CPU there is nothing to wait for
        self.__dict__["mask"] = mask_BN
        self._count = HostCopy(mask_BN.sum(1))
        self._padded = _compact(mask_BN.flatten()) if mask_BN.is_cuda else None

    @cached_property
    def flat(self) -> Tensor:  # type: ignore[override]
        if self._padded is None:
            return self.mask.flatten().nonzero()[:, 0]
        return self._padded[: int(self._count.value.sum())]

    @cached_property
    def active(self) -> Tensor | None:  # type: ignore[override]
        if self.dense:
            return None
        nonempty_B = self._count.value > 0
        return None if bool(nonempty_B.all()) else nonempty_B.nonzero()[:, 0].to(self.mask.device)


def _compact(mask_M: Tensor) -> Tensor:
    """The indices where a mask is true, in order, padded to [M + 1], without synchronization."""
    size = len(mask_M)
    padded = torch.empty(size + 1, dtype=torch.int64, device=mask_M.device)
    padded[torch.where(mask_M, mask_M.cumsum(0) - 1, size)] = torch.arange(
        size, device=mask_M.device
    )
    return padded
