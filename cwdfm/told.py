"""What a GPU tells the host later, so that nobody waits for it until it is needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from cwdfm.errors import not_finite


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
        """Whether it is there."""
        return self._event is None or self._event.query()

    @property
    def value(self) -> Tensor:
        """It, once it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._x


class RangeCheck:
    """A check of the least and the greatest value of x, which must hold some.

    On a CPU it is made at once. On a GPU it is launched when asked for, behind work that matters
    more; whoever uses x must bear any value until it is settled.
    """

    def __init__(self, x: Tensor, check: Callable[[float, float], None]) -> None:
        self._x, self._check = x.detach(), check
        self._told: Told | None = None
        if not x.is_cuda:
            self.launch()
            self.settle()

    def launch(self) -> None:
        """Ask the GPU for the two values."""
        if self._told is None:
            bounds = torch.empty(2, dtype=self._x.dtype, device=self._x.device)
            torch.aminmax(self._x, out=(bounds[0], bounds[1]))
            self._told = Told(bounds)

    def settle(self) -> None:
        """Wait for them, and refuse x if they are bad."""
        self.launch()
        assert self._told is not None
        self._check(*self._told.value.tolist())


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
