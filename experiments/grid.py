"""Experiments that are a list of cells: a table with a row each, and curves where one varies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments import paper
from experiments.cell import (
    ERROR,
    TRAINING,
    Cell,
    apart_note,
    bars_note,
    drawn_note,
    loss_note,
    runs_note,
    solver_notes,
)
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.measure import measure
from experiments.scale import Scale, held_out
from experiments.store import Store
from experiments.table import Row, Table, Value
from experiments.tasks.train import Train

UNTOLD = "Paper: its tables, at its own scale; they do not tell the number of steps."
TIMES = "≈: about {:g} (valid) and {:g} (novel) times its tables' Euler, as its text tells."


@dataclass(frozen=True)
class Entry:
    """A row of the table, and a point of a curve."""

    labels: tuple[str, ...]
    cell: Cell
    line: str = ""  # which curve it is a point of, if any
    x: float = 0.0
    paper: str = ""  # the row of the paper's tables that the curve's own is


def grid(
    title: str,
    labels: tuple[str, ...],
    entries: Callable[[Scale], Sequence[Entry]],
    *,
    x: str | None = None,
    log: bool = False,
    likelihood: bool = False,
    notes: tuple[str, ...] = (),
) -> Callable[[Scale], Plan]:
    """The plan of such an experiment; all cells are of one corpus. With `x` there are curves.

    With `likelihood` the table has a column of held-out perplexity; `notes` say what its labels
    mean.
    """
    bounds = TRAINING[:1] if likelihood else ()

    def plan(scale: Scale) -> Plan:
        found = entries(scale)
        corpus = found[0].cell.corpus
        how, data = measure(corpus, scale), held_out(corpus, scale, 0)

        def values(cell: Cell, store: Store) -> tuple[Value, ...]:
            return (*cell.values(store), *(cell.training(store)[:1] if likelihood else ()))

        def tables(store: Store) -> list[Table]:
            rows = [Row(entry.labels, values(entry.cell, store)) for entry in found]
            rows.append(data_row(labels, how.values(store, data), more=len(bounds)))
            cells = [(entry.labels, entry.cell) for entry in found]
            told = (
                *notes,
                *settings([entry.cell for entry in found]),
                *runs_note(cells, store),
                *([ERROR] if likelihood else []),
                *apart_note(cells, store),
            )
            return [Table(title, labels, (*how.columns, *bounds), tuple(rows), notes=told)]

        def figures(store: Store) -> list[Curves]:
            return [] if x is None else [curves(title, x, found, store, log=log)]

        tasks = [task for entry in found for task in entry.cell.tasks(likelihood=likelihood)]
        return Plan((*tasks, *how.tasks(data)), tables, figures)

    return plan


def data_row(
    labels: tuple[str, ...],
    own: tuple[Value, ...],
    theirs: tuple[Value, ...] = (),
    *,
    more: int = 0,
) -> Row:
    """What the data's own values are, with `more` columns in which it has none."""
    return Row(("data", *[""] * (len(labels) - 1)), (*own, *[Value(None)] * more), theirs)


def curves(title: str, x: str, entries: Sequence[Entry], store: Store, *, log: bool) -> Curves:
    """Their lines, the data's, and the paper's values; all are of one corpus and source."""
    cell = entries[0].cell
    how, train = measure(cell.corpus, cell.scale), cell.train()
    panels = how.panels(train.recipe.source)

    def shown(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(values[i] for i in panels)

    lines: dict[str, list[tuple[float, tuple[Value, ...]]]] = {}
    theirs, worked_out = {}, {}
    for entry in filter(lambda entry: entry.line, entries):
        values = shown(how.barred(entry.cell.values(store)))
        lines.setdefault(entry.line, []).append((entry.x, values))
        if entry.paper and (reported := how.reported(entry.paper)):
            theirs[entry.line] = shown(reported)
            if entry.paper in paper.GAINS:
                worked_out[entry.line] = TIMES.format(*paper.GAINS[entry.paper][1:])
    cells = [entry.cell for entry in entries if entry.line]
    notes = [*settings(cells), bars_note(cells, store)]
    notes += [*([UNTOLD] if theirs else []), *dict.fromkeys(worked_out.values())]
    return Curves(
        title,
        x,
        tuple(how.columns[i] for i in panels),
        lines,
        shown(how.values(store, held_out(cell.corpus, cell.scale, 0))),
        log=log,
        note=" ".join(notes),
        about=trained(train, store),
        paper=theirs,
        worked_out=tuple(worked_out),
    )


def settings(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Of solvers and losses, as far as they do not vary; and how samples are drawn."""
    return *solver_notes(cells), *loss_note(cells), drawn_note(cells)


def trained(task: Train, store: Store) -> str:
    """How large a model is, and how long it was trained."""
    done, recipe = store.result(task), task.recipe
    told = f"{recipe.steps:,} training steps of {recipe.batch_size:,} sequences"
    if done is None:
        return told
    millions = done["result"]["parameters"] / 1e6
    return f"{round(millions) or round(millions, 2):g}M parameters, {told}"
