"""Which rows a step sees: a function of (seed, step, place in the global batch) alone."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.ops.random import derive_seed

PART = -1  # the draw of a part of the rows; those of epochs count from 0
ON_DEVICE = 2**29  # bytes; larger data stay where they are, on the disk perhaps


def part(rows: NDArray[np.integer], count: int, seed: int) -> NDArray[np.integer]:
    """So many of the rows [n, N], drawn by the seed: fewer are among more; 0 for all of them."""
    if not count:
        return rows
    generator = torch.Generator().manual_seed(derive_seed(seed, PART))
    drawn = torch.randperm(len(rows), generator=generator)[:count].sort().values
    found: NDArray[np.integer] = rows[drawn.numpy()]
    return found


class EpochStream:
    """Sequences [n, N] in epochs of fresh permutations, joined without gaps."""

    def __init__(self, rows: NDArray[np.integer], seed: int, device: torch.device) -> None:
        self.rows, self.seed, self.device = rows, seed, device
        small = rows.nbytes <= ON_DEVICE
        self._tensor = torch.from_numpy(rows.astype(np.int32)).to(device) if small else None
        self._permutation: tuple[int, Tensor] = (-1, torch.empty(0))

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, row_B: Tensor) -> Tensor:
        """The rows numbered row_B, int64 [B, N] on the device."""
        if self._tensor is not None:
            return self._tensor[row_B.to(self.device)].long()
        chosen = torch.from_numpy(self.rows[row_B.numpy()].astype(np.int64))
        return chosen.to(self.device, non_blocking=True)

    def places(self, place_B: Tensor) -> Tensor:
        """The rows [B, N] at places (ascending) of the endless stream of epochs."""
        row_B = torch.empty_like(place_B)
        for epoch in range(int(place_B[0]) // len(self), int(place_B[-1]) // len(self) + 1):
            inside_B = place_B // len(self) == epoch
            row_B[inside_B] = self._shuffled(epoch)[place_B[inside_B] % len(self)]
        return self.at(row_B)

    def _shuffled(self, epoch: int) -> Tensor:
        if self._permutation[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            self._permutation = (epoch, torch.randperm(len(self), generator=generator))
        return self._permutation[1]
