"""Training sequences in a fixed order, and prefetching of batches.

Which sequences a step sees is a function of (seed, step, position in the global batch) only.
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
SUBSET = -1  # the epoch number that seeds the choice of a subset; real epochs count from 0
MAX_DEVICE_BYTES = 2**29  # larger datasets stay in host memory or on disk


def subset(rows: NDArray[Any], count: int, seed: int) -> NDArray[Any]:
    """A random subset of `count` of the rows [n, N]; 0 for all of them.

    For one seed, a smaller subset is contained in a larger one. The rows keep their order.
    """
    if not count:
        return rows
    generator = torch.Generator().manual_seed(derive_seed(seed, SUBSET))
    chosen = torch.randperm(len(rows), generator=generator)[:count].sort().values
    found: NDArray[Any] = rows[chosen.numpy()]
    return found


class EpochStream:
    """Sequences [n, N] as an endless stream: epoch after epoch, each in a new random order."""

    def __init__(self, rows: NDArray[np.integer], seed: int, device: torch.device) -> None:
        self.rows, self.seed, self.device = rows, seed, device
        small = rows.nbytes <= MAX_DEVICE_BYTES
        self._tensor = torch.from_numpy(rows.astype(np.int32)).to(device) if small else None
        self._permutation: tuple[int, Tensor] = (-1, torch.empty(0))

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, row_B: Tensor) -> Tensor:
        """The rows with these numbers [B], as int64 [B, N] on the device."""
        if self._tensor is not None:
            return self._tensor[row_B.to(self.device)].long()
        chosen = torch.from_numpy(self.rows[row_B.numpy()].astype(np.int64))
        return chosen.to(self.device, non_blocking=True)

    def numbers(self, position_B: Tensor) -> Tensor:
        """The row numbers [B] at ascending positions [B] of the stream."""
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

    Preparing a batch reads values back, which blocks the host until the stream is idle. On a
    separate stream it waits for its own work only. On a CPU an item is made when it is requested.
    """

    def __init__(self, make: Callable[[K], T], device: torch.device) -> None:
        self._make = make
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ready: tuple[K, T] | None = None
        self._in_use: deque[tuple[torch.cuda.Event, T]] = deque()

    def get(self, key: K) -> T:
        """The item of a key: the prefetched one if it has this key, otherwise a new one."""
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
        """Free an item once the work queued so far no longer needs it.

        Its memory belongs to the other stream, which would otherwise reuse it at once.
        """
        if self._stream is None:
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._stream.device))
        self._in_use.append((event, item))
        while self._in_use and self._in_use[0][0].query():
            self._in_use.popleft()
