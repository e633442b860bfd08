"""Coordinates of a batch at which a model's answer is wanted."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Some coordinates of a batch [B, N], in row-major order.

    How many there are the host learns by waiting for the device: here, once.
    """

    mask: Tensor  # [B, N] bool
    place: Tensor  # [K] int64: b N + i

    @classmethod
    def of(cls, mask_BN: Tensor) -> "Rows":
        """Those where a mask is true."""
        return cls(mask_BN, mask_BN.flatten().nonzero()[:, 0])

    def __len__(self) -> int:
        return len(self.place)

    @property
    def sequence(self) -> Tensor:
        """The sequence [K] of each."""
        return self.place // self.mask.shape[1]

    @property
    def position(self) -> Tensor:
        """The position [K] of each."""
        return self.place % self.mask.shape[1]

    def take(self, x_BN: Tensor) -> Tensor:
        """The values [K] there; of vectors [B, N, D], [K, D]."""
        return x_BN.flatten(0, 1).index_select(0, self.place)

    def put(self, value_K: Tensor) -> Tensor:
        """Values [B, N] from those there, and 0 elsewhere."""
        blank_BN = torch.zeros(self.mask.shape, dtype=value_K.dtype, device=value_K.device)
        return blank_BN.flatten().index_copy(0, self.place, value_K).view_as(blank_BN)

    def replace(self, x_BN: Tensor, value_K: Tensor) -> Tensor:
        """x_BN with other values there."""
        return x_BN.flatten().index_copy(0, self.place, value_K).view_as(x_BN)

    def among_active(self) -> tuple[Tensor, "Rows"]:
        """The sequences [A] that have any, and the coordinates as seen in a batch of these."""
        active_A, here_K = self.sequence.unique_consecutive(return_inverse=True)
        length = self.mask.shape[1]
        return active_A, Rows(self.mask[active_A], here_K * length + self.position)
