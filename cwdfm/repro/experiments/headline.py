"""The paper's own setting on QM9: its network, learning rate and schedule; mask source.

Two comparisons that the paper makes much of: Euler against Neighbor weights, and cross-entropy
against its scaled form. At small scale the run is cut to what half an hour on one GPU allows.
"""

from dataclasses import asdict, replace
from typing import Any

from cwdfm.repro.cell import Cell, flow
from cwdfm.repro.experiment import Plan
from cwdfm.repro.experiments.solvers import best
from cwdfm.repro.experiments.training import LOSS_NAMES
from cwdfm.repro.grid import Entry, grid
from cwdfm.repro.scale import Scale, size
from cwdfm.train.recipes import RECIPES

STEPS = 5000  # at small scale, of the paper's 25,000
FOLDS = 5


def fields(scale: Scale) -> dict[str, Any]:
    """What makes the scale's recipe the paper's, but for the number of steps."""
    own = size("molecules", scale).recipe
    if scale != "small":
        return {}  # toys stay toys, and the paper's is the paper's
    paper = replace(
        RECIPES["qm9-paper"](),
        data=own.data,
        steps=STEPS,
        compile=True,
        validate_every=STEPS // 4,
        checkpoint_every=STEPS,
        previews=0,
        elbo_rows=0,
    )
    ours = asdict(own)
    return {name: value for name, value in asdict(paper).items() if value != ours[name]}


def entries(scale: Scale) -> list[Entry]:
    """A row for every loss, solver and number of steps."""
    sizes, found = size("molecules", scale), []
    folds = 1 if scale == "smoke" else FOLDS
    for loss in ("ce", "sce"):
        name = LOSS_NAMES[loss]
        for solver, choice in best("molecules", "mask").items():
            if (name, solver) == ("SCE", "Entropy"):
                continue  # in neither of the two comparisons
            for k in sizes.curve:
                cell = Cell(
                    "molecules",
                    scale,
                    fields(scale) | flow("mask", loss),
                    choice,
                    k,
                    n=folds * sizes.fold_size,
                )
                reported = f"mask, {loss}" if solver == "Euler" else ""
                line = f"{name}, {solver}"
                found.append(Entry((name, solver, str(k)), cell, line, k, reported))
    return found


def plan(scale: Scale) -> Plan:
    """The table and the curves."""
    title = "The paper's own setting on QM9, mask source"
    if scale == "small":
        whole = RECIPES["qm9-paper"]().steps
        title += f", {STEPS:,} of its {whole:,} training steps"
    labels = ("loss", "solver", "steps")
    return grid(title, labels, entries, x="steps", log=True)(scale)
