"""Tables of results with the paper's values, as Markdown, CSV and LaTeX."""

import csv
import io
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

_PACKAGES = r"% Requires \usepackage{booktabs,graphicx}"
# Shrinks a box that is wider than the text to the width of the text.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "%&_#${}"}
    # LaTeX could parse these as arguments of the preceding line break.
    | {sign: f"{{{sign}}}" for sign in "[]*"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": "$<$", ">": "$>$", "±": r"$\pm$", "≈": r"$\approx$", "≤": r"$\leq$", "≥": r"$\geq$"}
    | {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
)


@dataclass(frozen=True)
class Value:
    """A number with an optional spread, shown with at most `digits` decimals.

    A spread has two significant digits, and the number as many decimals as its spread. Values of
    the paper (`printed`) keep all their decimals.
    """

    value: float | None
    spread: float | None = None
    digits: int = 1
    printed: bool = False

    @classmethod
    def mean(cls, numbers: Sequence[float], digits: int = 1) -> "Value":
        """The mean of numbers, with the standard deviation of several; blank without any."""
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers) if numbers else None, spread, digits)

    def text(self) -> str:
        """The number, and "± spread" if there is one."""
        if self.value is None:
            return ""
        if self.spread is None:  # counts have no decimals
            whole = self.digits == 1 and float(self.value).is_integer()
            return f"{self.value:,.{0 if whole else self.digits}f}"
        digits = self.digits
        if 0 < self.spread < math.inf and not self.printed:
            # The exponent after rounding: 9.96 becomes 10.
            exponent = int(f"{self.spread:.1e}".partition("e")[2])
            digits = max(0, min(digits, 1 - exponent))
        return f"{self.value:,.{digits}f} ± {self.spread:,.{digits}f}"


@dataclass(frozen=True)
class Column:
    """A score: its name, whether larger is better (None: neither), and the kind of its axis.

    An axis fits the values; "zero" and "log" start at zero or are logarithmic for a large range.
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
    """Labels, our values, and the paper's values if there are any."""

    labels: tuple[str, ...]
    ours: tuple[Value, ...]
    paper: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Table:
    """Our values, followed by the columns of the paper."""

    title: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    paper: tuple[Column, ...] = ()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Markdown with the title as a heading and the notes below."""
        rule = ["---"] * len(self.labels) + ["---:"] * (len(self.columns) + len(self.paper))
        lines = [self._head, rule, *(self._cells(row) for row in self.rows)]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "".join(f"\n\n{note}" for note in self.notes)
        return f"### {self.title}\n\n{body}{notes}\n"

    def csv(self) -> str:
        """CSV with values and spreads in separate columns, in full precision."""
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
        """A LaTeX float with a booktabs table, scaled to the width of the text, and the notes below."""
        sides = "l" * len(self.labels) + "r" * (len(self.columns) + len(self.paper))
        lines = [self._titles, *map(self._cells, self.rows)]
        first, *others = [" & ".join(map(_escape, line)) + r" \\" for line in lines]
        parts = [
            *(_PACKAGES, r"\begin{table}", r"\centering"),
            *(rf"\caption{{{_escape(self.title)}}}", rf"\label{{tab:{label}}}"),
            *(rf"{_FIT}\begin{{tabular}}{{{sides}}}", r"\toprule", *self._whose()),
            *(first, r"\midrule", *others, r"\bottomrule", r"\end{tabular}}"),
            *([r"\par\medskip\raggedright\footnotesize"] if self.notes else []),
            *(_escape(note) + r"\par" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(parts) + "\n"

    def _whose(self) -> list[str]:
        """The LaTeX heading above our columns and the paper's columns."""
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


def make_table(
    title: str,
    labels: str,
    columns: Iterable[str] | Mapping[str, int],
    rows: Iterable[tuple[str | Sequence[str], Iterable[Value | float | None]]],
    notes: tuple[str, ...] = (),
) -> Table:
    """A table of our values.

    labels: the headings of the labels, separated by commas.
    columns: headings, which may end in "↑" or "↓"; a mapping gives the digits of their numbers.
    rows: one or several labels, and values or numbers.
    """
    arrows = {"↑": True, "↓": False}
    heads = tuple(Column(name.rstrip(" ↑↓"), arrows.get(name[-1])) for name in columns)
    digits = list(columns.values()) if isinstance(columns, Mapping) else [1] * len(heads)
    made = []
    for names, values in rows:
        shown = zip(values, digits, strict=True)
        ours = tuple(x if isinstance(x, Value) else Value(x, None, n) for x, n in shown)
        made.append(Row((names,) if isinstance(names, str) else tuple(names), ours))
    return Table(title, tuple(labels.split(", ")), heads, tuple(made), notes=notes)


def _bare(x: float | None) -> str:
    return "" if x is None else repr(x)


def _escape(text: str) -> str:
    """Text as LaTeX, with backticks as code and the spread of a number as a subscript."""
    number = re.fullmatch(r"([-\d.,]+) ± ([\d.,]+)", text)
    if number:
        return rf"{number[1]}$_{{\pm {number[2]}}}$"
    return re.sub(r"`([^`]*)`", r"\\texttt{\1}", text.translate(_LATEX))
