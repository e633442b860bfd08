"""What an evaluation finds, whatever the samples are: a table, pictures, and every number."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of a table, under the heading of its group."""

    group: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Cells by row and column. The first column is text, the others are numbers."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def groups(self) -> list[tuple[str, list[Row]]]:
        """The rows under each heading."""
        return [(name, list(rows)) for name, rows in groupby(self.rows, key=lambda r: r.group)]

    def lines(self) -> list[str]:
        """For the terminal, aligned."""
        body = [row.cells for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *body, strict=True)]
        out = [align(self.columns, widths)]
        for name, rows in self.groups():
            out += [name, *(align(row.cells, widths) for row in rows)]
        return out

    def markdown(self) -> str:
        """As a Markdown table, the groups in its first column."""
        rule = ("---", "---", *["---:"] * (len(self.columns) - 1))
        lines = [("", *self.columns), rule, *((row.group, *row.cells) for row in self.rows)]
        return "".join("| " + " | ".join(map(_plain, line)) + " |\n" for line in lines)


def align(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table: the first cell to the left, numbers to the right."""
    first, *others = [
        cell.rjust(width) if i else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  " + "   ".join([first, *others]).rstrip()


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|")


@dataclass(frozen=True)
class Picture:
    """A picture in the report's folder."""

    file: str
    caption: str
    wide: bool = False  # too wide to be read at a phone's width


def endings(models: Sequence[str]) -> list[str]:
    """What tells the pictures of several models apart in a file name."""
    if len(models) == 1:
        return [""]
    names = [re.sub(r"[^A-Za-z0-9._]+", "-", model).strip("-.") for model in models]
    alike = len({name.lower() for name in names}) < len(names)
    return [f"-{i}-{name}" if alike else f"-{name}" for i, name in enumerate(names, start=1)]


@dataclass(frozen=True)
class Excerpt:
    """Texts to be read, folded away under a title."""

    title: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    """All that a report shows and stores."""

    title: str
    table: Table
    meaning: tuple[str, ...]  # how to read the table, a paragraph each
    notes: tuple[str, ...]  # what was left out or is unusual
    pictures: tuple[Picture, ...]
    settings: dict[str, Any]  # of the evaluation, for the page
    scores: dict[str, Any]  # every number, for scores.json
    excerpts: tuple[Excerpt, ...] = ()
