"""Losses and paths with the settings that searches find best at small scale, by several runs."""

from collections.abc import Callable

from cwdfm.solver_config import SolverChoice
from experiments.catalog.training import EULER, SOURCES, context_line, loss_line
from experiments.cell import Cell, flow, weights_told
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.scale import NAMES, Scale, size
from experiments.tasks.base import Corpus

RUNS = 3
# What `sweep-training-*` find best on molecules, and `radius` on text: r and s of the loss, of the
# path. For what is not here, nothing was searched.
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
        "Weights: those of the loss, on a context path those of the path; its loss has r = 3, like "
        "that of `paths`. Of each the first are those of the tables `losses` and `paths`, the "
        "second those that `sweep-training-uniform` and `sweep-training-mask` found best, by "
        "training with the first of these seeds and samples of another.",
        "A context path is sampled with its own weights, and by Euler too.",
    ),
    "text": (
        "Weights: those of the loss. The first are those of the table `losses`, the second those "
        "that `radius` found best with a uniform source, by the first of these runs.",
    ),
}

Labels = tuple[str, str, str, str]  # source, training, weights, solver


def tuned_trainings(corpus: Corpus, scale: Scale) -> dict[Labels, Cell]:
    """By source, training, its weights, and solver; paths where their weights were searched."""
    found: dict[Labels, Cell] = {}
    for source in SOURCES[:1] if scale == "smoke" else SOURCES:
        found |= _losses(corpus, source, scale) | _paths(corpus, source, scale)
    return found


def _losses(corpus: Corpus, source: str, scale: Scale) -> dict[Labels, Cell]:
    recipe = size(corpus, scale).recipe
    cells = {(source, "CE", "", "Euler"): loss_line(source, "ce").fields}
    weights = [(recipe.loss_radius, recipe.loss_scale)]
    weights += [LOSS[corpus, source]] if (corpus, source) in LOSS else []
    for r, s in weights:
        fields = flow(source, "sce", loss_radius=r, loss_scale=s)
        cells[source, "SCE", weights_told(r, s), "Euler"] = fields
    return {labels: _cell(corpus, scale, fields, EULER) for labels, fields in cells.items()}


def _paths(corpus: Corpus, source: str, scale: Scale) -> dict[Labels, Cell]:
    found: dict[Labels, Cell] = {}
    if (corpus, source) not in PATH:
        return found
    first = context_line(source, "").cell(corpus, scale)
    for r, s in ((first.choice.radius, first.choice.scale), PATH[corpus, source]):
        fields = first.fields | {"path_radius": r, "path_scale": s}
        for solver, choice in (("own", SolverChoice("neighbor", r, s)), ("Euler", EULER)):
            labels = source, "SCE, context path", weights_told(r, s), solver
            found[labels] = _cell(corpus, scale, fields, choice)
    return found


def _cell(corpus: Corpus, scale: Scale, fields: dict[str, object], choice: SolverChoice) -> Cell:
    seeds = RUNS if scale == "small" else size(corpus, scale).seeds
    return Cell(corpus, scale, fields, choice, seeds=seeds)


def tuned(corpus: Corpus) -> Callable[[Scale], Plan]:
    """The paper's comparisons of losses and paths, with settings that suit models of ours.

    The paper searches its settings, too, and does not tell them.
    """
    names = ("source", "training", "weights", "solver")
    shown = names if corpus == "molecules" else names[:-1]  # of text all are by Euler

    def entries(scale: Scale) -> list[Entry]:
        cells = tuned_trainings(corpus, scale).items()
        return [Entry(labels[: len(shown)], cell) for labels, cell in cells]

    title = "Losses and paths" if corpus == "molecules" else "Losses"
    title += f", settings of a search, {NAMES[corpus]}"
    return grid(title, shown, entries, notes=NOTES[corpus])
