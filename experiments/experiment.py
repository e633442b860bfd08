"""An experiment: the jobs that a table or figure of the paper is made of, and how to show them."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cwdfm.errors import InputError
from cwdfm.files import replacing, retry_advice
from experiments.figure import Curves
from experiments.job import Job, Result, Store, WrongFolder
from experiments.scale import Scale
from experiments.sweep import in_order
from experiments.table import Table

T = TypeVar("T")
# What values of another type or size raise.
_WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Plan:
    """What an experiment does at one scale."""

    jobs: tuple[Job, ...]
    tables: Callable[[Store], list[Table]]  # from whatever is done; what is not stays blank
    figures: Callable[[Store], list[Curves]] = lambda _: []

    def progress(self, store: Store) -> str:
        """How many of its jobs, with all that they need, have a result."""
        jobs = in_order(self.jobs)
        return f"{sum(store.result(job) is not None for job in jobs):,} of {len(jobs):,} jobs"


@dataclass(frozen=True)
class Experiment:
    """Tables and figures that are made together."""

    name: str
    title: str
    plan: Callable[[Scale], Plan]
    paper: str = ""  # which of the paper's they are; none: it goes beyond it


def write(plan: Plan, store: Store, folder: Path, name: str) -> Iterator[Path]:
    """The tables as NAME.md, and each as CSV and LaTeX; the figures as PNG and PDF: as they come.

    The folder is that of one scale, and its name says which. A figure without a point is left out.
    """
    tables, curves = _made(plan, store)
    figures = [(stem, f) for stem, f in numbered(name, curves) if not f.blank]
    head = f"`python -m experiments run {name}` at {folder.name} scale: {plan.progress(store)} are done."
    head += " Toys: the numbers mean nothing.\n" if folder.name == "smoke" else "\n"
    shown = [f"![{f.title}]({stem}.png)\n" for stem, f in figures]
    texts = {f"{name}.md": "\n".join([head, *(table.markdown() for table in tables), *shown])}
    for stem, table in numbered(name, tables):
        texts |= {f"{stem}.csv": table.csv(), f"{stem}.tex": f"% {head}{table.latex(stem)}"}
    for file, text in texts.items():
        yield written(folder / file, text.encode())
    for stem, figure in figures:
        for kind, picture in figure.drawn(("png", "pdf")).items():
            yield written(folder / f"{stem}.{kind}", picture)


def written(path: Path, content: bytes) -> Path:
    """The file once it is whole; where it cannot be, what to do is told."""
    try:
        with replacing(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise InputError(
            f"{path} could not be written: {error.strerror or error}. {retry_advice(error, path)} and "
            f"start again with the same command"
        ) from error
    return path


def _made(plan: Plan, store: Store) -> tuple[list[Table], list[Curves]]:
    """The tables and figures; a result that holds something else than they are made of is told."""
    try:
        return _tried(plan, store)
    except InputError:
        raise
    except _WRONG as error:
        job = _at_fault(plan, store)
        if job is None:
            raise
        raise WrongFolder(
            f"{store.place(job) / 'result.json'} is damaged, or of another version "
            f"({type(error).__name__}: {error}); delete its folder, and the same command does the "
            f"job again"
        ) from error


def _tried(plan: Plan, store: Store) -> tuple[list[Table], list[Curves]]:
    tables = plan.tables(store)
    for table in tables:
        table.markdown()  # a value that is no number is found out as it is shown
    return tables, plan.figures(store)


def _at_fault(plan: Plan, store: Store) -> Job | None:
    """The job with which the tables cannot be made, though they can of those before it alone.

    None if they cannot be made of nothing, either. Found by halves: there may be a thousand jobs.
    """
    jobs = in_order(plan.jobs)

    def fails(count: int) -> bool:
        try:
            _tried(plan, _Some(store.folder, jobs[:count]))
        except _WRONG:
            return True
        return False

    first = bisect_left(range(len(jobs)), True, key=fails)
    return jobs[first - 1] if first else None


class _Some(Store):
    """A folder as if some jobs alone were done."""

    def __init__(self, folder: Path, jobs: Collection[Job]) -> None:
        super().__init__(folder)
        self.jobs = frozenset(jobs)

    def result(self, job: Job) -> Result | None:
        return super().result(job) if job in self.jobs else None


def numbered(name: str, things: Sequence[T]) -> list[tuple[str, T]]:
    """A name for each: with numbers, if there are several."""
    if len(things) == 1:
        return [(name, things[0])]
    return [(f"{name}-{i}", thing) for i, thing in enumerate(things, start=1)]
