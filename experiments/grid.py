"""Experiments that consist of a list of cells: a table with a row per cell, and curves."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from experiments import paper
from experiments.cell import TRAINING, Cell
from experiments.experiment import Plan
from experiments.figure import Curves, Points
from experiments.measure import measure
from experiments.notes import (
    ERROR,
    bars_note,
    earlier_runs_note,
    loss_note,
    runs_note,
    samples_note,
    solver_notes,
)
from experiments.scale import Scale, held_out
from experiments.store import Store
from experiments.table import Row, Table, Value
from experiments.tasks.sample import HeldOut
from experiments.tasks.train import Train

STEPS_UNKNOWN = "Paper: its tables at its own scale, for an unknown number of steps."
FACTORS = "≈: about {:g} (valid) and {:g} (novel) times Euler in its tables, from its text."


@dataclass(frozen=True)
class Entry:
    """A row of the table, and a point on a curve."""

    labels: tuple[str, ...]
    cell: Cell
    line: str = ""  # the name of the curve, if it is on one
    x: float = 0.0
    paper: str = ""  # the row of the paper's tables with the same settings


def grid(
    title: str,
    labels: tuple[str, ...],
    *,
    x: str | None = None,
    log: bool = False,
    likelihood: bool = False,
    notes: tuple[str, ...] = (),
    data: HeldOut | None = None,
) -> Callable[[Callable[[Scale], Iterable[Entry]]], Callable[[Scale], Plan]]:
    """Decorate a function of a scale that yields the entries, all of one corpus: make it a plan.

    x: the label of the x axis; None draws no curves.
    likelihood: add a column of held-out perplexity.
    notes: explanations of the labels.
    data: held-out sequences for the last row; by default, as long and as many as the samples.
    """
    bounds = TRAINING[:1] if likelihood else ()

    def values(cell: Cell, store: Store) -> tuple[Value, ...]:
        return (*cell.values(store), *(cell.training(store)[:1] if likelihood else ()))

    def decorate(entries: Callable[[Scale], Iterable[Entry]]) -> Callable[[Scale], Plan]:
        def plan(scale: Scale) -> Plan:
            found = list(entries(scale))
            corpus = found[0].cell.corpus
            how, known = measure(corpus, scale), data or held_out(corpus, scale, 0)

            def tables(store: Store) -> list[Table]:
                rows = [Row(entry.labels, values(entry.cell, store)) for entry in found]
                rows.append(data_row(labels, how.values(store, known), more=len(bounds)))
                cells = [(entry.labels, entry.cell) for entry in found]
                notes_below = (
                    *notes,
                    *settings([entry.cell for entry in found]),
                    *runs_note(cells, store),
                    *([ERROR] if likelihood else []),
                    *earlier_runs_note(cells, store),
                )
                columns = (*how.columns, *bounds)
                return [Table(title, labels, columns, tuple(rows), notes=notes_below)]

            def figures(store: Store) -> list[Curves]:
                return [] if x is None else [curves(title, x, found, store, log=log)]

            tasks = [task for entry in found for task in entry.cell.tasks(likelihood=likelihood)]
            return Plan((*tasks, *how.tasks(known)), tables, figures)

        return plan

    return decorate


def data_row(
    labels: tuple[str, ...],
    own: tuple[Value, ...],
    theirs: tuple[Value, ...] = (),
    *,
    more: int = 0,
) -> Row:
    """The row of held-out data, with `more` blank columns at the end."""
    return Row(("data", *[""] * (len(labels) - 1)), (*own, *[Value(None)] * more), theirs)


def curves(title: str, x: str, entries: Sequence[Entry], store: Store, *, log: bool) -> Curves:
    """Curves of entries of one corpus and source, with the values of the data and the paper."""
    cell = entries[0].cell
    how, train = measure(cell.corpus, cell.scale), cell.train()
    panels = how.panels(train.recipe.source)

    def shown(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(values[i] for i in panels)

    lines: dict[str, list[tuple[float, tuple[Value, ...]]]] = {}
    theirs, approximate = {}, {}
    for entry in filter(lambda entry: entry.line, entries):
        values = shown(how.with_error_bars(entry.cell.values(store)))
        lines.setdefault(entry.line, []).append((entry.x, values))
        if entry.paper and (reported := how.reported(entry.paper)):
            theirs[entry.line] = shown(reported)
            if entry.paper in paper.GAINS:
                approximate[entry.line] = FACTORS.format(*paper.GAINS[entry.paper][1:])
    cells = [entry.cell for entry in entries if entry.line]
    notes = [*settings(cells), bars_note(cells, store)]
    notes += [*([STEPS_UNKNOWN] if theirs else []), *dict.fromkeys(approximate.values())]
    return Curves(
        title,
        x,
        tuple(how.columns[i] for i in panels),
        lines,
        shown(how.values(store, held_out(cell.corpus, cell.scale, 0))),
        log=log,
        note=" ".join(notes),
        about=model_note(train, store),
        paper=theirs,
        approximate=tuple(approximate),
    )


def settings(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Notes on solvers, losses and samples that are the same for all cells."""
    return *solver_notes(cells), *loss_note(cells), samples_note(cells)


def model_note(task: Train, store: Store) -> str:
    """The size of a model and the length of its training."""
    done, recipe = store.result(task), task.recipe
    training = f"{recipe.steps:,} training steps of {recipe.batch_size:,} sequences"
    if done is None:
        return training
    millions = done["parameters"] / 1e6
    return f"{round(millions) or round(millions, 2):g}M parameters, {training}"


def validation_losses(task: Train, store: Store) -> Points:
    """The validation losses of a training by step."""
    done = store.result(task)
    metrics = [] if done is None else done["metrics"]
    losses = {each["step"]: each.get("validation_loss") for each in metrics}
    return [(step, (Value(loss),)) for step, loss in losses.items() if loss]
