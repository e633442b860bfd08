"""Tables of results beside the paper's: Markdown, CSV and LaTeX from one description."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_WIDE, _WIDER = 70, 95  # letters that a page's text is wide, in its own type and in footnotes'
_BETWEEN = 2  # letters of room that two columns have between them
_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "%&_#${}"}
    | {sign: f"{{{sign}}}" for sign in "[]*"}  # which could be options of the line's end before
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": "$<$", ">": "$>$", "±": r"$\pm$", "≈": r"$\approx$", "≤": r"$\leq$", "≥": r"$\geq$"}
    | {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
)


@dataclass(frozen=True)
class Value:
    """A number and its spread, with at most `digits` behind the point; the number may be missing.

    A spread has two digits that count, and the number no more than its spread; those that the paper
    prints have all of theirs.
    """

    value: float | None
    spread: float | None = None
    digits: int = 1
    printed: bool = False

    def text(self) -> str:
        """The number, and behind it the spread where there is one."""
        if self.value is None:
            return ""
        if self.spread is None:  # a count is a count; means of several have digits
            whole = self.digits == 1 and float(self.value).is_integer()
            return f"{self.value:,.{0 if whole else self.digits}f}"
        digits = self.digits
        if self.spread > 0 and not self.printed:
            digits = max(0, min(digits, 1 - math.floor(math.log10(self.spread))))
        return f"{self.value:,.{digits}f} ± {self.spread:,.{digits}f}"


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
        rule = ["---"] * len(self.labels) + ["---:"] * (len(self.columns) + len(self.paper))
        lines = [self._head, rule, *(self._cells(row) for row in self.rows)]
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

    def latex(self, label: str) -> str:
        """A float with a booktabs table, small if it is wide, and the notes below."""
        lines = [self._head, *map(self._cells, self.rows)]
        first, *others = [" & ".join(map(_escape, line)) + r" \\" for line in lines]
        shape = "l" * len(self.labels) + "r" * (len(self.columns) + len(self.paper))
        parts = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(self.title)}}}",
            rf"\label{{tab:{label}}}",
            *self._type(),
            *(rf"\begin{{tabular}}{{{shape}}}", r"\toprule", first, r"\midrule"),
            *(*others, r"\bottomrule", r"\end{tabular}"),
            *([r"\par\medskip\raggedright\footnotesize"] if self.notes else []),
            *(_escape(note) + r"\par" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(parts) + "\n"

    def _type(self) -> list[str]:
        """What sets a table that is wider than a page's text in smaller type."""
        columns = zip(self._head, *map(self._cells, self.rows), strict=True)
        letters = sum(max(map(len, column)) + _BETWEEN for column in columns)
        if letters <= _WIDE:
            return []
        size = r"\footnotesize" if letters <= _WIDER else r"\scriptsize"
        return [size, r"\setlength{\tabcolsep}{3pt}"]

    @property
    def _head(self) -> list[str]:
        ours, papers = [c.title for c in self.columns], [c.title for c in self.paper]
        return [*self.labels, *ours, *(f"paper: {title}" for title in papers)]

    def _papers(self, row: Row) -> Sequence[Value]:
        return row.paper or [Value(None)] * len(self.paper)

    def _cells(self, row: Row) -> list[str]:
        return [*row.labels, *(v.text() for v in (*row.ours, *self._papers(row)))]


def _bare(x: float | None) -> str:
    return "" if x is None else repr(x)


def _escape(text: str) -> str:
    """Text as LaTeX, with what stands between backticks as code."""
    return re.sub(r"`([^`]*)`", r"\\texttt{\1}", text.translate(_LATEX))
