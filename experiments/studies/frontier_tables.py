"""Tables and figures of the comparison of samplers (`experiments.frontier`)."""

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from experiments.figure import Curves
from experiments.table import Column, Table, Value, make_table

Record = dict[str, Any]
COUNTS = ("valid", "unique", "novel")
EXACT, RECOMMENDED, EULER = "total variation", "recommended", "Euler"
ENOUGH = 2.0  # minimum number of standard errors for a difference


def tables(record: Record) -> list[Table]:
    """A table of the leading samplers at every budget, and a table for each score."""
    return [
        table
        for task in tasks(record)
        for table in (front(record, task), *(scores(record, task, n) for n in names(record, task)))
    ]


def figures(record: Record) -> list[Curves]:
    """The front of every task, beside Euler and the recommendation."""
    found = []
    for task in tasks(record):
        shown = [name for name in names(record, task) if name != "entropy"]  # adapted to be equal
        lines = {}
        for name, choose in (
            (EULER, lambda rows: rows.get(EULER)),
            ("ancestral", lambda rows: rows.get("ancestral")),
            ("best sampler", leader),
            (RECOMMENDED, lambda rows: rows.get(RECOMMENDED)),
        ):
            chosen = [(b, choose(at(record, task, b))) for b in budgets(record, task)]
            points = [(b, tuple(value(row, n) for n in shown)) for b, row in chosen if row]
            if points:
                lines[name] = points
        columns = tuple(
            Column(n, n in COUNTS, "log" if n.startswith("perplexity") else "zero") for n in shown
        )
        found.append(Curves(f"{task}", "evaluations", columns, lines, log=True))
    return found


def tasks(record: Record) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in record["rows"]))


def budgets(record: Record, task: str) -> list[int]:
    return sorted({row["budget"] for row in record["rows"] if row["task"] == task})


def at(record: Record, task: str, budget: int) -> dict[str, Record]:
    rows = [row for row in record["rows"] if (row["task"], row["budget"]) == (task, budget)]
    return {row["family"]: row for row in rows}


def names(record: Record, task: str) -> list[str]:
    return list(
        dict.fromkeys(n for row in record["rows"] if row["task"] == task for n in row["scores"])
    )


def value(row: Record | None, name: str) -> Value:
    """The mean of a score over the seeds, with its standard error."""
    values = [] if row is None else row["scores"].get(name, [])
    if row is None or not values:
        return Value(None)
    mean, seeds = statistics.fmean(values), len(values)
    if name in COUNTS:
        share = min(1.0, mean / 1024)
        chance = 1 / (row["samples"] * seeds)  # treat at least one sample as a failure
        error = 1024 * math.sqrt(max(share * (1 - share), chance) / (row["samples"] * seeds))
        return Value(mean, error, 0)
    spread = statistics.stdev(values) / math.sqrt(seeds) if seeds > 1 else None
    return Value(mean, spread, 4 if name == EXACT else 2)


def apart(first: Value, second: Value) -> float:
    """The number of standard errors by which the first value is larger."""
    assert first.value is not None
    assert second.value is not None
    error = math.hypot(first.spread or 0.0, second.spread or 0.0)
    return (first.value - second.value) / max(error, 1e-12)


def quality(row: Record) -> Value:
    """The score that decides; larger is better."""
    if "unique" in row["scores"]:
        return value(row, "unique")
    found = value(row, EXACT if EXACT in row["scores"] else "perplexity 1")
    assert found.value is not None
    return Value(-found.value, found.spread, found.digits)


def admitted(rows: Mapping[str, Record]) -> dict[str, Record]:
    """The samplers with at least the novelty or entropy of the recommendation or of Euler."""
    other = rows.get(RECOMMENDED, rows.get(EULER))
    found = {}
    for family, row in rows.items():
        guard = next((n for n in ("novel", "entropy") if n in row["scores"]), None)
        if guard and other and apart(value(other, guard), value(row, guard)) > ENOUGH:
            continue
        found[family] = row
    return found


def leader(rows: Mapping[str, Record]) -> Record | None:
    """The best admitted sampler other than the recommendation."""
    others = [row for family, row in admitted(rows).items() if family != RECOMMENDED]
    return max(others, key=lambda row: quality(row).value or 0.0, default=None)


def front(record: Record, task: str) -> Table:
    """The best sampler at every budget, Euler and the recommendation."""
    lines = []
    for budget in budgets(record, task):
        rows = at(record, task, budget)
        best, recommended = leader(rows), rows.get(RECOMMENDED)
        if best is None:
            continue
        name = next(n for n in ("unique", EXACT, "perplexity 1") if n in best["scores"])
        ahead = None if recommended is None else apart(quality(best), quality(recommended))
        shown = (value(rows.get(EULER), name), value(best, name), value(recommended, name))
        lines.append(((str(budget), best["family"]), (*shown, best["evaluations"], ahead)))
    columns = (EULER, "best other", RECOMMENDED, "evaluations of the best", "best ahead by, SE")
    return make_table(f"{task}: the best sampler", "budget, best other", columns, lines)


def scores(record: Record, task: str, name: str) -> Table:
    """A score of every sampler at every budget."""
    shown = budgets(record, task)
    rows = {budget: at(record, task, budget) for budget in shown}
    families = dict.fromkeys(family for found in rows.values() for family in found)
    arrow = "↑" if name in (*COUNTS, "entropy") else "↓"
    lines = [
        (family, [value(rows[budget].get(family), name) for budget in shown]) for family in families
    ]
    of = " of 1,024" if name in COUNTS else ""
    columns = [f"{budget} evaluations {arrow}" for budget in shown]
    return make_table(f"{task}: {name}{of}", "sampler", columns, lines)


def weights(record: Record) -> list[Table]:
    """The calibration of models and fitted weights, and the samples with all weights."""
    lines = []
    for row in record["calibration"]:
        pairs = [row["loss"]["model"], row["loss"]["calibrated"], row["right"]]
        pairs += [row["expected"]["model"], row["expected"]["learned"]]
        pairs += [row["error"]["model"], row["error"]["learned"]]
        lines.append((row["model"], [row["temperature"], *pairs]))
    columns = (
        "temperature",
        "loss, nats ↓",
        "calibrated ↓",
        "correct draws",
        "expected by the model",
        "by the learned confidence",
        "calibration error ↓",
        "of the learned confidence ↓",
    )
    title = "Calibration on held-out molecules"
    found = [make_table(title, "model", dict.fromkeys(columns, 3), lines)]
    n = record["config"]["samples"]
    for model in dict.fromkeys(row["model"] for row in record["samples"]):
        rows = [row for row in record["samples"] if row["model"] == model]
        lines = []
        for row in rows:
            as_row = {"scores": {name: [row[name]] for name in COUNTS}, "samples": n}
            counts = [value(as_row, name) for name in COUNTS]
            lines.append((row["sampler"], [row["evaluations"], *counts]))
        title = f"{model}, {record['config']['steps']} steps"
        names = ("evaluations", *(f"{name} of 1,024 ↑" for name in COUNTS))
        found.append(make_table(title, "sampler", names, lines))
    return found


def few_evaluations(record: Record) -> list[Table]:
    """Total variation on several exact targets, one table per source."""
    made = []
    for source in dict.fromkeys(row["source"] for row in record["rows"]):
        found = [row for row in record["rows"] if row["source"] == source]
        samplers = list(found[0]["total_variation"])
        rows = [
            (
                (row["target"], str(evaluations)),
                [row["total_variation"][name][k] for name in samplers],
            )
            for row in found
            for k, evaluations in enumerate(record["config"]["evaluations"])
        ]
        title = f"Total variation with few evaluations, {source} source"
        columns = {f"{name} ↓": 3 for name in samplers}
        made.append(make_table(title, "target, evaluations", columns, rows))
    return made


def other_seeds(record: Record, title: str, columns: Mapping[str, str]) -> list[Table]:
    """Samplers at some budgets, with seeds by which none of them was chosen.

    `columns` maps names of scores to headings.
    """
    rows = [
        (
            (row["task"], str(row["budget"]), row["family"]),
            (row["evaluations"], *(value(row, name) for name in columns)),
        )
        for row in record["rows"]
    ]
    headings = ("evaluations ↓", *columns.values())
    return [make_table(title, "task, budget, sampler", headings, rows)]


def molecules_other_seeds(title: str) -> Callable[[Record], list[Table]]:
    columns = {name: f"{name} of 1,024 ↑" for name in COUNTS}
    return partial(other_seeds, title=title, columns=columns)


EXACT_COLUMNS = {EXACT: f"{EXACT} ↓"}
TEXT_COLUMNS = {"entropy": "entropy ↑", "perplexity 1": "perplexity ↓"}
TABLES: dict[str, Callable[[Record], list[Table]]] = {
    "few_evaluations": few_evaluations,
    "frontier_exact": tables,
    "frontier_qm9": tables,
    "frontier_text": tables,
    "qm9_other_seeds": molecules_other_seeds("Other seeds"),
    "qm9_uniform_other_seeds": molecules_other_seeds("Other seeds, 16 evaluations"),
    "exact_other_seeds": partial(
        other_seeds, title="Other seeds, exact target", columns=EXACT_COLUMNS
    ),
    "text_other_seeds": partial(other_seeds, title="Other seeds, text", columns=TEXT_COLUMNS),
    "qm9_mask_other_seeds": molecules_other_seeds("Other seeds, mask source"),
    "sampler_weights": weights,
}
FIGURES: dict[str, Callable[[Record], list[Curves]]] = {
    name: figures for name in TABLES if name.startswith("frontier")
}
