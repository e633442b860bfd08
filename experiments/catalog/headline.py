"""The paper's own setting on QM9: its network, learning rate and schedule; mask source.

Two comparisons that the paper makes much of: Euler against Neighbor weights, and cross-entropy
against its scaled form. At small scale the run is cut to what half an hour on one GPU allows.
"""

from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from experiments import paper
from experiments.catalog.solvers import best
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.recipe import Recipe
from experiments.scale import Scale, size

STEPS = 5000  # at small scale, of the paper's 25,000
FOLDS = 5
MASKED = "CE of masked tokens"


def fields(scale: Scale) -> dict[str, Any]:
    """What makes the scale's recipe the paper's, but for the number of steps."""
    own = size("molecules", scale).recipe
    if scale != "small":
        return {}  # toys stay toys, and the paper's is the paper's
    whole = replace(
        Recipe.named("qm9-paper"),
        data=own.data,
        steps=STEPS,
        compile=True,
        validate_every=STEPS // 4,
        checkpoint_every=STEPS,
        previews=0,
        elbo_rows=0,
    )
    ours = asdict(own)
    return {name: value for name, value in asdict(whole).items() if value != ours[name]}


def entries(scale: Scale) -> list[Entry]:
    """A row for every loss, solver and number of steps.

    At small scale also of a loss of masked tokens alone, which the paper's is not; by Euler.
    """
    sizes, found = size("molecules", scale), []
    folds = 1 if scale == "smoke" else FOLDS
    solvers = best("molecules", "mask")

    def add(loss: str, trained: dict[str, Any], names: Iterable[str], reported: str) -> None:
        for solver, k in product(names, sizes.curve):
            cell = Cell(
                "molecules",
                scale,
                fields(scale) | trained,
                solvers[solver],
                k,
                n=folds * sizes.fold_size,
            )
            theirs = paper.solved(reported, solver)
            found.append(Entry((loss, solver, str(k)), cell, f"{loss}, {solver}", k, theirs))

    add("CE", flow("mask", "ce"), solvers, "mask, ce")
    add("SCE", flow("mask", "sce"), ("Euler", "Neighbor"), "mask, sce")
    if scale == "small":
        add(MASKED, flow("mask", "ce", masked_only=True), ("Euler",), "")
    return found


def plan(scale: Scale) -> Plan:
    """The table and the curves."""
    title = "The paper's own setting on QM9, mask source"
    if scale == "small":
        whole = Recipe.named("qm9-paper").steps
        title += f", {STEPS:,} of its {whole:,} training steps"
    labels = ("loss", "solver", "steps")
    return grid(title, labels, entries, x="steps", log=True)(scale)
