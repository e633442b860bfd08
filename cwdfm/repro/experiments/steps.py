"""The paper's figures of quality against steps: Euler, Neighbor and Entropy weights."""

from collections.abc import Callable

from cwdfm.method.choice import SolverChoice
from cwdfm.repro.cell import Cell
from cwdfm.repro.experiment import Plan
from cwdfm.repro.experiments.baselines import MASK, UNIFORM
from cwdfm.repro.experiments.training import COST
from cwdfm.repro.figure import Curves
from cwdfm.repro.job import Store
from cwdfm.repro.jobs import Corpus
from cwdfm.repro.measure import measure
from cwdfm.repro.scale import Scale, held_out, size
from cwdfm.repro.table import Row, Table

# The paper's best settings: (radius, scale, beta).
BEST: dict[tuple[Corpus, str], tuple[int, float, float]] = {
    ("text", "uniform"): (1, 5.0, 6.0),
    ("text", "mask"): (1, 5.0, 6.0),
    ("molecules", "uniform"): (1, 4.0, 7.0),
    ("molecules", "mask"): (1, 4.0, 6.0),
}


def solvers(corpus: Corpus, source: str) -> dict[str, SolverChoice]:
    """The three solvers with the paper's settings."""
    radius, scale, beta = BEST[corpus, source]
    return {
        "Euler": SolverChoice(solver="euler"),
        "Neighbor": SolverChoice(solver="neighbor", radius=radius, scale=scale),
        "Entropy": SolverChoice(solver="entropy", beta=beta),
    }


def plan_of(corpus: Corpus, source: str) -> Callable[[Scale], Plan]:
    """The plan of one figure."""
    fields = MASK if source == "mask" else UNIFORM
    name = f"{'OpenWebText' if corpus == 'text' else 'QM9'}, {source} source"

    def cells(scale: Scale) -> dict[str, list[Cell]]:
        sizes = size(corpus, scale)
        return {
            solver: [
                Cell(corpus, scale, fields, choice, steps, sizes.seeds) for steps in sizes.curve
            ]
            for solver, choice in solvers(corpus, source).items()
        }

    def table(scale: Scale, store: Store) -> Table:
        how = measure(corpus, scale)
        rows = [
            Row((solver, str(cell.steps)), cell.values(store))
            for solver, line in cells(scale).items()
            for cell in line
        ]
        rows.append(Row(("data", ""), how.values(store, held_out(corpus, scale, 0))))
        return Table(
            f"Quality against steps, {name}", ("solver", "steps"), how.columns, tuple(rows)
        )

    def curves(scale: Scale, store: Store) -> Curves:
        how = measure(corpus, scale)
        lines = {
            solver: [(float(cell.steps or 0), cell.values(store)) for cell in line]
            for solver, line in cells(scale).items()
        }
        level = how.values(store, held_out(corpus, scale, 0))
        return Curves(f"Quality against steps, {name}", "steps", how.columns, lines, level)

    def plan(scale: Scale) -> Plan:
        jobs = [job for line in cells(scale).values() for cell in line for job in cell.jobs()]
        jobs += measure(corpus, scale).jobs(held_out(corpus, scale, 0))
        return Plan(
            jobs=tuple(jobs),
            tables=lambda store: [table(scale, store)],
            figures=lambda store: [curves(scale, store)],
            cost=COST[scale],
        )

    return plan
