"""The order of training sequences, and prefetching of batches.

The sequences of a step depend only on (seed, step, position in the global batch).
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.ops.random import derive_seed

K = TypeVar("K")
T = TypeVar("T")
SUBSET = -1  # an epoch number that no epoch has; seeds the choice of a subset
MAX_DEVICE_BYTES = 2**29  # larger datasets stay in host memory or on disk


def subset(rows: NDArray[Any], count: int, seed: int) -> NDArray[Any]:
    """Draw a random subset of `count` rows [n, N]; 0 for all rows.

    With the same seed, a larger subset contains a smaller one. The rows keep their order.
    """
    if not count:
        return rows
    generator = torch.Generator().manual_seed(derive_seed(seed, SUBSET))
    chosen = torch.randperm(len(rows), generator=generator)[:count].sort().values
    result: NDArray[Any] = rows[chosen.numpy()]
    return result


class EpochStream:
    """An endless stream of the sequences [n, N], with a new random order in each epoch."""

    def __init__(self, rows: NDArray[np.integer], seed: int, device: torch.device) -> None:
        self.rows, self.seed, self.device = rows, seed, device
        small = rows.nbytes <= MAX_DEVICE_BYTES
        self._tensor = torch.from_numpy(rows.astype(np.int32)).to(device) if small else None
        self._permutation: tuple[int, Tensor] = (-1, torch.empty(0))

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, row_B: Tensor) -> Tensor:
        """Gather the rows with these indices [B], as int64 [B, N] on the device."""
        if self._tensor is not None:
            return self._tensor[row_B.to(self.device)].long()
        chosen = torch.from_numpy(self.rows[row_B.numpy()].astype(np.int64))
        return chosen.to(self.device, non_blocking=True)

    def numbers(self, position_B: Tensor) -> Tensor:
        """The row indices [B] at ascending positions [B] in the stream."""
        row_B = torch.empty_like(position_B)
        epoch_B = position_B // len(self)
        for epoch in range(int(epoch_B[0]), int(epoch_B[-1]) + 1):
            inside_B = epoch_B == epoch
            row_B[inside_B] = self._order(epoch)[position_B[inside_B] % len(self)]
        return row_B

    def _order(self, epoch: int) -> Tensor:
        if self._permutation[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            self._permutation = (epoch, torch.randperm(len(self), generator=generator))
        return self._permutation[1]


class Prefetch(Generic[K, T]):
    """Prepares the next item, `make(key)`, while the GPU works on the current one.

    Preparing a batch reads values back to the host, which waits until the stream is idle. A
    separate CUDA stream makes it wait only for its own work. On a CPU, nothing is prefetched.
    """

    def __init__(self, make: Callable[[K], T], device: torch.device) -> None:
        self._make = make
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ready: tuple[K, T] | None = None
        self._in_use: deque[tuple[torch.cuda.Event, T]] = deque()

    def get(self, key: K) -> T:
        """Return the item for a key: the prefetched one if its key matches, else a new one."""
        if self._stream is None:
            return self._make(key)
        if self._ready is None or self._ready[0] != key:
            self.start(key)
        assert self._ready is not None
        (_, item), self._ready = self._ready, None
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return item

    def start(self, key: K) -> None:
        """Start preparing the item that `get` will request next."""
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                self._ready = (key, self._make(key))

    def release(self, item: T) -> None:
        """Free an item once all work queued so far has finished.

        Its memory belongs to the prefetch stream, which could otherwise reuse it immediately.
        """
        if self._stream is None:
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._stream.device))
        self._in_use.append((event, item))
        while self._in_use and self._in_use[0][0].query():
            self._in_use.popleft()
