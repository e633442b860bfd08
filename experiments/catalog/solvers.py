"""Solvers of models trained with cross-entropy: steps, weights, correctors."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from cwdfm.solver_config import Name
from experiments import paper
from experiments.cell import Cell, flow, weight_label
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.measure import measure
from experiments.scale import NAMES, Scale, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Column, Row, Table, Value
from experiments.tasks.base import Corpus

RADII = (1, 2, 3)
SCALES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
BETAS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
CORRECTORS = (0.0, 0.5, 1.0, 2.0, 5.0)
# The best settings of `sweep` on text at small scale: r, s and beta by source.
TUNED = {"uniform": (1, 3.0, 1.0), "mask": (1, 0.5, 2.0)}
CLOSE = 2.0  # settings within this many standard errors of the best are equally good


def best(corpus: Corpus, source: str) -> dict[str, SolverChoice]:
    """The three solvers with the paper's settings."""
    return solvers_with(*paper.BEST[corpus, source])


def solvers_with(radius: int, scale: float, beta: float) -> dict[str, SolverChoice]:
    return {
        "Euler": SolverChoice("euler"),
        "Neighbor": SolverChoice("neighbor", radius, scale),
        "Entropy": SolverChoice("entropy", beta=beta),
    }


def steps_cells(corpus: Corpus, source: str, scale: Scale) -> dict[tuple[str, int], Cell]:
    sizes = size(corpus, scale)
    return {
        (name, k): Cell(corpus, scale, flow(source), choice, k, sizes.seeds)
        for name, choice in best(corpus, source).items()
        for k in sizes.curve
    }


def steps(corpus: Corpus, source: str) -> Callable[[Scale], Plan]:
    title = f"Quality against steps, {NAMES[corpus]}, {source} source"

    @grid(title, ("solver", "steps"), x="steps", log=True)
    def plan(scale: Scale) -> Iterator[Entry]:
        for (name, k), cell in steps_cells(corpus, source, scale).items():
            yield Entry((name, str(k)), cell, name, k, paper.with_solver(f"{source}, ce", name))

    return plan


def tuned_cells(source: str, scale: Scale) -> dict[tuple[str, int], Cell]:
    """The cells by solver and number of steps, on text with tuned settings."""
    settings = paper.BEST["text", source] if scale == "paper" else TUNED[source]
    choices = solvers_with(*settings)
    choices["Neighbor-counted"] = replace(choices["Neighbor"], solver="neighbor-counted")
    choices["Entropy-counted"] = replace(choices["Entropy"], solver="entropy-counted")
    return {
        (name, k): Cell("text", scale, flow(source), choice, k, sample_seed=2000)
        for name, choice in choices.items()
        for k in size("text", scale).curve
    }


def tuned(source: str) -> Callable[[Scale], Plan]:
    """Quality over the number of steps on text, with settings tuned for our models.

    The sampling seed differs from that of the sweep. Includes weights that preserve the number of
    jumps (`Euler(counted=True)`).
    """

    title = f"Quality against steps, tuned settings, text, {source} source"

    @grid(title, ("solver", "steps"), x="steps", log=True)
    def plan(scale: Scale) -> Iterator[Entry]:
        for (name, k), cell in tuned_cells(source, scale).items():
            yield Entry((name, str(k)), cell, name, k)

    return plan


def sweep(corpus: Corpus, source: str) -> Callable[[Scale], Plan]:
    """Radius and scale of Neighbor weights, and beta of Entropy weights."""

    def entries(scale: Scale) -> list[Entry]:
        few = 1 if scale == "smoke" else None
        choices = {("Euler", ""): SolverChoice("euler")}
        for r, s in product(RADII[:few], SCALES[:few]):
            choices["Neighbor", weight_label(r, s)] = SolverChoice("neighbor", r, s)
        for beta in BETAS[:few]:
            choices["Entropy", f"beta = {beta:g}"] = SolverChoice("entropy", beta=beta)
        return [
            # A different seed from that of the other experiments.
            Entry(labels, Cell(corpus, scale, flow(source), choice, sample_seed=1000))
            for labels, choice in choices.items()
        ]

    title = f"Solver settings, {NAMES[corpus]}, {source} source"
    whole = grid(title, ("solver", "settings"))(entries)

    def plan(scale: Scale) -> Plan:
        found = whole(scale)
        best = partial(_best_settings, corpus, source, scale, entries(scale))
        return replace(found, tables=lambda store: [*found.tables(store), best(store)])

    return plan


def _best_settings(
    corpus: Corpus, source: str, scale: Scale, entries: Sequence[Entry], store: Store
) -> Table:
    """The settings with the most valid molecules or the highest MAUVE, next to the paper's.

    MAUVE of few samples is noisy, so the best setting is the one with the lowest perplexity among
    those within `CLOSE` standard errors of the highest MAUVE.
    """
    families: dict[str, list[tuple[tuple[Value, ...], SolverChoice]]] = {}
    for entry in entries:
        values = entry.cell.values(store)
        if values[0].value is not None:
            families.setdefault(entry.labels[0], []).append((values, entry.cell.choice))
    text = corpus == "text"
    best = {family: _best_of(found, text=text) for family, found in families.items()}
    ours = [Value(None)] * 3
    if "Neighbor" in best:
        choice = best["Neighbor"][1]
        ours[:2] = Value(choice.radius), Value(choice.scale)
    if "Entropy" in best:
        ours[2] = Value(best["Entropy"][1].beta)
    theirs = tuple(Value(each) for each in paper.BEST[corpus, source])
    row = Row((NAMES[corpus], source), tuple(ours), theirs)
    columns = (Column("r"), Column("s"), Column("beta"))
    how = measure(corpus, scale).columns
    shown = 2 if text else 1
    values_text = "; ".join(
        f"{family} {', '.join(value.text() for value in values[:shown])}"
        for family, (values, _) in best.items()
    )
    done = f"among {sum(map(len, families.values()))} of {len(entries)} settings"
    rule = f"By {how[0].name}, {done}"
    if text:
        rule += f"; within {CLOSE:g} standard errors of the highest, by {how[1].name}"
    notes = (f"{rule}: {values_text}.",)
    title = f"Best settings, {NAMES[corpus]}, {source} source"
    return Table(title, ("data", "source"), columns, (row,), columns, notes=notes)


def _best_of(
    found: Sequence[tuple[tuple[Value, ...], SolverChoice]], *, text: bool
) -> tuple[tuple[Value, ...], SolverChoice]:
    """The highest first value; for text the lowest perplexity among those close to it."""

    def first(one: tuple[tuple[Value, ...], SolverChoice]) -> float:
        return one[0][0].value or 0.0

    highest = max(found, key=first)
    if not text:
        return highest
    error = highest[0][0].spread or 0.0
    close = [
        one
        for one in found
        if first(highest) - first(one) <= CLOSE * math.hypot(error, one[0][0].spread or 0.0)
    ]
    return min(close, key=lambda one: one[0][1].value or math.inf)


@grid(
    "Predictor-corrector, text, uniform source",
    ("solver", "steps", "corrector"),
    x="scale of the corrector",
)
def corrector(scale: Scale) -> Iterator[Entry]:
    """Correctors of several strengths, with and without Neighbor weights; text.

    With the scale's number of steps, and with many steps.
    """
    radius, strength, _ = paper.BEST["text", "uniform"]
    plain = best("text", "uniform")
    names: tuple[tuple[str, Name], ...] = (("Euler", "euler"), ("Neighbor", "neighbor"))
    for steps, (name, solver) in product(corrector_steps(scale), names):
        for c in CORRECTORS[:2] if scale == "smoke" else CORRECTORS:
            choice = plain[name]  # shared with other experiments
            if c:
                choice = SolverChoice(solver, radius, strength, corrector=c)
            cell = Cell("text", scale, flow("uniform"), choice, steps)
            yield Entry((name, str(steps), f"{c:g}"), cell, f"{name}, {steps:,} steps", c)


def corrector_steps(scale: Scale) -> tuple[int, ...]:
    """The numbers of steps with which correctors are tested."""
    sizes = size("text", scale)
    return tuple(dict.fromkeys((sizes.steps, sizes.curve[-1])))
