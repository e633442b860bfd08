"""Experiments on text that test explanations: interpretations of SCE, and scale.

The second samples 1,024 sequences of the paper's length with the paper's nucleus, and scores them
with a second evaluator and by their overlap with the training text.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from experiments.catalog.solvers import best
from experiments.cell import Cell, flow, weight_label
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, data_row, grid, model_note, validation_losses
from experiments.scale import Scale, size
from experiments.store import Store
from experiments.table import Column, Row, Table, Value, make_table
from experiments.tasks.base import Task
from experiments.tasks.sample import HeldOut, Sample
from experiments.tasks.trigram import Overlap, Trigram

SAMPLES, NUCLEUS, NGRAM = 1024, 0.9, 8
FURTHER = (
    Column("trigram PPL", False),
    Column("unknown words, %", False),
    Column(f"{NGRAM}-grams in the training text, %", False),
)
FURTHER_NOTE = (
    "Trigram PPL: perplexity per word under CMU Sphinx's trigram model of US English, which is not "
    "a neural network. Unknown words are those that it does not know.",
)


def _reading(
    revealed: str, weight: str = "exp(s n), r = 3, s = 0.5", center: str = "yes", **fields: Any
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The labels and the recipe of an interpretation."""
    return ("SCE", revealed, weight, center), flow("uniform", "sce", revealed=revealed, **fields)


# Which interpretation of SCE is the paper's?
READINGS: dict[tuple[str, ...], dict[str, Any]] = dict(
    [
        (("CE", "", "", ""), flow("uniform", "ce")),
        *(_reading(each) for each in ("one", "extended", "joint", "raw", "level")),
        *(_reading(each, center="no", loss_center=False) for each in ("extended", "joint")),
        *(_reading(each, "n, r = 3", loss_weight="share") for each in ("one", "extended", "joint")),
        *(
            _reading("extended", f"exp(s n), {weight_label(r, s)}", loss_radius=r, loss_scale=s)
            for r, s in ((3, 1.0), (1, 5.0))
        ),
    ]
)
READING_SEEDS = 3
HALF = 0.5  # of the training steps at small scale, which makes 29M tokens
FINGERPRINT = (
    "Change: of the bound on the perplexity of held-out text against CE. The paper's SCE raises its "
    "test perplexities by 44 to 58% with a uniform source."
)
READING_NOTES = (
    FINGERPRINT,
    "Revealed tokens: the weight of tokens that are already revealed. one: 1. extended: the same "
    "formula as for masked tokens, normalized over these. joint: normalized over all tokens. raw: "
    "not normalized. level: only the mean of raw over the sequence.",
    "Center: whether a revealed token counts as a neighbor of itself.",
)


def readings(scale: Scale) -> Plan:
    """The likelihood bound for every interpretation; uniform source, text. Seed 0 runs first."""
    few = scale == "smoke"
    trained = dict(list(READINGS.items())[: 2 if few else None])
    seeds = 1 if few else READING_SEEDS
    cells = {
        labels: Cell("text", scale, fields, effort=1.0 if few else HALF)
        for labels, fields in trained.items()
    }
    tasks = [cell.likelihood(seed) for seed in range(seeds) for cell in cells.values()]

    def bounds(cell: Cell, store: Store) -> list[float | None]:
        found = [store.result(cell.likelihood(seed)) for seed in range(seeds)]
        return [None if each is None else each["nats_per_token"] for each in found]

    def tables(store: Store) -> list[Table]:
        base = bounds(next(iter(cells.values())), store)
        rows = []
        for labels, cell in cells.items():
            own = bounds(cell, store)
            pairs = zip(own, base, strict=True)
            changes = [100 * math.expm1(x - y) for x, y in pairs if x is not None and y is not None]
            seen = [x for x in own if x is not None]
            values = Value.mean(seen, 3), Value.mean(changes, 1)
            rows.append((labels, (*values, len(seen) or None)))
        columns = ("held-out bound, nats per token ↓", "change of perplexity, % ↓", "runs")
        title, names = "Readings of SCE, text, uniform source", "loss, revealed, weight, center"
        notes = (*READING_NOTES, "± is one standard deviation between runs.")
        return [make_table(title, names, columns, rows, notes)]

    return Plan(tuple(tasks), tables)


def with_further_scores(
    plan: Plan,
    labels: tuple[str, ...],
    cells: dict[tuple[str, ...], Cell],
    data: HeldOut,
    title: str,
) -> Plan:
    """The plan with a second table: the second evaluator, and overlap with the training text."""

    def scores(drawn: Sample | HeldOut) -> tuple[Task, Task]:
        return Trigram(drawn), Overlap(drawn)

    def values(drawn: Sample | HeldOut, store: Store) -> tuple[Value, ...]:
        read, shared = (store.result(task) or {} for task in scores(drawn))
        copied = shared.get("shares", {}).get(str(NGRAM), {})
        unknown, share = (
            Value(None if found is None else 100 * found, None, 2)
            for found in (read.get("unknown"), copied.get("value"))
        )
        return Value(read.get("perplexity")), unknown, share

    def tables(store: Store) -> list[Table]:
        rows = [Row(key, values(cell.sample(), store)) for key, cell in cells.items()]
        rows.append(data_row(labels, values(data, store)))
        name = f"{title}: second evaluator and overlap"
        return [*plan.tables(store), Table(name, labels, FURTHER, tuple(rows), notes=FURTHER_NOTE)]

    tasks = [task for cell in cells.values() for task in scores(cell.sample())]
    return replace(plan, tasks=(*plan.tasks, *tasks, *scores(data)), tables=tables)


# Larger networks and a larger corpus.
LENGTH, BATCH = 1024, 64  # of the paper; sequences per step
SIZES = {"94M": ("40m", 3000, 1e-3), "170M": ("base", 2300, 6e-4)}  # steps, learning rate
PARTS = (4, 2)  # snapshots after a quarter and half of the training
KINDS = {"ce": "CE", "sce": "SCE, extended"}


def larger_cell(name: str, loss: str, scale: Scale, **more: Any) -> Cell:
    """A cell on the larger corpus, with sequences of 1,024 tokens."""
    steps, fields = size("text", scale).recipe.steps, dict[str, Any]()
    if scale != "smoke":
        model, steps, rate = SIZES[name]
        fields = {
            "model": model,
            "length": LENGTH,
            "batch_size": BATCH,
            "steps": steps,
            "warmup": steps // 10,
            "learning_rate": rate,
            "validate_every": steps // 8,
            "checkpoint_every": steps // 8,
        }
    extended = {"revealed": "extended"} if loss == "sce" else {}
    looks = tuple(steps // part for part in PARTS)
    return Cell("text", scale, fields | flow("uniform", loss, **extended), snapshots=looks, **more)


def larger(name: str) -> Callable[[Scale], Plan]:
    """CE and `extended` SCE, Euler and Neighbor weights, for one size; learning curves."""

    def plan(scale: Scale) -> Plan:
        few = scale == "smoke"
        solvers = {k: v for k, v in best("text", "uniform").items() if k != "Entropy"}
        n = size("text", scale).n if few else SAMPLES
        options: dict[str, Any] = {"n": n, "top_p": NUCLEUS, "steps": None if few else 256}
        cells: dict[tuple[str, ...], Cell] = {
            (kind, solver): larger_cell(name, loss, scale, choice=choice, **options)
            for (loss, kind), (solver, choice) in product(KINDS.items(), solvers.items())
        }
        data = HeldOut("text", larger_cell(name, "ce", scale).train().recipe.length, n)
        labels, title = ("loss", "solver"), f"Larger corpus, {name} parameters, uniform source"
        entries = [Entry(labels, cell) for labels, cell in cells.items()]
        notes = ("A nucleus of 0.9.",)
        made = grid(title, labels, likelihood=True, notes=notes, data=data)(lambda _: entries)
        whole = with_further_scores(made(scale), labels, cells, data, title)
        return replace(whole, figures=lambda store: [learning_curve(name, scale, store)])

    return plan


def learning_curve(name: str, scale: Scale, store: Store) -> Curves:
    """The held-out cross-entropy during training with CE."""
    task = larger_cell(name, "ce", scale).train()
    column, title = Column("held-out cross-entropy, nats", False), f"Learning curve, {name}"
    lines = {"CE": validation_losses(task, store)}
    return Curves(title, "training steps", (column,), lines, about=model_note(task, store))
