"""Sections of docs/results.md: the paper's tables and figures, from results/repro."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.claims.judging import STORE
from cwdfm.repro.experiment import Experiment, Plan, numbered
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.table import Column, Row, Table, Value


def shown_in_repro() -> Iterator[tuple[Experiment, Plan, list[Table]]]:
    """The paper's tables and figures of which results/repro has most at small scale."""
    for experiment in EXPERIMENTS.values():
        plan = experiment.plan("small")
        tables = [_done(found) for found in map(filled, plan.tables(STORE)) if _half(found)]
        if tables:
            yield experiment, plan, tables


def repro() -> list[str]:
    """Their sections."""
    parts = []
    for experiment, plan, tables in shown_in_repro():
        done = [found for job in plan.jobs if (found := STORE.result(job)) is not None]
        shown = "\n".join(found.markdown() for found in tables)
        for stem, figure in numbered(experiment.name, plan.figures(STORE)):
            shown += f"\n![{figure.title}](figures/{stem}.png)\n"
        parts.append(
            f"## {experiment.title}, at small scale\n\n"
            f"`cwdfm repro {experiment.name} --scale small`, {len(done)} of {len(plan.jobs)} jobs."
            f"\n\n{shown}".rstrip()
        )
    return parts


def filled(found: Table) -> Table:
    """A table without its blank columns, which are told below it."""
    blank = [
        column
        for i, column in enumerate(found.columns)
        if all(row.ours[i].value is None for row in found.rows)
    ]
    if not blank or len(blank) == len(found.columns):
        return found

    def kept(columns: tuple[Column, ...], values: tuple[Value, ...]) -> tuple[Value, ...]:
        pairs = zip(columns, values, strict=bool(values))
        return tuple(value for column, value in pairs if column not in blank)

    rows = [
        Row(row.labels, kept(found.columns, row.ours), kept(found.paper, row.paper))
        for row in found.rows
    ]
    told = f"Not done yet: {'; '.join(column.name for column in blank)}."
    return replace(
        found,
        columns=tuple(c for c in found.columns if c not in blank),
        rows=tuple(rows),
        paper=tuple(c for c in found.paper if c not in blank),
        notes=(*found.notes, told),
    )


def _half(found: Table) -> bool:
    """Whether half of the cells have a number; the data's own do not count."""
    cells = [value.value for row in found.rows if "data" not in row.labels for value in row.ours]
    return bool(cells) and sum(value is not None for value in cells) >= 0.5 * len(cells)


def _done(found: Table) -> Table:
    """A table without its blank rows, which are told below it."""
    blank = [row for row in found.rows if all(value.value is None for value in row.ours)]
    if not blank:
        return found
    told = "; ".join(" ".join(filter(None, row.labels)) for row in blank)
    rows = tuple(row for row in found.rows if row not in blank)
    return replace(found, rows=rows, notes=(*found.notes, f"Not done yet: {told}."))
