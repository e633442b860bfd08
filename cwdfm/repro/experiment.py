"""An experiment: the jobs that a table or figure of the paper is made of, and how to show them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cwdfm.errors import InputError
from cwdfm.files import replacing
from cwdfm.repro.figure import Curves
from cwdfm.repro.job import Job, Store
from cwdfm.repro.scale import Scale
from cwdfm.repro.sweep import in_order
from cwdfm.repro.table import Table

T = TypeVar("T")


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


def write(plan: Plan, store: Store, folder: Path, name: str) -> list[Path]:
    """The tables as NAME.md, and each as CSV and LaTeX; the figures as PNG and PDF; the files.

    The folder is that of one scale, and its name says which. A figure without a point is left out.
    """
    tables = plan.tables(store)
    figures = [(stem, f) for stem, f in numbered(name, plan.figures(store)) if not f.blank]
    head = f"`cwdfm repro {name}` at {folder.name} scale: {plan.progress(store)} are done."
    head += " Toys: the numbers mean nothing.\n" if folder.name == "smoke" else "\n"
    shown = [f"![{f.title}]({stem}.png)\n" for stem, f in figures]
    texts = {f"{name}.md": "\n".join([head, *(table.markdown() for table in tables), *shown])}
    for stem, table in numbered(name, tables):
        texts |= {f"{stem}.csv": table.csv(), f"{stem}.tex": f"% {head}{table.latex(stem)}"}
    paths = []
    try:
        for file, text in texts.items():
            with replacing(folder / file) as part:
                part.write_text(text, encoding="utf-8")
            paths.append(folder / file)
        for stem, figure in figures:
            pictures = [folder / f"{stem}{kind}" for kind in (".png", ".pdf")]
            figure.draw(pictures)
            paths += pictures
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror or error}") from error
    return paths


def numbered(name: str, things: Sequence[T]) -> list[tuple[str, T]]:
    """A name for each: with numbers, if there are several."""
    if len(things) == 1:
        return [(name, things[0])]
    return [(f"{name}-{i}", thing) for i, thing in enumerate(things, start=1)]
