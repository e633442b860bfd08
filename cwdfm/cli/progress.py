"""Progress of a command: a bar in a terminal, otherwise a line every 15 seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from cwdfm.errors import load_extra

_INTERVAL = 15.0  # seconds between lines when the output is not a terminal


class Progress:
    """Shows how many of `total` units of work are done, with notes such as the loss.

    Use it as a context manager. `total` is None if unknown. `shown=False` disables the output, as
    for all but the first of several processes.
    """

    def __init__(self, what: str, total: int | None, *, done: int = 0, shown: bool = True) -> None:
        self.what, self.total, self.done, self.first = what, total, done, done
        self.shown = shown
        self.start = self.last = time.monotonic()
        self.notes = ""
        self.bar: Any = _bar() if shown and sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
            state = {"total": self.total, "completed": self.done, "notes": ""}
            self.task = self.bar.add_task(self.what, **state)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, units: int = 1, notes: str | None = None) -> None:
        """Add completed units; `notes` are shown until they are replaced."""
        self.done += units
        self.notes = self.notes if notes is None else notes
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, notes=self.notes)
        elif self.shown and time.monotonic() - self.last > _INTERVAL:
            self.last = time.monotonic()
            self._print_line()

    def reach(self, done: int) -> None:
        """Set the number of completed units."""
        self.advance(done - self.done)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif self.shown:
            print(text, flush=True)

    def _print_line(self) -> None:
        elapsed = time.monotonic() - self.start
        if self.total is None:
            state = f"{self.done:,} in {elapsed:.0f} s"
        else:
            remaining = elapsed * (self.total - self.done) / max(self.done - self.first, 1e-9)
            state = f"{self.done / self.total:.0%}, about {remaining:.0f} s left"
        print(f"{self.what}: {state}  {self.notes}".rstrip(), file=sys.stderr, flush=True)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show the progress of consecutive stages.

    Yields a function `(stage, done, total)` that a task calls to report its progress.
    """
    with ExitStack() as stack:
        shown: dict[str, Progress] = {}

        def reach(stage: str, done: int, total: int | None) -> None:
            if stage not in shown:
                stack.close()
                shown.clear()
                shown[stage] = stack.enter_context(Progress(stage, total))
            shown[stage].reach(done)

        yield reach


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
