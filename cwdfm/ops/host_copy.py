"""Asynchronous copies from a GPU to the host, and checks that wait for them as late as possible."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from cwdfm.errors import InputError, not_finite

Check = Callable[[float, float], None]


class HostCopy:
    """An asynchronous copy of a tensor to the host. A CPU tensor is not copied."""

    def __init__(self, x: Tensor) -> None:
        self._x = x
        self._event: torch.cuda.Event | None = None
        if x.is_cuda:
            self._x = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            self._x.copy_(x, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(x.device))

    @property
    def ready(self) -> bool:
        """Whether the copy has completed."""
        return self._event is None or self._event.query()

    @property
    def value(self) -> Tensor:
        """The tensor on the host. Waits for the copy."""
        if self._event is not None:
            self._event.synchronize()
        return self._x


class RangeChecks:
    """Checks of the minimum and maximum of non-empty tensors.

    On a CPU a check runs immediately. On a GPU (`device`) the reductions start at `launch`, after
    more urgent kernels, and `wait` evaluates them. Until then, code that uses the tensors must
    tolerate any value.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._checks: list[tuple[Tensor, Check]] = []
        self._bounds: list[HostCopy] = []
        self._start: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._start = torch.cuda.Event()
            self._start.record(torch.cuda.current_stream(device))

    def add(self, x: Tensor, check: Check) -> None:
        """Call check(minimum, maximum) on the values of x.

        x must have been computed before this object was created. A tensor on another device is
        checked immediately.
        """
        if x.is_cuda and x.device == self.device:
            self._checks.append((x.detach(), check))
        else:
            check(*_min_max(x.detach()).tolist())

    def launch(self) -> None:
        """Start the reductions on a side stream, which does not wait for work enqueued later."""
        for x, _ in self._checks[len(self._bounds) :]:
            side = _side_stream(x.device)
            if self._start is not None:
                side.wait_event(self._start)
            with torch.cuda.stream(side):
                self._bounds.append(HostCopy(_min_max(x)))

    def wait(self) -> None:
        """Wait for the reductions and run all checks."""
        self.launch()
        for bounds, (_, check) in zip(self._bounds, self._checks, strict=True):
            check(*bounds.value.tolist())


def _min_max(x: Tensor) -> Tensor:
    """Minimum and maximum [2]."""
    bounds = torch.empty(2, dtype=x.dtype, device=x.device)
    torch.aminmax(x, out=(bounds[0], bounds[1]))
    return bounds


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


# Creates the error from the number of bad rows and the number of all rows.
RowError = Callable[[int, int], InputError]
# Deferred checks: the number of bad rows (being copied to the host), that of all rows, the error.
Pending = list[tuple[HostCopy, int, RowError]]
_DEFERRED: ContextVar[Pending | None] = ContextVar("pending_checks", default=None)


@contextmanager
def deferred_checks() -> Iterator[None]:
    """Defer `check_rows` within this context. All results are checked when it ends."""
    pending: Pending = []
    token = _DEFERRED.set(pending)
    try:
        yield
        _check(pending, wait=True)
    finally:
        _DEFERRED.reset(token)


def check_rows(bad_K: Tensor, error: RowError = not_finite) -> None:
    """Raise an error if any row is bad; the default error is about logits.

    Within `deferred_checks`, a result is checked only once it has arrived on the host, which on a
    CPU is immediately.
    """
    deferred = _DEFERRED.get()
    pending = [] if deferred is None else deferred
    pending.append((HostCopy(bad_K.sum()), len(bad_K), error))
    _check(pending, wait=deferred is None)


def _check(pending: Pending, *, wait: bool) -> None:
    """Check the results that have arrived, or all of them with `wait`."""
    while pending and (wait or pending[0][0].ready):
        count, rows, error = pending.pop(0)
        if bad := int(count.value):
            raise error(bad, rows)
