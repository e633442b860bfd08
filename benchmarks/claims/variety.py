"""What weights are worth on text where samples have the same entropy."""

import math
from itertools import pairwise

from benchmarks.claims.judging import by_folds, number, or_missing, rows_of
from benchmarks.claims.on_text import ENTROPY, PERPLEXITY, short_runs
from cwdfm.repro.experiments.solvers import TUNED
from cwdfm.repro.experiments.variety import COOLER, SOLVERS
from cwdfm.repro.scale import size
from cwdfm.repro.table import Value


def variety() -> str:
    """Whether weights gain more than a lower temperature does."""
    return (
        "- **Variety.** Weights lower the entropy of samples with their perplexity, and so does a "
        f"lower temperature.\n  {or_missing('variety', _variety)}"
    )


def _variety() -> str:
    told = []
    for source in TUNED:
        rows = {key[1:]: row for key, row in rows_of("variety").items() if key[0] == source}
        euler = [_point(rows["Euler", f"{t:g}"]) for t in COOLER]
        each = []
        for name in SOLVERS[1:]:
            bits, judged = _point(rows[name, "1"])
            beside = at_entropy(bits, euler)
            plain = "beyond what was tried" if beside is None else f"{beside:.0f}"
            each.append(f"{name} {judged:.0f} at {bits:.2f} bits, Euler {plain}")
        told.append(f"{source} source, {'; '.join(each)}")
    steps, lines = size("text", "small").steps, ".\n  ".join(told)
    return (
        f"Perplexity at {steps} steps ({short_runs()}), and by Euler at a temperature with that "
        f"entropy:\n  {lines}\n  ([results](results.md#solvers-at-several-temperatures-text-"
        f"{steps}-steps))."
    )


def _point(row: tuple[Value, ...]) -> tuple[float, float]:
    """Entropy and perplexity."""
    return number(row[ENTROPY]).value, by_folds(row[PERPLEXITY]).value


def at_entropy(bits: float, points: list[tuple[float, float]]) -> float | None:
    """The perplexity at an entropy, between points by logarithms; None outside of them."""
    for (a, low), (b, high) in pairwise(sorted(points)):
        if a <= bits <= b:
            share = (bits - a) / (b - a) if b > a else 0.0
            return math.exp((1 - share) * math.log(low) + share * math.log(high))
    return None
