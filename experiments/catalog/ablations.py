"""Ablations of training: the weights of the scaled loss, and the tokens it covers."""

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
from experiments.cell import Cell, flow, weight_label
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, grid, model_note
from experiments.scale import NAMES, Scale, size
from experiments.store import Store
from experiments.table import Column, Value
from experiments.tasks.base import Corpus

RADII = (1, 2, 3, 5, 8)
REVEALED = (
    "The weight of revealed tokens in SCE: one, as in plain CE; zero, no weight; extended, the "
    "formula of the weights with the normalizer of hidden tokens. The others use one formula for "
    "all tokens: joint, weights with mean 1 over a sequence; raw, weights without normalization, "
    "which also favor late times; level, which favors only late times."
)


def radius(scale: Scale) -> Plan:
    """Radius of the weights in the loss, uniform source, text: an ablation of the paper."""

    def entries(scale: Scale) -> list[Entry]:
        found = []
        for r in RADII[:2] if scale == "smoke" else RADII:
            cell = Cell("text", scale, flow("uniform", "sce", loss_radius=r), EULER)
            found.append(Entry((str(r),), cell, "SCE", r))
        return found

    title = "Radius of the weights in the loss, text, uniform source"
    return grid(title, ("radius",), entries, x="radius")(scale)


def revealed_entries(scale: Scale) -> list[Entry]:
    """Weights of revealed tokens in the scaled loss, and the plain loss; QM9."""
    found = []
    for source in SOURCES[:1] if scale == "smoke" else SOURCES:
        line = loss_line(source, "sce")
        for weight in get_args(RevealedWeight):
            changed = replace(line, fields=line.fields | {"revealed": weight})
            found.append(Entry((source, weight), changed.cell("molecules", scale)))
        found.append(Entry((source, "CE"), loss_line(source, "ce").cell("molecules", scale)))
    return found


def revealed(scale: Scale) -> Plan:
    """The weight of revealed tokens in SCE, which the paper leaves open; QM9.

    Weights without normalization ("raw") favor late times as well as tokens with much context.
    "joint" favors only context, "level" only late times, CE neither.
    """
    title = "Weight of revealed tokens in SCE, QM9"
    return grid(title, ("source", "weight"), revealed_entries, notes=(REVEALED,))(scale)


def scaled(scale: Scale) -> Plan:
    """Settings of SCE on text: its weights, and the weight of revealed tokens.

    The paper reports neither. It does report their effect: samples with a much lower perplexity
    and a slightly lower entropy than with plain cross-entropy, and a worse likelihood.
    """

    def entries(scale: Scale) -> list[Entry]:
        tried = [("one", 3, 0.5), ("raw", 3, 0.5), ("raw", 3, 1.0), ("level", 3, 0.5)]
        tried += [("zero", 3, 0.5), ("one", 3, 1.0)]
        found = [Entry(("CE", "", ""), loss_line("uniform", "ce").cell("text", scale))]
        for weight, r, s in tried[:2] if scale == "smoke" else tried:
            line = loss_line("uniform", "sce")
            settings = {"loss_radius": r, "loss_scale": s, "revealed": weight}
            changed = replace(line, fields=line.fields | settings)
            labels = ("SCE", weight_label(r, s), weight)
            found.append(Entry(labels, changed.cell("text", scale)))
        return found

    title = "Settings of SCE, text, uniform source"
    labels = ("loss", "weights", "revealed tokens")
    return grid(title, labels, entries, likelihood=True, notes=(REVEALED,))(scale)


def readings(scale: Scale) -> Plan:
    """Interpretations of the loss where the paper is ambiguous, one run each; QM9.

    Which tokens the NELBO covers with a uniform source, and whether SCE uses the weights of the
    path on a context-weighted path.
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
                "SCE with the path's weights": {"loss_radius": r, "loss_scale": s},
            }.items():
                cells[source, "context", name] = replace(ours, fields=ours.fields | changed)
        return [Entry(labels, cell) for labels, cell in cells.items()]

    return grid("Interpretations of the loss, QM9", ("source", "path", "loss"), entries)(scale)


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

    def entries(scale: Scale) -> list[Entry]:
        cells = {labels: counting_cell(corpus, scale, *labels) for labels in COUNTING}
        return [Entry(labels, cell) for labels, cell in cells.items()]

    title = f"Tokens covered by the loss, {NAMES[corpus]}, mask source"
    return grid(title, ("loss", "tokens"), entries)


def counting_cell(corpus: Corpus, scale: Scale, loss: str, tokens: str) -> Cell:
    """A row of that table, by loss and tokens."""
    # Runs on text with a mask source differ widely, so one of each is not enough.
    seeds = max(size(corpus, scale).seeds, 2 if scale == "small" else 1)
    return Cell(corpus, scale, COUNTING[loss, tokens], EULER, seeds=seeds)


def sweep(source: str) -> Callable[[Scale], Plan]:
    """Radius and scale of the weights in the loss, and of the path with its own solver; QM9.

    The sampling seed differs from that of the other experiments.
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
                found.append(Entry((name, weight_label(r, s)), cell))
        return sorted(found, key=lambda entry: entry.labels[0])

    title = f"Training settings, QM9, {source} source"
    return grid(title, ("training", "settings"), entries)


def dynamics(scale: Scale) -> Plan:
    """Quality and loss during training, CE against SCE; uniform source, text."""
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
        note = "Not comparable: SCE weights tokens differently."
        about = model_note(cell("ce", None).train(), store)
        return Curves(title, "training steps", (column,), lines, note=note, about=about)

    title = "Quality during training, text, uniform source"
    plan = grid(title, ("loss", "step"), entries, x="training steps")(scale)
    return replace(plan, figures=lambda store: [*plan.figures(store), validated(store)])
