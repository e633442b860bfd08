"""What context does: entropy and loss against it, and how often solvers change their minds."""

from cwdfm.repro.cell import Cell
from cwdfm.repro.experiment import Plan
from cwdfm.repro.experiments.baselines import MASK, UNIFORM
from cwdfm.repro.experiments.solvers import best
from cwdfm.repro.figure import Curves
from cwdfm.repro.grid import COST
from cwdfm.repro.job import Store
from cwdfm.repro.jobs import Context, Updates
from cwdfm.repro.scale import Scale, size
from cwdfm.repro.table import Column, Row, Table, Value

MEASURES = (Column("entropy, nats"), Column("NLL, nats"))
AGAINST = {"neighbors": "revealed neighbours within 8", "distance": "distance to the nearest"}


def context(scale: Scale) -> Plan:
    """Entropy and negative log-likelihood against neighbours and distance; mask source, text."""
    job = Context(Cell("text", scale, MASK).train(), size("text", scale).rows)

    def points(store: Store, kind: str) -> list[tuple[float, tuple[Value, ...]]]:
        done = store.result(job)
        if done is None:
            return []
        curve = done["result"][kind]
        return [
            (
                float(b),
                (
                    Value(curve["entropy"][i], curve["entropy_error"][i], 3),
                    Value(curve["nll"][i], curve["nll_error"][i], 3),
                ),
            )
            for i, b in enumerate(curve["bins"])
        ]

    def tables(store: Store) -> list[Table]:
        return [
            Table(
                f"Masked tokens by {name}",
                (name,),
                MEASURES,
                tuple(Row((f"{x:g}",), values) for x, values in points(store, kind)),
            )
            for kind, name in AGAINST.items()
        ]

    def figures(store: Store) -> list[Curves]:
        return [
            Curves(f"Masked tokens by {name}", name, MEASURES, {"": points(store, kind)})
            for kind, name in AGAINST.items()
        ]

    return Plan((job,), tables, COST[scale], figures)


def updates(scale: Scale) -> Plan:
    """Updates per token and loops, Euler against Neighbor; uniform source, text."""
    sizes = size("text", scale)
    model = Cell("text", scale, UNIFORM).train()
    choices = best("text", "uniform")
    jobs = {
        name: Updates(model, choices[name], sizes.steps, sizes.n) for name in ("Euler", "Neighbor")
    }
    paper = {
        "Euler": (Value(1.033, 0.001, 3), Value(None)),
        "Neighbor": (Value(1.157, 0.001, 3), Value(0.02, None, 2)),
    }

    def tables(store: Store) -> list[Table]:
        rows = []
        for name, job in jobs.items():
            done = store.result(job)
            values = (Value(None), Value(None))
            if done is not None:
                found = done["result"]
                values = (
                    Value(found["updates_per_token"], found["standard_error"], 3),
                    Value(100 * found["loop_share"], None, 2),
                )
            rows.append(Row((name,), values, paper[name]))
        columns = (Column("updates per token"), Column("loops, %"))
        return [
            Table("Updates per token, uniform source", ("solver",), columns, tuple(rows), columns)
        ]

    return Plan(tuple(jobs.values()), tables, COST[scale])
