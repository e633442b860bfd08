"""An experiment: the tasks behind a table or figure, and how their results are shown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cwdfm.errors import InputError
from cwdfm.files import replacing, retry_advice
from experiments.figure import Curves
from experiments.scale import Scale
from experiments.store import Store
from experiments.table import Table
from experiments.tasks.base import Task, in_order

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The tasks of an experiment at one scale, and its tables and figures."""

    tasks: tuple[Task, ...]
    tables: Callable[[Store], list[Table]]  # cells of unfinished tasks stay blank
    figures: Callable[[Store], list[Curves]] = lambda _: []


@dataclass(frozen=True)
class Experiment:
    """A named experiment."""

    name: str
    title: str
    plan: Callable[[Scale], Plan]
    paper: str = ""  # the table or figure of the paper, if it is one
    estimate: int = 0  # estimated GPU minutes at small scale, if not measured yet


def write(plan: Plan, store: Store, folder: Path, name: str) -> Iterator[Path]:
    """Write NAME.md, each table as CSV and LaTeX, and each figure as PNG and PDF.

    `folder` is named after the scale. A figure without data points is not written.
    """
    tables, curves = plan.tables(store), plan.figures(store)
    figures = [(stem, f) for stem, f in numbered(name, curves) if not f.blank]
    tasks = in_order(plan.tasks)
    done = sum(store.result(task) is not None for task in tasks)
    head = (
        f"`python -m experiments run {name}` at {folder.name} scale: {done:,} of {len(tasks):,} "
        f"tasks are finished."
    )
    head += " Smoke test: the numbers are meaningless.\n" if folder.name == "smoke" else "\n"
    images = [f"![{f.title}]({stem}.png)\n" for stem, f in figures]
    texts = {f"{name}.md": "\n".join([head, *(table.markdown() for table in tables), *images])}
    for stem, table in numbered(name, tables):
        texts |= {f"{stem}.csv": table.csv(), f"{stem}.tex": f"% {head}{table.latex(stem)}"}
    for file, text in texts.items():
        yield write_file(folder / file, text.encode())
    for stem, figure in figures:
        for kind, picture in figure.render(("png", "pdf")).items():
            yield write_file(folder / f"{stem}.{kind}", picture)


def write_file(path: Path, content: bytes) -> Path:
    try:
        with replacing(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}. {retry_advice(error, path)} and run the "
            f"same command again"
        ) from error
    return path


def numbered(name: str, items: Sequence[T]) -> list[tuple[str, T]]:
    """Pair each item with a name, numbered if there are several."""
    if len(items) == 1:
        return [(name, items[0])]
    return [(f"{name}-{i}", item) for i, item in enumerate(items, start=1)]
