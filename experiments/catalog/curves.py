"""Every training with every solver, from few steps to many; QM9.

The tables of losses and paths look at one number of steps and one solver. Here each row is seen
with others too, so that a solver that suits one of them does not decide between them: with the
paper's settings for it, a context path with its own weights beside. What each training makes of its
best solver is a table of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from cwdfm.solver_config import SolverChoice
from experiments import paper
from experiments.catalog.solvers import best
from experiments.catalog.training import LOSSES, PATHS, SOURCES, Line
from experiments.cell import Cell, apart_note, drawn_note, loss_note, runs_note, weights_note
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, curves
from experiments.measure import measure
from experiments.scale import Scale, held_out, size
from experiments.store import Store
from experiments.table import Column, Row, Table, Value

CONTEXT_PATHS = tuple(line for line in PATHS if line.on_context)


@dataclass(frozen=True)
class Training:
    """A training, its solvers, and their cells at every number of steps."""

    source: str
    name: str
    cells: dict[str, dict[int, Cell]]  # by solver and steps


def training(line: Line, scale: Scale) -> Training:
    """The cells of a row of the tables of losses and paths."""
    fields = line.cell("molecules", scale).fields
    choices: dict[str, SolverChoice] = best("molecules", fields["source"])
    if line.on_context:  # the path's own weights beside
        own = line.choice("molecules")
        choices[f"Neighbor, s = {own.scale:g}"] = own
    seeds = size("molecules", scale).seeds
    cells = {
        solver: {k: Cell("molecules", scale, fields, choice, k, seeds) for k in steps_of(scale)}
        for solver, choice in choices.items()
    }
    name = "SCE, context path" if line.on_context else line.labels[1]
    return Training(line.fields["source"], name, cells)


def steps_of(scale: Scale) -> tuple[int, ...]:
    """The numbers of steps."""
    return size("molecules", scale).curve


def trainings(scale: Scale) -> list[Training]:
    """All of them."""
    lines = (*LOSSES[:1], *CONTEXT_PATHS[:1]) if scale == "smoke" else (*LOSSES, *CONTEXT_PATHS)
    return [training(line, scale) for s in SOURCES for line in lines if line.fields["source"] == s]


def _tables(scale: Scale, store: Store, found: Sequence[Training]) -> list[Table]:
    """One for each measure, and one of the best solvers."""
    tables: list[Table] = []
    columns = measure("molecules", scale).columns
    notes: tuple[str, ...] = ()
    for source in SOURCES:
        notes += weights_note(best("molecules", source).values(), f" with a {source} source")
    every = [cell for each in found for cells in each.cells.values() for cell in cells.values()]
    notes += (*loss_note(every), drawn_note(every))
    most = steps_of(scale)[-1]
    told = [((each.source, each.name), each.cells["Neighbor"][most]) for each in found]
    notes += runs_note(told, store)
    notes += apart_note(
        [
            ((f"{each.source}, {each.name}, {solver}", str(k)), cell)
            for each in found
            for solver, cells in each.cells.items()
            for k, cell in cells.items()
        ],
        store,
    )
    for i, column in enumerate(columns):
        if column.name == "unique":
            continue
        rows = [
            Row(
                (each.source, each.name, solver),
                tuple(cell.values(store)[i] for cell in cells.values()),
            )
            for each in found
            for solver, cells in each.cells.items()
        ]
        title = f"Every training with every solver, QM9: {column.name}"
        tables.append(_by_steps(title, scale, column, rows, ("As above.",) if tables else notes))
    return [*tables, _best(scale, columns[0], tables[0].rows)]


def _by_steps(
    title: str, scale: Scale, column: Column, rows: Sequence[Row], notes: tuple[str, ...]
) -> Table:
    """A measure, with a column for each number of steps."""
    columns = tuple(Column(f"{k} steps", column.up) for k in steps_of(scale))
    return Table(title, ("source", "training", "solver"), columns, tuple(rows), notes=notes)


def _best(scale: Scale, column: Column, rows: Sequence[Row]) -> Table:
    """Each training by Euler, and by what is best for it at each number of steps."""
    found: dict[tuple[str, ...], dict[str, tuple[Value, ...]]] = {}
    for row in rows:
        found.setdefault(row.labels[:2], {})[row.labels[2]] = row.ours
    steps, shown = steps_of(scale), []
    for labels, solved in found.items():
        chosen = {k: _most(solved, i) for i, k in enumerate(steps)}
        values = tuple(solved[solver][i] for i, solver in enumerate(chosen.values()))
        shown += [
            Row((*labels, "Euler"), solved["Euler"]),
            Row((*labels, f"best: {_when(chosen)}"), values),
        ]
    title = f"Each training by Euler and by its best solver, QM9: {column.name}"
    note = "The best is chosen by the counts that it shows, so that chance is part of its lead."
    return _by_steps(title, scale, column, shown, (note,))


def _most(solved: dict[str, tuple[Value, ...]], i: int) -> str:
    """The solver with the largest of the values at one place."""
    return max(solved, key=lambda solver: solved[solver][i].value or 0.0)


def _when(chosen: dict[int, str]) -> str:
    """Solvers with the numbers of steps at which they are chosen: Euler (16), Neighbor (32, 64)."""
    by_solver: dict[str, list[str]] = {}
    for k, solver in chosen.items():
        by_solver.setdefault(solver, []).append(str(k))
    return ", ".join(f"{solver} ({', '.join(at)})" for solver, at in by_solver.items())


def _figures(store: Store, found: Sequence[Training]) -> list[Curves]:
    """All trainings with one solver, for each source and solver."""
    rows = {(line.fields["source"], line.labels[1]): line.name for line in LOSSES}
    figures = []
    for source, solver in product(SOURCES, ("Euler", "Neighbor", "Entropy")):
        entries = [
            Entry(
                (),
                cell,
                each.name + name.removeprefix(solver),
                k,
                paper.solved(rows.get((source, each.name), ""), solver),
            )
            for each in found
            for name, cells in each.cells.items()
            if each.source == source and name.startswith(solver)
            for k, cell in cells.items()
        ]
        title = f"Quality against steps, QM9, {source} source, {solver}"
        if entries:
            figures.append(curves(title, "steps", entries, store, log=True))
    return figures


def plan(scale: Scale) -> Plan:
    """Tables and figures."""
    found = trainings(scale)
    how = measure("molecules", scale)
    cells = [cell for each in found for row in each.cells.values() for cell in row.values()]
    tasks = [task for cell in cells for task in cell.tasks()]
    tasks += how.tasks(held_out("molecules", scale, 0))
    return Plan(
        tasks=tuple(tasks),
        tables=lambda store: _tables(scale, store, found),
        figures=lambda store: _figures(store, found),
    )
