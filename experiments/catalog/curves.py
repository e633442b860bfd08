"""All trainings with all solvers, at few to many steps; QM9.

The tables of losses and paths use one number of steps and one solver, which may favor some rows.
Here every row is sampled with all solvers in the paper's settings, and models trained on a context
path also with the weights of that path. Another table compares the best solvers of the trainings.
"""

from collections.abc import Sequence
from itertools import product

from experiments import paper
from experiments.catalog.solvers import best
from experiments.catalog.training import LOSSES, PATHS, SOURCES
from experiments.cell import Cell
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, curves
from experiments.measure import measure
from experiments.notes import earlier_runs_note, loss_note, runs_note, samples_note, weights_note
from experiments.scale import Scale, held_out, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Column, Row, Table, Value

CONTEXT_PATHS = tuple(line for line in PATHS if line.on_context)


Cells = dict[tuple[str, str, str], dict[int, Cell]]  # by source, training and solver; by steps


def steps_of(scale: Scale) -> tuple[int, ...]:
    return size("molecules", scale).curve


def all_cells(scale: Scale) -> Cells:
    """The cells of every row of the tables of losses and paths, with every solver."""
    lines = (*LOSSES[:1], *CONTEXT_PATHS[:1]) if scale == "smoke" else (*LOSSES, *CONTEXT_PATHS)
    seeds, found = size("molecules", scale).seeds, Cells()
    for line in sorted(lines, key=lambda line: SOURCES.index(line.fields["source"])):
        source, fields = line.fields["source"], line.cell("molecules", scale).fields
        choices: dict[str, SolverChoice] = best("molecules", source)
        if line.on_context:  # also the weights of the path
            own = line.choice("molecules")
            choices[f"Neighbor, s = {own.scale:g}"] = own
        name = "SCE, context path" if line.on_context else line.labels[1]
        for solver, choice in choices.items():
            found[source, name, solver] = {
                k: Cell("molecules", scale, fields, choice, k, seeds) for k in steps_of(scale)
            }
    return found


def _tables(scale: Scale, store: Store, found: Cells) -> list[Table]:
    """One table per score, and one of the best solvers."""
    notes: tuple[str, ...] = ()
    for source in SOURCES:
        notes += weights_note(best("molecules", source).values(), f" with a {source} source")
    every = [cell for cells in found.values() for cell in cells.values()]
    notes += (*loss_note(every), samples_note(every))
    most = steps_of(scale)[-1]
    trainings = [(k[:2], cells[most]) for k, cells in found.items() if k[2] == "Neighbor"]
    notes += runs_note(trainings, store)
    labeled = [
        ((", ".join(labels), str(k)), cell)
        for labels, cells in found.items()
        for k, cell in cells.items()
    ]
    notes += earlier_runs_note(labeled, store)
    tables: list[Table] = []
    columns = measure("molecules", scale).columns
    for i, column in enumerate(columns):
        if column.name == "unique":
            continue
        rows = [
            Row(labels, tuple(cell.values(store)[i] for cell in cells.values()))
            for labels, cells in found.items()
        ]
        title = f"Every training with every solver, QM9: {column.name}"
        tables.append(_by_steps(title, scale, column, rows, ("As above.",) if tables else notes))
    return [*tables, _best(scale, columns[0], tables[0].rows)]


def _by_steps(
    title: str, scale: Scale, column: Column, rows: Sequence[Row], notes: tuple[str, ...]
) -> Table:
    """A score, with a column for each number of steps."""
    columns = tuple(Column(f"{k} steps", column.up) for k in steps_of(scale))
    return Table(title, ("source", "training", "solver"), columns, tuple(rows), notes=notes)


def _best(scale: Scale, column: Column, rows: Sequence[Row]) -> Table:
    """Each training with Euler, and with its best solver at each number of steps."""
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
    title = f"Each training with Euler and with its best solver, QM9: {column.name}"
    note = "The best is selected by the shown counts, so its advantage is biased upwards."
    return _by_steps(title, scale, column, shown, (note,))


def _most(solved: dict[str, tuple[Value, ...]], i: int) -> str:
    return max(solved, key=lambda solver: solved[solver][i].value or 0.0)


def _when(chosen: dict[int, str]) -> str:
    """Format solvers and the numbers of steps at which they win: Euler (16), Neighbor (32, 64)."""
    by_solver: dict[str, list[str]] = {}
    for k, solver in chosen.items():
        by_solver.setdefault(solver, []).append(str(k))
    return ", ".join(f"{solver} ({', '.join(at)})" for solver, at in by_solver.items())


def _figures(store: Store, found: Cells) -> list[Curves]:
    """One figure per source and solver, with a line per training."""
    rows = {(line.fields["source"], line.labels[1]): line.name for line in LOSSES}
    figures = []
    for source, solver in product(SOURCES, ("Euler", "Neighbor", "Entropy")):
        entries = [
            Entry(
                (),
                cell,
                training + name.removeprefix(solver),
                k,
                paper.with_solver(rows.get((source, training), ""), solver),
            )
            for (of, training, name), cells in found.items()
            if of == source and name.startswith(solver)
            for k, cell in cells.items()
        ]
        title = f"Quality against steps, QM9, {source} source, {solver}"
        if entries:
            figures.append(curves(title, "steps", entries, store, log=True))
    return figures


def plan(scale: Scale) -> Plan:
    found = all_cells(scale)
    tasks = [task for cells in found.values() for cell in cells.values() for task in cell.tasks()]
    tasks += measure("molecules", scale).tasks(held_out("molecules", scale, 0))
    return Plan(
        tasks=tuple(tasks),
        tables=lambda store: _tables(scale, store, found),
        figures=lambda store: _figures(store, found),
    )
