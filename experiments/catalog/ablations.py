"""What settings of training change: the weights of the scaled loss, and the tokens that count."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from cwdfm.loss.scaled import RevealedWeight
from cwdfm.solver_config import SolverChoice
from experiments.catalog.training import (
    EULER,
    LOSS_NAMES,
    SOURCES,
    context_line,
    loss_line,
    searched,
)
from experiments.cell import Cell, flow, weights_told
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, grid, trained
from experiments.scale import NAMES, Scale, size
from experiments.store import Store
from experiments.table import Column, Value
from experiments.tasks.base import Corpus

RADII = (1, 2, 3, 5, 8)
REVEALED = (
    "What SCE weighs tokens with that are there to see: one, the same as plain CE; zero, nothing; "
    "extended, the weights' formula by the normaliser of hidden tokens. In the others one formula "
    "holds for all tokens: joint, weights of mean 1 over a sequence; raw, weights that are not "
    "normalised, so that late times weigh more too; level, late times alone."
)


def radius(scale: Scale) -> Plan:
    """Radius of the loss's weights, uniform source, text: the paper's ablation of the vicinity."""

    def entries(scale: Scale) -> list[Entry]:
        found = []
        for r in RADII[:2] if scale == "smoke" else RADII:
            cell = Cell("text", scale, flow("uniform", "sce", loss_radius=r), EULER)
            found.append(Entry((str(r),), cell, "SCE", r))
        return found

    title = "Radius of the loss's weights, text, uniform source"
    return grid(title, ("radius",), entries, x="radius")(scale)


def revealed_entries(scale: Scale) -> list[Entry]:
    """Weights of revealed coordinates in the scaled loss, and the plain loss; QM9."""
    found = []
    for source in SOURCES[:1] if scale == "smoke" else SOURCES:
        line = loss_line(source, "sce")
        for weight in get_args(RevealedWeight):
            changed = replace(line, fields=line.fields | {"revealed": weight})
            found.append(Entry((source, weight), changed.cell("molecules", scale)))
        found.append(Entry((source, "CE"), loss_line(source, "ce").cell("molecules", scale)))
    return found


def revealed(scale: Scale) -> Plan:
    """What the scaled loss weighs, where the paper leaves it open; QM9.

    Weights that are not normalised ("raw") favour late times as well as places with much context.
    "joint" has the second alone, "level" the first, CE neither.
    """
    title = "Weight of revealed coordinates in SCE, QM9"
    return grid(title, ("source", "weight"), revealed_entries, notes=(REVEALED,))(scale)


def scaled(scale: Scale) -> Plan:
    """What the scaled loss of text may be: its weights, and those of revealed tokens.

    The paper tells neither for text. What it has is a sign to know them by: samples of far lower
    perplexity and somewhat lower entropy than by plain cross-entropy, and a worse likelihood.
    """

    def entries(scale: Scale) -> list[Entry]:
        tried = [("one", 3, 0.5), ("raw", 3, 0.5), ("raw", 3, 1.0), ("level", 3, 0.5)]
        tried += [("zero", 3, 0.5), ("one", 3, 1.0)]
        found = [Entry(("CE", "", ""), loss_line("uniform", "ce").cell("text", scale))]
        for weight, r, s in tried[:2] if scale == "smoke" else tried:
            line = loss_line("uniform", "sce")
            settings = {"loss_radius": r, "loss_scale": s, "revealed": weight}
            changed = replace(line, fields=line.fields | settings)
            labels = ("SCE", weights_told(r, s), weight)
            found.append(Entry(labels, changed.cell("text", scale)))
        return found

    title = "Settings of SCE, text, uniform source"
    labels = ("loss", "weights", "revealed tokens")
    return grid(title, labels, entries, likelihood=True, notes=(REVEALED,))(scale)


def readings(scale: Scale) -> Plan:
    """What a loss may be where the paper leaves it open, one run of each; QM9.

    Of which tokens its NELBO is with a uniform source; and on a context-weighted path, whether SCE
    has the path's own weights.
    """

    def entries(scale: Scale) -> list[Entry]:
        bound = replace(loss_line("uniform", "nelbo").cell("molecules", scale), seeds=1)
        masked = replace(bound, fields=bound.fields | {"masked_only": True})
        cells = {
            ("uniform", "mixture", "NELBO of all tokens"): bound,
            ("uniform", "mixture", "NELBO of masked tokens"): masked,
        }
        for source in SOURCES[:1] if scale == "smoke" else SOURCES:
            ours = replace(context_line(source, "").cell("molecules", scale), seeds=1)
            r, s = ours.fields["path_radius"], ours.fields["path_scale"]
            for name, changed in {
                "CE": {"loss": "ce"},
                "SCE": {},
                "SCE by the path's weights": {"loss_radius": r, "loss_scale": s},
            }.items():
                cells[source, "context", name] = replace(ours, fields=ours.fields | changed)
        return [Entry(labels, cell) for labels, cell in cells.items()]

    return grid("Readings of the loss, QM9", ("source", "path", "loss"), entries)(scale)


COUNTING = {
    ("CE", "masked"): flow("mask", masked_only=True),
    ("CE", "all"): flow("mask"),
    ("SCE", "masked"): flow("mask", "sce", revealed="zero"),
    ("SCE", "all"): flow("mask", "sce"),
}


def counting(corpus: Corpus) -> Callable[[Scale], Plan]:
    """Losses of masked tokens alone and of all tokens, mask source.

    Of the first nothing is asked about tokens that are there to see. What is best is the same, and
    the way there need not be: a network may learn to read its context sooner by copying it.
    """

    def entries(scale: Scale) -> list[Entry]:
        cells = {labels: counting_cell(corpus, scale, *labels) for labels in COUNTING}
        return [Entry(labels, cell) for labels, cell in cells.items()]

    title = f"Tokens that count in the loss, {NAMES[corpus]}, mask source"
    return grid(title, ("loss", "tokens"), entries)


def counting_cell(corpus: Corpus, scale: Scale, loss: str, tokens: str) -> Cell:
    """A row of that table."""
    # Runs on text with a mask source end far apart, so that one of each tells little.
    seeds = max(size(corpus, scale).seeds, 2 if scale == "small" else 1)
    return Cell(corpus, scale, COUNTING[loss, tokens], EULER, seeds=seeds)


def sweep(source: str) -> Callable[[Scale], Plan]:
    """Radius and scale of the loss's weights, and of the path's with its own solver; QM9.

    Samples are of another seed than the one that other experiments report.
    """

    def entries(scale: Scale) -> list[Entry]:
        found = []
        for r, s in searched(scale):
            weighed = flow(source, "sce", loss_radius=r, loss_scale=s)
            ordered = context_line(source, "", s).fields | {"path_radius": r}
            for name, fields, choice in (
                ("SCE", weighed, EULER),
                ("SCE, context path", ordered, SolverChoice("neighbor", r, s)),
            ):
                cell = Cell("molecules", scale, fields, choice, sample_seed=1000)
                found.append(Entry((name, weights_told(r, s)), cell))
        return sorted(found, key=lambda entry: entry.labels[0])

    title = f"Training settings, QM9, {source} source"
    return grid(title, ("training", "settings"), entries)


def dynamics(scale: Scale) -> Plan:
    """Quality and loss on the way, cross-entropy against its scaled form; uniform source, text."""
    steps = size("text", scale).recipe.steps
    looks = tuple(steps * k // 4 for k in (1, 2, 3))

    def cell(loss: str, at: int | None) -> Cell:
        return Cell("text", scale, flow("uniform", loss), EULER, snapshots=looks, at=at)

    def entries(scale: Scale) -> list[Entry]:
        return [
            Entry(
                (LOSS_NAMES[loss], str(at or steps)), cell(loss, at), LOSS_NAMES[loss], at or steps
            )
            for loss in ("ce", "sce")
            for at in (*looks, None)
        ]

    def validated(store: Store) -> Curves:
        lines = {}
        for loss in ("ce", "sce"):
            done = store.result(cell(loss, None).train())
            metrics = done["result"]["metrics"] if done is not None else []
            seen = {each["step"]: each.get("validation_loss") for each in metrics}
            lines[LOSS_NAMES[loss]] = [(k, (Value(v),)) for k, v in seen.items() if v]
        column = Column("validation loss, nats", False)
        title = "Loss during training, text, uniform source"
        note = "Not comparable: SCE weighs tokens otherwise."
        about = trained(cell("ce", None).train(), store)
        return Curves(title, "training steps", (column,), lines, note=note, about=about)

    title = "Quality during training, text, uniform source"
    plan = grid(title, ("loss", "step"), entries, x="training steps")(scale)
    return replace(plan, figures=lambda store: [*plan.figures(store), validated(store)])
