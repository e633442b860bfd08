"""What a GPU needs next, made while it is busy with what came before."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

K = TypeVar("K")
T = TypeVar("T")


class Ahead(Generic[K, T]):
    """Things made one ahead of need, each a function of its key alone.

    On a GPU they are made on a stream of their own: copies to the device and checks of values make
    the host wait, and on the main stream it would wait for all the work queued there, after which
    the device would have none. Elsewhere they are made when they are taken.
    """

    def __init__(self, make: Callable[[K], T], device: torch.device) -> None:
        self._make = make
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ready: tuple[K, T] | None = None
        self._used: deque[tuple[torch.cuda.Event, T]] = deque()

    def take(self, key: K) -> T:
        """What belongs to a key: made before, if it was the last to be started; or made now."""
        if self._stream is None:
            return self._make(key)
        if self._ready is None or self._ready[0] != key:
            self.start(key)
        assert self._ready is not None
        (_, made), self._ready = self._ready, None
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return made

    def start(self, key: K) -> None:
        """Make what belongs to a key, to be taken next."""
        if self._stream is None:
            return
        with torch.cuda.stream(self._stream):
            self._ready = (key, self._make(key))

    def release(self, made: T) -> None:
        """Let go of what was taken, once the work queued so far is done with it.

        Its memory belongs to the other stream, which would otherwise use it again at once.
        """
        if self._stream is None:
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._stream.device))
        self._used.append((event, made))
        while self._used and self._used[0][0].query():
            self._used.popleft()
