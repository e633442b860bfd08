"""Dropout reveals positions to a mask-source network with rotary embeddings; QM9.

During training, each position of a masked sequence has its own dropout noise, which tells the
network where it is. During sampling there is no such noise. The experiment measures the loss in
both modes, and samples with dropout off and on. It also samples without carry-over, where revealed
tokens may change.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from experiments.catalog.solvers import best
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.recipe import Recipe
from experiments.scale import Scale, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Table, make_table
from experiments.tasks.base import Task
from experiments.tasks.score import LossModes

STEPS = 64  # of the solver
DROPOUT = 0.1  # the paper's
TRAININGS: dict[tuple[str, str], dict[str, Any]] = {
    ("rotary", "0.1"): {"dropout": DROPOUT},
    ("rotary", "0"): {"dropout": 0.0},
    ("rotary, first token given", "0.1"): {"dropout": DROPOUT, "fix_first": True},
    ("rotary, first token given", "0"): {"dropout": 0.0, "fix_first": True},
    ("learned", "0.1"): {"dropout": DROPOUT, "learned_positions": True},
    ("learned", "0"): {"dropout": 0.0, "learned_positions": True},
}
CHANGES: dict[str, dict[str, Any]] = {
    "": {},
    "dropout on": {"dropout": True},
    "no carry-over": {"carry_over": False},
}
LABELS = ("positions", "dropout", "solver", "sampling")
NOTES = (
    "Dropout on: the network stays in training mode while it samples. No carry-over: revealed "
    "tokens may change, and a token counts as revealed if it equals its proposal.",
)
# A network that trains on one CPU core in minutes.
ON_A_CPU = replace(
    Recipe.named("qm9-debug"),
    data="molecules",
    steps=2500,
    batch_size=64,
    warmup=200,
    ema=0.999,
    validate_every=1000,
    checkpoint_every=1000,
    previews=0,
    elbo_rows=0,
)


@dataclass(frozen=True)
class Leak:
    """The experiment for one size of network."""

    scale: Scale
    fields: dict[str, Any]  # changes to the recipe of the scale
    trainings: tuple[tuple[str, str], ...]  # keys of TRAININGS
    solvers: dict[str, SolverChoice]
    seeds: int
    title: str

    def cell(self, key: tuple[str, str]) -> Cell:
        fields = self.fields | flow("mask") | TRAININGS[key]
        return Cell("molecules", self.scale, fields, steps=STEPS, seeds=self.seeds)

    def entries(self, _: Scale) -> Iterator[Entry]:
        for key in self.trainings:
            for (name, choice), (change, options) in (
                (solver, change) for solver in self.solvers.items() for change in CHANGES.items()
            ):
                if not (options.get("dropout") and key[1] == "0"):
                    cell = replace(self.cell(key), choice=choice, **options)
                    yield Entry((*key, name, change), cell)

    def losses(self, key: tuple[str, str]) -> list[LossModes]:
        rows = size("molecules", self.scale).rows
        return [LossModes(self.cell(key).train(seed), rows) for seed in range(self.seeds)]

    def loss_table(self, store: Store) -> Table:
        names = ("training mode", "evaluation mode", "t = 0, training", "t = 0, evaluation")
        columns = {f"{name} ↓": 3 for name in names}
        rows = [(key, mean_losses(store, self.losses(key))) for key in self.trainings]
        title = f"Cross-entropy in nats per token, {self.title}"
        notes = ("Held-out sequences at all times, and fully masked ones (t = 0).",)
        return make_table(title, ", ".join(LABELS[:2]), columns, rows, notes)

    def plan(self) -> Plan:
        title = f"Sampling with dropout and without carry-over, {self.title}"
        found = grid(title, LABELS, notes=NOTES)(self.entries)(self.scale)
        tasks: list[Task] = []  # one training after the other
        for key in self.trainings:
            cells = [entry.cell for entry in self.entries(self.scale) if entry.labels[:2] == key]
            tasks += [*self.losses(key), *(task for cell in cells for task in cell.tasks())]
        return replace(
            found,
            tasks=(*tasks, *found.tasks),
            tables=lambda store: [self.loss_table(store), *found.tables(store)],
        )


def mean_losses(store: Store, tasks: list[LossModes]) -> list[float | None]:
    """Means over seeds: over times and at t = 0, each in both modes."""
    results = [found for task in tasks if (found := store.result(task)) is not None]
    places = [(mode, what) for what in ("path", "start") for mode in ("training", "evaluation")]
    if not results:
        return [None] * len(places)
    return [sum(r[m][w] for r in results) / len(results) for m, w in places]


def changes(scale: Scale, whole: Recipe) -> dict[str, Any]:
    """The fields of `whole` that differ from the recipe of the scale."""
    ours = asdict(size("molecules", scale).recipe)
    return {name: value for name, value in asdict(whole).items() if value != ours[name]}


def plan(scale: Scale) -> Plan:
    """Networks of 17M parameters at small scale."""
    few = scale == "smoke"
    trainings = tuple(TRAININGS)[: 2 if few else None]
    solvers = {k: v for k, v in best("molecules", "mask").items() if k != "Entropy"}
    seeds = size("molecules", scale).seeds
    return Leak(scale, {}, trainings, solvers, seeds, "QM9, mask source").plan()


def on_a_cpu(scale: Scale) -> Plan:
    """The same with a network of 0.1M parameters, one run, with rotary embeddings alone."""
    trainings = tuple(TRAININGS)[:2]
    fields = changes(scale, ON_A_CPU) if scale == "small" else {}
    solvers = {"Euler": SolverChoice("euler")}
    title = "QM9, mask source, a network of 0.1M parameters"
    return Leak(scale, fields, trainings, solvers, 1, title).plan()
