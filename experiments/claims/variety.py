"""What weights are worth where samples are equally varied."""

import math
from contextlib import suppress
from functools import partial
from itertools import pairwise

from experiments.catalog.training import SOURCES
from experiments.catalog.variety import TRIED
from experiments.claims.judging import Missing, number, or_missing, rows_of
from experiments.claims.on_molecules import MODEL
from experiments.claims.on_text import short_runs
from experiments.jobs import Corpus
from experiments.scale import size
from experiments.table import Value

EXPERIMENT: dict[Corpus, str] = {"text": "variety", "molecules": "variety-molecules"}
JUDGED: dict[Corpus, int] = {"text": 1, "molecules": 0}  # columns: perplexity, valid ones


def variety() -> str:
    """Whether weights gain more than a lower temperature does."""
    text, molecules = (or_missing(name, partial(_told, c)) for c, name in EXPERIMENT.items())
    return (
        "- **Variety.** Weights lower the entropy of samples with their perplexity, and so does a "
        f"lower temperature.\n  {text}\n  The same question on molecules, of which some are "
        f"novel. {molecules}"
    )


def _told(corpus: Corpus) -> str:
    steps = size(corpus, "small").steps
    lines = ".\n  ".join(
        f"{source} source, {'; '.join(beside_euler(corpus, source))}" for source in SOURCES
    )
    what = (
        f"Perplexity at {steps} steps ({short_runs()}), and by Euler at a temperature with that "
        "entropy"
        if corpus == "text"
        else f"Valid ones at {steps} steps ({MODEL}), and by Euler at a temperature with as many "
        "novel ones"
    )
    named = "text" if corpus == "text" else "qm9"
    at = f"results.md#solvers-at-several-temperatures-{named}-{steps}-steps"
    return f"{what}:\n  {lines}\n  ([results]({at}))."


def beside_euler(corpus: Corpus, source: str) -> list[str]:
    """Each solver's quality as it is, and Euler's where its samples are as varied."""
    tried = TRIED[corpus]
    found = rows_of(EXPERIMENT[corpus])
    rows = {key[1:]: row for key, row in found.items() if key[0] == source}
    euler = []
    for t in tried.cooler:
        with suppress(Missing):
            euler.append(_point(corpus, rows["Euler", f"{t:g}"]))
    told = []
    for name in tried.solvers[1:]:
        x, judged = _point(corpus, rows[name, "1"])
        equal = at_variety(x, euler)
        plain = _nearest(corpus, x, euler) if equal is None else f"{equal:.0f}"
        told.append(f"{name} {judged:.0f} at {_unit(corpus, x)}, Euler {plain}")
    return told


def _nearest(corpus: Corpus, x: float, points: list[tuple[float, float]]) -> str:
    """Where no temperature has such variety: the quality of the one that comes nearest."""
    varied, judged = min(points, key=lambda point: abs(point[0] - x))
    return f"{judged:.0f} at {_unit(corpus, varied)}, the nearest"


def _unit(corpus: Corpus, varied: float) -> str:
    return f"{varied:.2f} bits" if corpus == "text" else f"{varied:.0f} novel"


def _point(corpus: Corpus, row: tuple[Value, ...]) -> tuple[float, float]:
    """Variety and quality."""
    return number(row[TRIED[corpus].varied]).value, number(row[JUDGED[corpus]]).value


def at_variety(x: float, points: list[tuple[float, float]]) -> float | None:
    """The quality at some variety, between points by logarithms; None outside of them.

    Points go from temperature to temperature, not always to less variety: the first pair counts.
    """
    for (a, before), (b, after) in pairwise(points):
        if min(a, b) <= x <= max(a, b):
            share = (x - a) / (b - a) if a != b else 0.0
            return math.exp((1 - share) * math.log(before) + share * math.log(after))
    return None
