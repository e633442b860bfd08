"""Losses and paths with settings tuned at small scale, over several runs."""

from collections.abc import Callable
from typing import Any

from experiments.catalog.training import EULER, SOURCES, context_line, loss_line
from experiments.cell import Cell, flow, weight_label
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.scale import NAMES, Scale, size
from experiments.solver_choice import SolverChoice
from experiments.tasks.base import Corpus

RUNS = 3
# The best settings of `sweep-training-*` on molecules and `radius` on text: r and s of the loss
# and of the path. What is missing here was not tuned.
LOSS: dict[tuple[Corpus, str], tuple[int, float]] = {
    ("molecules", "uniform"): (1, 0.5),
    ("molecules", "mask"): (1, 0.5),
    ("text", "uniform"): (1, 0.5),
}
PATH: dict[tuple[Corpus, str], tuple[int, float]] = {
    ("molecules", "uniform"): (2, 2.0),
    ("molecules", "mask"): (3, 2.0),
}
NOTES: dict[Corpus, tuple[str, ...]] = {
    "molecules": (
        "Weights: those of the loss; on a context path those of the path, whose loss has r = 3 as "
        "in `paths`. The first setting of each is that of `losses` and `paths`, the second the best "
        "one of `sweep-training-uniform` and `sweep-training-mask`, which used the first training "
        "seed and a different sampling seed.",
        "A context path is sampled with its own weights and with Euler.",
    ),
    "text": (
        "Weights: those of the loss. The first setting is that of `losses`, the second the best one "
        "of `radius` with a uniform source, which used the first of these runs.",
    ),
}

Labels = tuple[str, str, str, str]  # source, training, weights, solver


def tuned_trainings(corpus: Corpus, scale: Scale) -> dict[Labels, Cell]:
    """The cells by source, training, weights and solver; paths only if their weights were tuned."""
    recipe = size(corpus, scale).recipe
    seeds = RUNS if scale == "small" else size(corpus, scale).seeds
    found: dict[Labels, tuple[dict[str, Any], SolverChoice]] = {}
    for source in SOURCES[:1] if scale == "smoke" else SOURCES:
        found[source, "CE", "", "Euler"] = loss_line(source, "ce").fields, EULER
        weights = [(recipe.loss_radius, recipe.loss_scale)]
        weights += [LOSS[corpus, source]] if (corpus, source) in LOSS else []
        for r, s in weights:
            fields = flow(source, "sce", loss_radius=r, loss_scale=s)
            found[source, "SCE", weight_label(r, s), "Euler"] = fields, EULER
        if (corpus, source) not in PATH:
            continue
        first = context_line(source, "").cell(corpus, scale)
        for r, s in ((first.choice.radius, first.choice.scale), PATH[corpus, source]):
            fields = first.fields | {"path_radius": r, "path_scale": s}
            labels = source, "SCE, context path", weight_label(r, s)
            found[*labels, "own"] = fields, SolverChoice("neighbor", r, s)
            found[*labels, "Euler"] = fields, EULER
    return {
        labels: Cell(corpus, scale, fields, choice, seeds=seeds)
        for labels, (fields, choice) in found.items()
    }


def tuned(corpus: Corpus) -> Callable[[Scale], Plan]:
    """The paper's comparisons of losses and paths, with settings tuned for our models.

    The paper tunes its settings as well, but does not report them.
    """
    names = ("source", "training", "weights", "solver")
    shown = names if corpus == "molecules" else names[:-1]  # all with Euler on text

    def entries(scale: Scale) -> list[Entry]:
        cells = tuned_trainings(corpus, scale).items()
        return [Entry(labels[: len(shown)], cell) for labels, cell in cells]

    title = "Losses and paths" if corpus == "molecules" else "Losses"
    title += f", tuned settings, {NAMES[corpus]}"
    return grid(title, shown, notes=NOTES[corpus])(entries)
