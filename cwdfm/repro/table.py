"""Tables of results beside the paper's: Markdown, CSV and LaTeX from one description."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Value:
    """A number and its spread, as `digits` behind the point show it; the number may be missing.

    Behind a point that is far below the spread nothing is shown.
    """

    value: float | None
    spread: float | None = None
    digits: int = 1

    def text(self, between: str = " ± ") -> str:
        """The number, and behind it the spread where there is one."""
        if self.value is None:
            return ""
        # A count is a count; means of several have digits.
        whole = self.spread is None and self.digits == 1 and float(self.value).is_integer()
        digits = 0 if whole or (self.spread or 0.0) >= 100 else self.digits
        number = f"{self.value:,.{digits}f}"
        return number if self.spread is None else f"{number}{between}{self.spread:,.{digits}f}"


@dataclass(frozen=True)
class Column:
    """A measure: its name, whether more of it is better (None: neither), and how it is drawn.

    An axis holds the values closely; or begins at zero, or is logarithmic, where they differ much.
    """

    name: str
    up: bool | None = None
    axis: Literal["close", "zero", "log"] = "close"

    @property
    def title(self) -> str:
        arrow = {True: " ↑", False: " ↓", None: ""}[self.up]
        return self.name + arrow


@dataclass(frozen=True)
class Row:
    """A line: what it is of, our values, and the paper's where it has them."""

    labels: tuple[str, ...]
    ours: tuple[Value, ...]
    paper: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Table:
    """Our values, and to their right the paper's for the measures it reports, in order."""

    title: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    paper: tuple[Column, ...] = ()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """With the title as a heading and the notes below."""
        head = [*self.labels, *(c.title for c in self.columns)]
        head += [f"paper: {c.title}" for c in self.paper]
        rule = ["---"] * len(self.labels) + ["---:"] * (len(self.columns) + len(self.paper))
        lines = [head, rule, *(self._cells(row, " ± ") for row in self.rows)]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "".join(f"\n\n{note}" for note in self.notes)
        return f"### {self.title}\n\n{body}{notes}\n"

    def csv(self) -> str:
        """Values and spreads in columns of their own, in full precision."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [c.name for c in self.columns] + [f"paper: {c.name}" for c in self.paper]
        writer.writerow([*self.labels, *(n for name in names for n in (name, f"{name}, spread"))])
        for row in self.rows:
            values = [*row.ours, *self._papers(row)]
            writer.writerow(
                [*row.labels, *(x for v in values for x in (_bare(v.value), _bare(v.spread)))]
            )
        return out.getvalue()

    def latex(self) -> str:
        """A booktabs table, with the notes below."""
        columns = [*self.columns, *self.paper]
        head = [*self.labels, *(_arrow(c) for c in self.columns)]
        head += [f"paper: {_arrow(c)}" for c in self.paper]
        lines = [" & ".join(_escape(cell) for cell in head) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [_escape(cell) for cell in self._cells(row, "@")]
            lines.append(" & ".join(cell.replace("@", r" $\pm$ ") for cell in cells) + r" \\")
        shape = "l" * len(self.labels) + "r" * len(columns)
        body = "\n".join(lines)
        notes = "".join(f"\\par\\footnotesize {_escape(note)}\n" for note in self.notes)
        return (
            f"\\begin{{table}}\n\\caption{{{_escape(self.title)}}}\n\\begin{{tabular}}{{{shape}}}\n"
            f"\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n{notes}\\end{{table}}\n"
        )

    def _papers(self, row: Row) -> Sequence[Value]:
        return row.paper or [Value(None)] * len(self.paper)

    def _cells(self, row: Row, between: str) -> list[str]:
        return [*row.labels, *(v.text(between) for v in (*row.ours, *self._papers(row)))]


def _bare(x: float | None) -> str:
    return "" if x is None else repr(x)


def _arrow(column: Column) -> str:
    mark = {True: r" $\uparrow$", False: r" $\downarrow$", None: ""}[column.up]
    return column.name + mark


def _escape(cell: str) -> str:
    for sign in "%&_#":
        cell = cell.replace(sign, "\\" + sign)
    return cell
