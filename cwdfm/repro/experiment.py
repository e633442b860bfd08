"""An experiment: the jobs that a table or figure of the paper is made of, and how to show them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cwdfm.errors import InputError
from cwdfm.repro.job import Job, Store
from cwdfm.repro.table import Table

Scale = Literal["smoke", "small", "paper"]


@dataclass(frozen=True)
class Plan:
    """What an experiment does at one scale."""

    jobs: tuple[Job, ...]
    tables: Callable[[Store], list[Table]]  # from whatever is done; what is not stays blank
    cost: str  # what to expect of time and hardware


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper."""

    name: str
    title: str
    plan: Callable[[Scale], Plan]


def write(tables: list[Table], folder: Path, name: str) -> list[Path]:
    """The tables as NAME.md, and each as CSV and LaTeX; the files."""
    texts = {f"{name}.md": "\n".join(table.markdown() for table in tables)}
    for i, table in enumerate(tables, start=1):
        stem = name if len(tables) == 1 else f"{name}-{i}"
        texts |= {f"{stem}.csv": table.csv(), f"{stem}.tex": table.latex()}
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            part = folder / f"{file}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(folder / file)
            paths.append(folder / file)
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror or error}") from error
    return paths
