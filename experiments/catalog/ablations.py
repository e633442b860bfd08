"""Ablations of training: the weights of the scaled loss (SCE), and the tokens it covers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

from cwdfm.loss.scaled import RevealedWeight
from experiments.catalog.training import (
    EULER,
    LOSS_NAMES,
    SOURCES,
    context_line,
    loss_line,
    searched,
)
from experiments.cell import Cell, flow, weight_label
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, grid, model_note, validation_losses
from experiments.scale import NAMES, Scale, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Column
from experiments.tasks.base import Corpus

RADII = (1, 2, 3, 5, 8)
REVEALED = (
    "The weight of revealed tokens in SCE: one, as in plain CE; zero, no weight; extended, the "
    "formula of the weights with the normalizer of hidden tokens. The others use one formula for "
    "all tokens: joint, weights with mean 1 over a sequence; raw, weights without normalization, "
    "which also favor late times; level, which favors only late times."
)


@grid("Radius of the weights in the loss, text, uniform source", ("radius",), x="radius")
def radius(scale: Scale) -> Iterator[Entry]:
    """Radius of the weights in the loss, uniform source, text: an ablation of the paper."""
    for r in RADII[:2] if scale == "smoke" else RADII:
        cell = Cell("text", scale, flow("uniform", "sce", loss_radius=r), EULER)
        yield Entry((str(r),), cell, "SCE", r)


@grid("Weight of revealed tokens in SCE, QM9", ("source", "weight"), notes=(REVEALED,))
def revealed(scale: Scale) -> Iterator[Entry]:
    """The weight of revealed tokens in SCE, which the paper does not specify; QM9.

    Weights without normalization ("raw") favor late times as well as tokens with much context.
    "joint" favors only context, "level" only late times, CE neither.
    """
    for source in SOURCES[:1] if scale == "smoke" else SOURCES:
        line = loss_line(source, "sce")
        for weight in get_args(RevealedWeight):
            changed = replace(line, fields=line.fields | {"revealed": weight})
            yield Entry((source, weight), changed.cell("molecules", scale))
        yield Entry((source, "CE"), loss_line(source, "ce").cell("molecules", scale))


@grid(
    "Settings of SCE, text, uniform source",
    ("loss", "weights", "revealed tokens"),
    likelihood=True,
    notes=(REVEALED,),
)
def scaled(scale: Scale) -> Iterator[Entry]:
    """Settings of SCE on text: its weights, and the weight of revealed tokens.

    The paper does not report them, only their effect: samples with a much lower perplexity
    and a slightly lower entropy than with plain cross-entropy, and a worse likelihood.
    """
    tried = [("one", 3, 0.5), ("raw", 3, 0.5), ("raw", 3, 1.0), ("level", 3, 0.5)]
    tried += [("zero", 3, 0.5), ("one", 3, 1.0)]
    yield Entry(("CE", "", ""), loss_line("uniform", "ce").cell("text", scale))
    for weight, r, s in tried[:2] if scale == "smoke" else tried:
        line = loss_line("uniform", "sce")
        settings = {"loss_radius": r, "loss_scale": s, "revealed": weight}
        changed = replace(line, fields=line.fields | settings)
        yield Entry(("SCE", weight_label(r, s), weight), changed.cell("text", scale))


@grid("Interpretations of the loss, QM9", ("source", "path", "loss"))
def readings(scale: Scale) -> Iterator[Entry]:
    """Interpretations of the loss where the paper is ambiguous, one run each; QM9.

    Which tokens the NELBO covers with a uniform source, and whether SCE uses the weights of the
    path on a context-weighted path.
    """
    bound = replace(loss_line("uniform", "nelbo").cell("molecules", scale), seeds=1)
    masked = replace(bound, fields=bound.fields | {"masked_only": True})
    yield Entry(("uniform", "mixture", "NELBO of all tokens"), bound)
    yield Entry(("uniform", "mixture", "NELBO of masked tokens"), masked)
    for source in SOURCES[:1] if scale == "smoke" else SOURCES:
        ours = replace(context_line(source, "").cell("molecules", scale), seeds=1)
        own = {"loss_radius": ours.fields["path_radius"], "loss_scale": ours.fields["path_scale"]}
        changes = {"CE": {"loss": "ce"}, "SCE": {}, "SCE with the path's weights": own}
        for name, changed in changes.items():
            yield Entry((source, "context", name), replace(ours, fields=ours.fields | changed))


COUNTING = {
    ("CE", "masked"): flow("mask", masked_only=True),
    ("CE", "all"): flow("mask"),
    ("SCE", "masked"): flow("mask", "sce", revealed="zero"),
    ("SCE", "all"): flow("mask", "sce"),
}


def counting(corpus: Corpus) -> Callable[[Scale], Plan]:
    """Losses of masked tokens only and of all tokens, mask source.

    Both have the same minimizer, but training may differ: a network that learns to copy revealed
    tokens may learn to use its context sooner.
    """

    @grid(f"Tokens covered by the loss, {NAMES[corpus]}, mask source", ("loss", "tokens"))
    def plan(scale: Scale) -> Iterator[Entry]:
        # Runs on text with a mask source vary widely, so one run per setting is not enough.
        seeds = max(size(corpus, scale).seeds, 2 if scale == "small" else 1)
        for labels, fields in COUNTING.items():
            yield Entry(labels, Cell(corpus, scale, fields, EULER, seeds=seeds))

    return plan


def sweep(source: str) -> Callable[[Scale], Plan]:
    """Radius and scale of the weights in the loss, and of the path with its own solver; QM9.

    The sampling seed differs from that of the other experiments.
    """

    @grid(f"Training settings, QM9, {source} source", ("training", "settings"))
    def plan(scale: Scale) -> Iterator[Entry]:
        for r, s in searched(scale):
            fields = flow(source, "sce", loss_radius=r, loss_scale=s)
            cell = Cell("molecules", scale, fields, EULER, sample_seed=1000)
            yield Entry(("SCE", weight_label(r, s)), cell)
        for r, s in searched(scale):
            fields = context_line(source, "", s).fields | {"path_radius": r}
            choice = SolverChoice("neighbor", r, s)
            cell = Cell("molecules", scale, fields, choice, sample_seed=1000)
            yield Entry(("SCE, context path", weight_label(r, s)), cell)

    return plan


def dynamics(scale: Scale) -> Plan:
    """Quality and loss during training, CE versus SCE; uniform source, text."""
    steps = size("text", scale).recipe.steps
    looks = tuple(steps * k // 4 for k in (1, 2, 3))

    def cell(loss: str, at: int | None = None) -> Cell:
        return Cell("text", scale, flow("uniform", loss), EULER, snapshots=looks, at=at)

    @grid("Quality during training, text, uniform source", ("loss", "step"), x="training steps")
    def quality(_: Scale) -> Iterator[Entry]:
        for loss in ("ce", "sce"):
            for at in (*looks, None):
                name, x = LOSS_NAMES[loss], at or steps
                yield Entry((name, str(x)), cell(loss, at), name, x)

    def validated(store: Store) -> Curves:
        lines = {
            LOSS_NAMES[loss]: validation_losses(cell(loss).train(), store) for loss in ("ce", "sce")
        }
        column = Column("validation loss, nats", False)
        title = "Loss during training, text, uniform source"
        note = "Not comparable: SCE weights tokens differently."
        about = model_note(cell("ce").train(), store)
        return Curves(title, "training steps", (column,), lines, note=note, about=about)

    plan = quality(scale)
    return replace(plan, figures=lambda store: [*plan.figures(store), validated(store)])
