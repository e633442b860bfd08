"""Signs of life: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

from cwdfm.errors import load_extra

_QUIET = 15.0  # seconds between lines where there is no terminal


class Progress:
    """How far `total` units of work have come, with notes such as the loss beside it.

    A context manager; `shown=False` for the processes that should keep quiet. A total of None is
    not known.
    """

    def __init__(self, what: str, total: int | None, *, done: int = 0, shown: bool = True) -> None:
        self.what, self.total, self.done, self.first = what, total, done, done
        self.shown = shown
        self.start = self.last = time.monotonic()
        self.notes = ""
        self.bar: Any = None
        if shown and sys.stderr.isatty():
            self.bar = _bar()

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(
                self.what, total=self.total, completed=self.done, notes=""
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, units: int = 1, notes: str | None = None) -> None:
        """Say that more is done; `notes` stay until they are replaced."""
        self.done += units
        self.notes = self.notes if notes is None else notes
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, notes=self.notes)
        elif self.shown and time.monotonic() - self.last > _QUIET:
            self.last = time.monotonic()
            self._line()

    def reach(self, done: int) -> None:
        """Say how much is done in all."""
        self.advance(done - self.done)

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        if not self.shown:
            return
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)

    def _line(self) -> None:
        spent = time.monotonic() - self.start
        if self.total is None:
            how_far = f"{self.done:,} in {spent:.0f} s"
        else:
            left = spent * (self.total - self.done) / max(self.done - self.first, 1e-9)
            how_far = f"{self.done / self.total:.0%}, about {left:.0f} s left"
        print(f"{self.what}: {how_far}  {self.notes}".rstrip(), file=sys.stderr, flush=True)


def _bar() -> Any:
    rich = load_extra("rich.progress", "cli")
    console = load_extra("rich.console", "cli").Console(stderr=True)
    return rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(elapsed_when_finished=True),
        rich.TextColumn("{task.fields[notes]}"),
        console=console,
    )
