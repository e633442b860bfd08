"""What a GPU tells the host later, so that nobody waits for it until it is needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from cwdfm.errors import not_finite

Check = Callable[[float, float], None]


class Told:
    """A tensor on its way to the host; from a CPU, one that is there."""

    def __init__(self, x: Tensor) -> None:
        self._x = x
        self._event: torch.cuda.Event | None = None
        if x.is_cuda:
            self._x = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            self._x.copy_(x, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(x.device))

    @property
    def arrived(self) -> bool:
        """Whether the host has it."""
        return self._event is None or self._event.query()

    @property
    def value(self) -> Tensor:
        """The tensor on the host, which waits for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._x


class RangeChecks:
    """Checks of the least and the greatest values of tensors, each of which must hold some.

    On a CPU a check is made at once. On a GPU, `device`, all are launched when asked for, behind
    work that matters more; whoever uses the tensors must bear any value until they are settled.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._checks: list[tuple[Tensor, Check]] = []
        self._told: list[Told] = []
        self._ready: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(device))

    def add(self, x: Tensor, check: Check) -> None:
        """Let `check` refuse the least and the greatest value of x, which was there before this.

        What lies on another device is checked at once.
        """
        if x.is_cuda and x.device == self.device:
            self._checks.append((x.detach(), check))
        else:
            check(*_bounds(x.detach()).tolist())

    def launch(self) -> None:
        """Ask the GPU for the values, on a stream that does not wait for what came since."""
        for x, _ in self._checks[len(self._told) :]:
            side = _side_stream(x.device)
            if self._ready is not None:
                side.wait_event(self._ready)
            with torch.cuda.stream(side):
                self._told.append(Told(_bounds(x)))

    def settle(self) -> None:
        """Wait for them, and refuse bad ones."""
        self.launch()
        for told, (_, check) in zip(self._told, self._checks, strict=True):
            check(*told.value.tolist())


def _bounds(x: Tensor) -> Tensor:
    """The least and the greatest value [2]."""
    bounds = torch.empty(2, dtype=x.dtype, device=x.device)
    torch.aminmax(x, out=(bounds[0], bounds[1]))
    return bounds


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Doubts:
    """Rows of logits that may turn out to be no numbers, after they were drawn from."""

    def __init__(self) -> None:
        self._open: list[tuple[Told, int]] = []

    def add(self, bad_K: Tensor) -> None:
        """Refuse logits if any of their rows is bad: now, on a GPU as soon as it is known."""
        self._open.append((Told(bad_K.sum()), len(bad_K)))
        while self._open and self._open[0][0].arrived:
            self._settle_first()

    def settle(self) -> None:
        """Wait for all that is not known yet."""
        while self._open:
            self._settle_first()

    def _settle_first(self) -> None:
        told, rows = self._open.pop(0)
        if bad := int(told.value):
            raise not_finite(bad, rows)


_PRESENT: ContextVar[Doubts | None] = ContextVar("doubts", default=None)


@contextmanager
def doubting() -> Iterator[None]:
    """Logits may be in doubt for a while: at the end of it, all is settled."""
    doubts = Doubts()
    before = _PRESENT.set(doubts)
    try:
        yield
        doubts.settle()
    finally:
        _PRESENT.reset(before)


def doubt(bad_K: Tensor) -> None:
    """Refuse logits if any of their rows is bad: where they may be in doubt, later; else now."""
    present = _PRESENT.get()
    doubts = Doubts() if present is None else present
    doubts.add(bad_K)
    if present is None:
        doubts.settle()
