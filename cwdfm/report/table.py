"""A table of strings, rendered for the terminal, as Markdown or as HTML."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from operator import itemgetter

from cwdfm.errors import load_extra

_WIDE = 10**4  # characters; wide enough that a terminal table is never wrapped


@dataclass(frozen=True)
class Table:
    """Rows of cells under `columns`. The first column is text, the others are numbers.

    `groups` is empty or has one heading per row. Consecutive rows with the same heading form a
    group.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...] = ()

    def grouped(self) -> list[tuple[str, list[tuple[str, ...]]]]:
        """The rows under each heading; one group with an empty heading if there are no groups."""
        headings = self.groups or ("",) * len(self.rows)
        pairs = groupby(zip(headings, self.rows, strict=True), key=itemgetter(0))
        return [(heading, [row for _, row in part]) for heading, part in pairs]

    def text(self) -> str:
        """Render for the terminal, with the rows of a group indented below its heading."""
        rich_table, rich_text = (load_extra(f"rich.{name}", "cli") for name in ("table", "text"))
        table = rich_table.Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="")
        for number, name in enumerate(self.columns):
            justify = "right" if number else "left"
            table.add_column(rich_text.Text(name), justify=justify, no_wrap=True)
        for heading, rows in self.grouped():
            indent = "  " if heading else ""
            if heading:
                table.add_row(rich_text.Text(heading))
            for first, *others in rows:
                table.add_row(*map(rich_text.Text, (indent + first, *others)))
        console = load_extra("rich.console", "cli").Console(width=_WIDE, file=io.StringIO())
        with console.capture() as capture:
            console.print(table)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def markdown(self) -> str:
        """Render as Markdown, with the groups in the first column."""
        rule = ("---", *["---:"] * (len(self.columns) - 1))
        lines: list[Sequence[str]] = [self.columns, rule, *self.rows]
        if self.groups:
            first = ("", "---", *self.groups)
            lines = [(group, *line) for group, line in zip(first, lines, strict=True)]
        escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
        return "".join(f"| {' | '.join(line)} |\n" for line in escaped)

    def html(self, kind: str = "numbers") -> str:
        """Render as HTML with the class `kind`, and one body per group, headed by its heading.

        The script of the page makes the columns sortable within groups.
        """
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        bodies = []
        for heading, rows in self.grouped():
            lines = []
            if heading:
                span = f'colspan="{len(self.columns)}" scope="rowgroup"'
                lines.append(f"<tr><th {span}>{escape(heading)}</th></tr>")
            for first, *others in rows:
                cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
                lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
            bodies.append("<tbody>\n" + "\n".join(lines) + "\n</tbody>\n")
        opening = f'<table class="{kind}">\n<thead><tr>{head}</tr></thead>'
        return f"{opening}\n{''.join(bodies)}</table>"


def format_estimate(value: float | None, error: float | None = None) -> str:
    """Format a value ± its error, to two significant digits of the error; "-" for None."""
    if value is None:
        return "-"
    if not error or not math.isfinite(error) or not math.isfinite(value):
        return f"{value:.5g}" if value < 1000 else f"{value:,.0f}"
    digits = min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{value:z,.{digits}f} ± {error:,.{digits}f}"
