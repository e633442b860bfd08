"""Coordinates of a batch at which a model's answer is wanted."""

from functools import cached_property

import torch
from torch import Tensor

from cwdfm.ops.host_copy import Told


class Rows:
    """Some coordinates of a batch [B, N], in row-major order."""

    def __init__(self, shape: tuple[int, int], place_K: Tensor, active_A: Tensor | None) -> None:
        """Those at place_K = b N + i, all in the sequences active_A; None stands for all."""
        self.shape, self.place, self.active = shape, place_K, active_A

    @staticmethod
    def of(mask_BN: Tensor, *, crowded: bool = False) -> "Rows":
        """Those where a mask is true.

        `crowded`: all sequences have some, or so nearly that it is not worth finding out which
        have none before the model is asked.
        """
        return _Masked(mask_BN, crowded)

    @cached_property
    def mask(self) -> Tensor:
        """Where they are, bool [B, N]."""
        return self.put(torch.ones_like(self.place, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.place)

    @property
    def sequence(self) -> Tensor:
        """The sequence [K] of each."""
        return self.place // self.shape[1]

    @property
    def position(self) -> Tensor:
        """The position [K] of each."""
        return self.place % self.shape[1]

    def take(self, x_BN: Tensor) -> Tensor:
        """The values [K] there; of vectors [B, N, D], [K, D]."""
        return x_BN.flatten(0, 1).index_select(0, self.place)

    def among(self, active_A: Tensor) -> Tensor:
        """Their places [K] in a batch of the active sequences alone."""
        slot_B = torch.empty(self.shape[0], dtype=torch.int64, device=active_A.device)
        slot_B[active_A] = torch.arange(len(active_A), device=active_A.device)
        return slot_B[self.sequence] * self.shape[1] + self.position

    def put(self, value_K: Tensor) -> Tensor:
        """Values [B, N] from those there, and 0 elsewhere."""
        blank_BN = torch.zeros(self.shape, dtype=value_K.dtype, device=value_K.device)
        return blank_BN.flatten().index_copy(0, self.place, value_K).view_as(blank_BN)

    def replace(self, x_BN: Tensor, value_K: Tensor) -> Tensor:
        """x_BN with other values there."""
        return x_BN.flatten().index_copy(0, self.place, value_K).view_as(x_BN)


class _Masked(Rows):
    """Those where a mask is true.

    How many there are a GPU must tell the host. It is asked here, and waited for where the answer
    is first needed: what is launched in between keeps the GPU busy.
    """

    def __init__(self, mask_BN: Tensor, crowded: bool) -> None:
        self.shape = mask_BN.shape[0], mask_BN.shape[1]
        self.crowded = crowded and mask_BN.is_cuda  # elsewhere there is nothing to wait for
        self.__dict__["mask"] = mask_BN
        self._count = Told(mask_BN.sum(1))
        self._room = _compacted(mask_BN.flatten()) if mask_BN.is_cuda else None

    @cached_property
    def place(self) -> Tensor:  # type: ignore[override]
        if self._room is None:
            return self.mask.flatten().nonzero()[:, 0]
        return self._room[: int(self._count.value.sum())]

    @cached_property
    def active(self) -> Tensor | None:  # type: ignore[override]
        if self.crowded:
            return None
        there_B = self._count.value > 0
        return None if bool(there_B.all()) else there_B.nonzero()[:, 0].to(self.mask.device)


def _compacted(mask_M: Tensor) -> Tensor:
    """Where a mask is true, in order, and anything behind: [M + 1], without waiting for a count."""
    size = len(mask_M)
    room = torch.empty(size + 1, dtype=torch.int64, device=mask_M.device)
    room[torch.where(mask_M, mask_M.cumsum(0) - 1, size)] = torch.arange(size, device=mask_M.device)
    return room
