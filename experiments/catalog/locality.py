"""The role of context: entropy and loss of masked tokens, and updates per token."""

from experiments import paper
from experiments.catalog.solvers import best
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import model_note
from experiments.notes import weights_note
from experiments.scale import Scale, size
from experiments.store import Store
from experiments.table import Column, Row, Table, Value
from experiments.tasks.base import Result
from experiments.tasks.score import Context, Updates

MEASURES = (Column("entropy, nats"), Column("NLL, nats"))
STATES = 16_000  # partially masked sequences in the paper's figures of context
MANY = 6  # tokens with at least this many updates share one column
LOOPS = "Loops: the fraction of updates that restore the token before the last update."
FOLDS = "± is between five folds there, about sqrt(5) times the standard error."
AGAINST = {
    "neighbors": "revealed neighbors within 8",
    "distance": "distance to the nearest revealed token",
}
OPEN = "distance"  # its last bin includes all larger distances


def binned(kind: str) -> str:
    """The heading of a column of bins."""
    return AGAINST[kind] + (" (the last: or more)" if kind == OPEN else "")


def context(scale: Scale) -> Plan:
    """Entropy and negative log-likelihood by neighbors and distance; mask source, text."""
    rows = STATES // Context.draws if scale == "paper" else size("text", scale).rows
    task = Context(Cell("text", scale, flow("mask")).train(), rows)

    def points(store: Store, kind: str) -> list[tuple[float, tuple[Value, ...]]]:
        found = store.result(task)
        if found is None:
            return []
        curve = found[kind]
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
        states = f"{rows:,} held-out texts, each partially masked {task.draws} times"
        note = f"{states}; ± is one standard error."
        return [
            Table(
                f"Masked tokens by {binned(kind)}",
                (binned(kind),),
                MEASURES,
                tuple(Row((f"{x:g}",), values) for x, values in points(store, kind)),
                notes=(note,),
            )
            for kind in AGAINST
        ]

    def figures(store: Store) -> list[Curves]:
        found = {kind: points(store, kind) for kind in AGAINST}
        return [
            Curves(
                f"Masked tokens by {name}",
                name,
                MEASURES,
                {"CE": found[kind]},
                note="Bars: one standard error.",
                about=model_note(task.model, store),
                last=f"≥{found[kind][-1][0]:g}" if kind == OPEN and found[kind] else "",
            )
            for kind, name in AGAINST.items()
        ]

    return Plan((task,), tables, figures)


def updates(scale: Scale) -> Plan:
    """Updates per token and loops, Euler versus Neighbor; uniform source, text."""
    sizes = size("text", scale)
    model = Cell("text", scale, flow("uniform")).train()
    choices = best("text", "uniform")
    tasks = {
        name: Updates(model, choices[name], sizes.steps, sizes.n) for name in ("Euler", "Neighbor")
    }

    def found(store: Store) -> dict[str, Result]:
        results = {name: store.result(task) for name, task in tasks.items()}
        return {name: result for name, result in results.items() if result is not None}

    title = f"Updates per token, text, uniform source, {sizes.steps:,} steps"

    def tables(store: Store) -> list[Table]:
        ours = {
            name: (
                Value(each["updates_per_token"], each["standard_error"], 3),
                Value(100 * each["loop_share"], None, 2),
            )
            for name, each in found(store).items()
        }
        blank = (Value(None), Value(None))
        rows = tuple(Row((name,), ours.get(name, blank), paper.UPDATES[name]) for name in tasks)
        columns = (Column("updates per token"), Column("loops, %"))
        ours_note = f"{sizes.n:,} samples of one run; ± is one standard error. {LOOPS}"
        theirs = f"{paper.OWN_TEXT}; {FOLDS}"
        notes = (*weights_note(choices[name] for name in tasks), ours_note, theirs)
        return [Table(title, ("solver",), columns, rows, columns, notes)]

    def figures(store: Store) -> list[Curves]:
        lines = {}
        for name, each in found(store).items():
            counts = each["histogram"]
            counts = [*counts[:MANY], sum(counts[MANY:])]
            shares = [Value(100 * count / each["tokens"] or None) for count in counts]
            label = f"{name}, mean {each['updates_per_token']:.3f}"
            lines[label] = [(float(k), (share,)) for k, share in enumerate(shares)]
        column = Column("tokens, %", axis="log")
        note = "A line ends at the largest number of updates."
        about, last = model_note(model, store), f"≥{MANY}"
        return [Curves(title, "updates", (column,), lines, note=note, about=about, last=last)]

    return Plan(tuple(tasks.values()), tables, figures)
