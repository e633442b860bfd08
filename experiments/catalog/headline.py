"""The paper's setup on QM9: its network, learning rate and schedule; mask source.

Two central comparisons of the paper: Euler against Neighbor weights, and CE against SCE. At small
scale training is shortened to half an hour on one GPU.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from experiments import paper
from experiments.catalog.leak import CHANGES, NOTES, changes
from experiments.catalog.solvers import best
from experiments.catalog.training import LOSS_NAMES
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.recipe import Recipe
from experiments.scale import Scale, size

STEPS = 5000  # training steps at small scale; the paper has 25,000
FOLDS = 5
LOOKS = (3125, 6250, 12_500)  # the snapshots of the long training
STEPS_OF_SOLVER = 64
MASKED = "CE of masked tokens"


def fields(scale: Scale) -> dict[str, Any]:
    """The changes that turn the scale's recipe into the paper's, except the number of steps."""
    if scale != "small":
        return {}
    whole = replace(
        Recipe.named("qm9-paper"),
        data="molecules",
        steps=STEPS,
        compile=True,
        validate_every=STEPS // 4,
        checkpoint_every=STEPS,
        previews=0,
        elbo_rows=0,
    )
    return changes(scale, whole)


@grid(
    "The paper's setting on QM9, mask source, during its 25,000 training steps",
    ("loss", "dropout", "step", "solver", "sampling"),
    notes=NOTES,
)
def long(scale: Scale) -> list[Entry]:
    """The paper's schedule of 25,000 steps, with and without dropout, up to LONG steps.

    Also samples the snapshot that the page on dropout compares with dropout on, and without
    carry-over.
    """
    found, few = [], scale == "smoke"
    whole = fields(scale)
    if scale == "small":
        steps = Recipe.named("qm9-paper").steps
        whole |= {"steps": steps, "validate_every": 625, "checkpoint_every": 625}
    looks = LOOKS if scale == "small" else ()
    until = max(looks, default=0)
    euler, neighbor = (best("molecules", "mask")[name] for name in ("Euler", "Neighbor"))
    for loss, dropout in product(("ce", "sce"), (0.1, 0.0)):
        trained = whole | flow("mask", loss, dropout=dropout)
        for at, (name, choice) in product(
            looks or (None,), {"Euler": euler, "Neighbor": neighbor}.items()
        ):
            for change, options in CHANGES.items():
                if options and (loss, dropout) != ("ce", 0.1):
                    continue
                cell = Cell(
                    "molecules",
                    scale,
                    trained,
                    choice,
                    STEPS_OF_SOLVER,
                    snapshots=looks,
                    at=at,
                    until=until,
                    n=None if few else FOLDS * size("molecules", scale).fold_size,
                    **options,
                )
                labels = (LOSS_NAMES[loss], f"{dropout:g}", str(at or "all"), name, change)
                found.append(Entry(labels, cell))
    return found


def entries(scale: Scale) -> list[Entry]:
    """A row for every loss, solver and number of steps.

    At small scale this includes Euler with a loss on masked tokens only, which the paper does not
    use.
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
            theirs = paper.with_solver(reported, solver)
            found.append(Entry((loss, solver, str(k)), cell, f"{loss}, {solver}", k, theirs))

    add("CE", flow("mask", "ce"), solvers, "mask, ce")
    add("SCE", flow("mask", "sce"), ("Euler", "Neighbor"), "mask, sce")
    if scale == "small":
        add(MASKED, flow("mask", "ce", masked_only=True), ("Euler",), "")
    return found


def plan(scale: Scale) -> Plan:
    title = "The paper's setting on QM9, mask source"
    if scale == "small":
        whole = Recipe.named("qm9-paper").steps
        title += f", {STEPS:,} of its {whole:,} training steps"
    labels = ("loss", "solver", "steps")
    return grid(title, labels, x="steps", log=True)(entries)(scale)
