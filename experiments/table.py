"""Tables of results beside the paper's: Markdown, CSV and LaTeX from one description."""

import csv
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_WIDE = 70  # letters that a page's text is wide
_LONG, _LONGER = 30, 40  # rows that leave room for notes, in its own type and in footnotes'
_BETWEEN = 2  # letters of room that two columns have between them
_PACKAGES = r"% Packages it needs: \usepackage{booktabs,graphicx}"
_LABEL = 25  # letters of a label's line, in a table that is wider
# Of a box of its natural width, or of the text's where that is less: classes differ.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
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
        if 0 < self.spread < math.inf and not self.printed:
            exponent = int(f"{self.spread:.1e}".partition("e")[2])  # of what is shown: 9.96 is 10
            digits = max(0, min(digits, 1 - exponent))
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
        """A float with a booktabs table that is no wider than the text, and the notes below.

        One that would be is set in footnotes' type, as a long one is, with headings and labels in
        several lines; what is too wide even so is scaled, by graphicx.
        """
        columns = list(zip(self._titles, *map(self._cells, self.rows), strict=True))
        wide = sum(max(map(_letters, column)) + _BETWEEN for column in columns) > _WIDE
        sides = "l" * len(self.labels) + "r" * (len(self.columns) + len(self.paper))
        each = zip(columns, sides, strict=True)
        shown = [_stacked(*one) if wide else [*map(_escape, one[0])] for one in each]
        lines = [list(line) for line in zip(*shown, strict=True)]
        first, *others = [" & ".join(line) + r" \\" for line in lines]
        parts = [
            _PACKAGES,
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(self.title)}}}",
            rf"\label{{tab:{label}}}",
            *self._type(wide=wide),
            *([r"\setlength{\tabcolsep}{3pt}"] if wide else []),
            *(rf"{_FIT}\begin{{tabular}}{{{sides}}}", r"\toprule", *self._whose()),
            *(first, r"\midrule", *others, r"\bottomrule", r"\end{tabular}}"),
            *([r"\par\medskip\raggedright\footnotesize"] if self.notes else []),
            *(_escape(note) + r"\par" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(parts) + "\n"

    def _type(self, *, wide: bool) -> list[str]:
        """What sets a table that is wider or longer than a page in smaller type."""
        if len(self.rows) > _LONGER:
            return [r"\scriptsize"]
        return [r"\footnotesize"] if wide or len(self.rows) > _LONG else []

    def _whose(self) -> list[str]:
        """Of a LaTeX table with the paper's values the line that says whose columns are."""
        if not self.paper:
            return []
        before, own = len(self.labels), len(self.labels) + len(self.columns)
        last = own + len(self.paper)
        here = rf"\multicolumn{{{own - before}}}{{c}}{{measured here}}"
        return [
            "& " * before + rf"{here} & \multicolumn{{{last - own}}}{{c}}{{paper}} \\",
            rf"\cmidrule(lr){{{before + 1}-{own}}} \cmidrule(lr){{{own + 1}-{last}}}",
        ]

    @property
    def _titles(self) -> list[str]:
        return [*self.labels, *(c.title for c in (*self.columns, *self.paper))]

    @property
    def _head(self) -> list[str]:
        own = len(self.labels) + len(self.columns)
        return [*self._titles[:own], *(f"paper: {title}" for title in self._titles[own:])]

    def _papers(self, row: Row) -> Sequence[Value]:
        return row.paper or [Value(None)] * len(self.paper)

    def _cells(self, row: Row) -> list[str]:
        return [*row.labels, *(v.text() for v in (*row.ours, *self._papers(row)))]


def _bare(x: float | None) -> str:
    return "" if x is None else repr(x)


def _letters(cell: str) -> int:
    """How many letters wide a cell is in LaTeX: a spread, which is set small, as if without ±."""
    return len(cell.replace(" ± ", ""))


def _escape(text: str) -> str:
    """Text as LaTeX, with what stands between backticks as code, and a number's spread small."""
    number = re.fullmatch(r"([-\d.,]+) ± ([\d.,]+)", text)
    if number:
        return rf"{number[1]}$_{{\pm {number[2]}}}$"
    return re.sub(r"`([^`]*)`", r"\\texttt{\1}", text.translate(_LATEX))


def _stacked(column: Sequence[str], side: str) -> list[str]:
    """A column as LaTeX with what is long in several lines: a heading over short cells, labels."""
    head, *cells = column
    longest = max(map(_letters, cells), default=0)
    if side == "l":
        return [_in_lines(cell, min(longest, _LABEL), side) for cell in column]
    return [_in_lines(head, longest, side), *map(_escape, cells)]


def _in_lines(text: str, width: int, side: str) -> str:
    """Text as LaTeX, in lines of so many letters where words allow it; an arrow is no word."""
    whole = re.sub(" (?=[↑↓])", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(whole, max(width, 1), break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return _escape(text)
    shown = r"\\".join(_escape(line.replace("\N{NO-BREAK SPACE}", " ")) for line in lines)
    return rf"\shortstack[{side}]{{{shown}}}"
