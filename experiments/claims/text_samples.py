"""Samples of text by solvers with the paper's settings: of a longer run, and of shorter ones.

The longer runs are those of results/text_small_*.json (`experiments/benchmarks/text_small.py`), the shorter
ones those of `python -m experiments run steps-text-...`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.benchmarks.markdown import Result
from experiments.catalog.solvers import steps_cells
from experiments.claims.judging import KEPT, Measured, by_folds, number, read, rows_of
from experiments.claims.on_text import ENTROPY, MAUVE, PERPLEXITY, drawn, of_runs, short_runs

COMPARABLE = 0.03  # of an entropy, by which it may fall


@dataclass(frozen=True)
class Seen:
    """What samples are like: perplexity and MAUVE under the judge, entropy in bits."""

    perplexity: Measured
    mauve: Measured
    entropy: Measured

    def __str__(self) -> str:
        return f"{self.perplexity.value:,.0f}, {self.mauve.value:.2f}, {self.entropy.value:.2f}"


Compared = Sequence[tuple[Seen, Seen]]  # before and after: in the longer run, and in shorter ones


def long_run(source: str) -> dict[tuple[str, int, float], Seen]:
    """Of the longer run, by solver, steps and nucleus."""
    result, found = read(f"text_small_{source}"), {}
    for row in result["rows"]:
        if options := result["config"].get(row["name"], {}).get("options"):
            key = options["solver"].capitalize(), options["steps"], options["top_p"]
            found[key] = _seen(row)
    return found


def _seen(row: Result) -> Seen:
    judged, bits = row["perplexity"]["perplexity"], row["statistics"]["entropy"]
    by_five = (Measured(each["value"], each["fold_std"] / math.sqrt(5)) for each in (judged, bits))
    perplexity, entropy = by_five
    return Seen(perplexity, Measured(row["mauve"]["mauve"], row["mauve"]["std"]), entropy)


def longer(source: str) -> str:
    """What the longer run was."""
    recipe = read(f"text_small_{source}")["config"][f"recipe-{source}"]["recipe"]
    runs = f"{recipe['steps']:,} steps of {recipe['batch_size']}"
    alone = ", a loss of masked tokens alone" if recipe["masked_only"] else ""
    return f"Novels ([{runs}](results.md#text-at-small-scale-{source}-source){alone})"


def compared(source: str, before: str, after: str, steps: int) -> Compared:
    """Two solvers in the longer run, and in shorter ones once they are done."""
    found = long_run(source)
    pairs = [(found[before, steps, 1.0], found[after, steps, 1.0])]
    rows, cells = rows_of(f"steps-text-{source}"), steps_cells("text", source, "small")
    both = {name: rows[name, str(steps)] for name in (before, after)}
    if all(value.value is not None for row in both.values() for value in row):
        a, b = (
            Seen(
                drawn(row[PERPLEXITY], cells[name, steps]),
                number(row[MAUVE]),
                by_folds(row[ENTROPY]),
            )
            for name, row in both.items()
        )
        pairs.append((a, b))
    return pairs


def shown(source: str, steps: int, solvers: Mapping[tuple[str, str], Compared]) -> str:
    """Numbers of solvers before and after, of the longer run and of shorter ones."""
    told = [
        "; ".join(f"{a} {pairs[i][0]} to {b} {pairs[i][1]}" for (a, b), pairs in solvers.items())
        for i in range(min(map(len, solvers.values())))
    ]
    what = f"{steps:,} steps, perplexity, MAUVE and entropy in bits"
    cells = steps_cells("text", source, "small")
    runs = short_runs(of_runs(cells[name, steps] for pair in solvers for name in pair))
    less = [f". Trained for less ({runs}): {each}" for each in told[1:]]
    return f"{longer(source)}, {source} source, {what}: {told[0]}{''.join(less)}"


def by_perplexity(found: Compared) -> list[float]:
    """By how many errors perplexities fall."""
    return [a.perplexity.over(b.perplexity) for a, b in found]


def by_mauve(found: Compared) -> list[float]:
    """By how many errors MAUVE grows."""
    return [b.mauve.above(a.mauve) for a, b in found]


def by_entropy(found: Compared) -> list[float]:
    """Kept where entropies fall by little; beyond that by how many errors they rise."""
    pairs = [(a.entropy, b.entropy) for a, b in found]
    return [KEPT if b.value >= (1 - COMPARABLE) * a.value else b.above(a) for a, b in pairs]


def first_ahead(source: str, solver: str, rival: str) -> str:
    """From how many steps on a solver leads its rival in the longer run."""
    found = long_run(source)
    steps = sorted({k for _, k, _ in found})
    pairs = {k: (found[rival, k, 1.0], found[solver, k, 1.0]) for k in steps}
    lower = {k: a.perplexity.value - b.perplexity.value for k, (a, b) in pairs.items()}
    higher = {k: b.mauve.value - a.mauve.value for k, (a, b) in pairs.items()}
    return (
        f"In the longer run perplexity is {ahead('lower', lower)}, MAUVE {ahead('higher', higher)}"
    )


def ahead(how: str, gains: Mapping[int, float]) -> str:
    """From how many steps on gains are above 0."""
    behind = max((k for k, gain in gains.items() if gain <= 0), default=0)
    leads = [k for k in gains if k > behind]
    return f"{how} from {min(leads)} steps on" if leads else f"{how} at no number of steps"
