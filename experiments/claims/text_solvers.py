"""Claims about solvers on text, with the paper's settings."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

from cwdfm.solver import Corrector
from experiments import paper
from experiments.catalog.controls import POWERS_AT, after_scaled_cells
from experiments.catalog.solvers import CORRECTORS, corrector_cells, corrector_steps
from experiments.claims.judging import (
    Claim,
    Verdict,
    clearly,
    judged,
    no_worse,
    number,
    rows_of,
    tested,
    without_data,
)
from experiments.claims.on_text import ENTROPY, MAUVE, PERPLEXITY, Drawn, drawn, of_runs, short_runs
from experiments.claims.text_samples import (
    Compared,
    by_entropy,
    by_mauve,
    by_perplexity,
    compared,
    first_ahead,
    long_run,
    shown,
)
from experiments.scale import size
from experiments.table import Value

STRONGER = "At few steps Entropy weights are stronger than Neighbor weights"


def beta(*sources: str) -> str:
    """With which beta Entropy weights are, and what the sweep of shorter runs says of others."""
    said = f"Entropy weights with the paper's best beta for text, {paper.BEST['text', 'mask'][2]:g}"
    told = []
    for source in sources:
        lowest: dict[str, tuple[float, str]] = {}  # perplexity and settings, by family
        for (family, setting), row in rows_of(f"sweep-text-{source}").items():
            if (value := row[PERPLEXITY].value) is not None and family != "data":
                lowest[family] = min(lowest.get(family, (math.inf, "")), (value, setting))
        if len(lowest) == 3:
            each = [f"{v:.0f} {' '.join([f, w]).strip()}" for f, (v, w) in lowest.items()]
            told.append(f"{source} source {', '.join(each)}")
    steps = size("text", "small").steps
    swept = f". Lowest perplexities in sweeps on shorter runs, {steps} steps: {'; '.join(told)}"
    return said + (swept if told else "; none was searched for here")


def solvers_on_text() -> Iterator[Claim]:
    steps = sorted({k for _, k, _ in long_run("uniform")})
    few, many = steps[0], steps[-1]
    found = compared("uniform", "Euler", "Neighbor", many)
    yield Claim(
        paper.figure("nfe_vs_quality_uniform"),
        "At many steps Neighbor weights beat Euler in perplexity (22%, from 512 steps on) and "
        "MAUVE (up to 23%, in the introduction 24%; from 256 steps on), at comparable entropy",
        f"{shown('uniform', many, {('Euler', 'Neighbor'): found})}. "
        f"{first_ahead('uniform', 'Neighbor', 'Euler')}",
        judged(
            {
                "perplexity": by_perplexity(found),
                "MAUVE": by_mauve(found),
                "entropy": by_entropy(found),
            },
            _changed(found),
        ),
        ("steps-text-uniform",),
    )
    found = compared("uniform", "Entropy", "Neighbor", many)
    yield Claim(
        paper.figure("nfe_vs_quality_uniform"),
        "At many steps, from 1,024 on, Neighbor weights beat Entropy weights too, in perplexity "
        "and MAUVE (with the paper's beta)",
        f"{shown('uniform', many, {('Entropy', 'Neighbor'): found})}. "
        f"{first_ahead('uniform', 'Neighbor', 'Entropy')}. {beta('uniform')}",
        judged({"perplexity": by_perplexity(found), "MAUVE": by_mauve(found)}, _changed(found)),
        ("steps-text-uniform",),
    )
    yield from few_steps(few)
    yield with_masks(many)


def _changed(found: Compared) -> str:
    """In the longer run."""
    a, b = found[0]
    return (
        f"perplexity {a.perplexity.value:.0f} to {b.perplexity.value:.0f}, MAUVE "
        f"{a.mauve.value:.2f} to {b.mauve.value:.2f}"
    )


def few_steps(steps: int) -> Iterator[Claim]:
    """What the weights do at the fewest steps, by both sources."""
    experiments = ("steps-text-uniform", "steps-text-mask")
    for where, said, before, after, more in (
        (
            "section on sampling, conclusion",
            "At few steps Neighbor weights are less effective: Euler is ahead of them",
            "Neighbor",
            "Euler",
            "",
        ),
        (
            "section on sampling",
            f"{STRONGER} (with the paper's beta)",
            "Neighbor",
            "Entropy",
            f". {beta('uniform', 'mask')}",
        ),
    ):
        found = {s: compared(s, before, after, steps) for s in ("uniform", "mask")}
        each = [shown(source, steps, {(before, after): found[source]}) for source in found]
        effect = ", ".join(
            f"{pairs[0][0].perplexity.value:,.0f} to {pairs[0][1].perplexity.value:,.0f} ({source})"
            for source, pairs in found.items()
        )
        yield Claim(
            where,
            said,
            f"{'. '.join(each)}{more}",
            judged(
                {source: by_perplexity(pairs) for source, pairs in found.items()},
                f"perplexity at {steps} steps, {before} to {after}: {effect}",
            ),
            experiments,
        )


def with_masks(steps: int) -> Claim:
    """Both weights with a mask source; with a nucleus there is the longer run with one of them."""
    found = {name: compared("mask", "Euler", name, steps) for name in ("Neighbor", "Entropy")}
    gains = {name: by_perplexity(pairs) for name, pairs in found.items()}
    effects = [
        f"{a.perplexity.value:.0f} to {b.perplexity.value:.0f} ({name}{less})"
        for name, pairs in found.items()
        for less, (a, b) in zip(("", ", trained for less"), pairs, strict=False)
    ]
    rows = long_run("mask")
    nucleus = [(rows["Euler", steps, 0.9], rows["Neighbor", steps, 0.9])]
    gains["Neighbor, nucleus 0.9"] = by_perplexity(nucleus)
    gains["entropy"] = [each for pairs in found.values() for each in by_entropy(pairs)]
    told = shown("mask", steps, {("Euler", name): pairs for name, pairs in found.items()})
    return Claim(
        paper.figure("nfe_vs_quality_mask"),
        "With a mask source Neighbor and Entropy weights lower the perplexity too, at many steps "
        "and comparable entropy",
        f"{told}. The longer run with a nucleus of 0.9: Euler {nucleus[0][0]} to Neighbor "
        f"{nucleus[0][1]}. {beta('mask')}",
        judged(gains, f"perplexity {', '.join(effects)}"),
        ("steps-text-mask",),
    )


def corrector() -> Iterator[Claim]:
    said = (
        "Neighbor weights and a predictor-corrector complement each other: both together lower "
        "perplexity further and slightly improve MAUVE, at the cost of lower entropy"
    )
    where = f"{paper.figure('corrector_uniform_nw')}, bold text"
    yield from tested(where, said, "corrector", _corrector)


def _corrector() -> tuple[str, Verdict]:
    """Correctors of several scales, with and without Neighbor weights."""
    rows, cells = rows_of("corrector"), corrector_cells("text", "uniform", "small")
    scales = CORRECTORS[1:]  # the first is none
    told = []
    gains: dict[str, list[float]] = {
        "perplexity, beside the corrector alone": [],
        "beside Neighbor weights alone": [],
        "MAUVE, beside the corrector alone": [],
    }
    by_perplexity, by_neighbor, by_mauve = gains.values()

    def row(solver: str, steps: int, c: float) -> tuple[Value, ...]:
        return rows[solver, str(steps), f"{c:g}"]

    def judged_by(solver: str, steps: int, c: float) -> Drawn:
        return drawn(row(solver, steps, c)[PERPLEXITY], cells[solver, steps, c])

    for steps in corrector_steps("text", "small"):
        named = {
            "Euler": [row("Euler", steps, 0.0)],
            "corrector": [row("Euler", steps, c) for c in scales],
            "Neighbor": [row("Neighbor", steps, 0.0)],
            "both": [row("Neighbor", steps, c) for c in scales],
        }
        each = [
            f"{name} {', '.join(f'{span(part, k)}' for k in (PERPLEXITY, MAUVE, ENTROPY))}"
            for name, part in named.items()
        ]
        told.append(f"{steps} steps: {'; '.join(each)}")
        for c in scales:
            alone, both = (row(solver, steps, c)[MAUVE] for solver in ("Euler", "Neighbor"))
            by_mauve.append(number(both).above(number(alone)))
            by_perplexity.append(judged_by("Euler", steps, c).over(judged_by("Neighbor", steps, c)))
        together = [judged_by("Neighbor", steps, c) for c in scales]
        best = min(together, key=lambda each: each.value)
        by_neighbor.append(judged_by("Neighbor", steps, 0.0).over(best))
    many = f"{len(scales)} scales, a = b = {Corrector().a:g}"
    runs = short_runs(of_runs(cells.values()))
    shown = f"Novels ({runs}), uniform source, {many}; perplexity, MAUVE and entropy"
    shown += f" at {'; at '.join(told)}"
    if not clearly(by_neighbor):
        shown += ". Both together are not clearly better than Neighbor weights alone"
    low = [f"{name} {span(part, PERPLEXITY)}" for name, part in named.items()]
    effect = f"perplexity at {steps:,} steps: {', '.join(low)}"
    return f"{shown}{by_powers()}", judged(gains, effect)


def by_powers() -> str:
    """What other exponents of the corrector do; nothing while that is missing."""
    rows = without_data(rows_of("corrector-powers"))
    if any(row[PERPLEXITY].value is None for row in rows.values()):
        return ""
    told = ", ".join(
        f"{number(row[PERPLEXITY]).value:.0f} ({solver}, a = b = {power})"
        for (solver, power), row in rows.items()
    )
    return f". Perplexity by exponents of the corrector, scale {POWERS_AT:g}: {told}"


def after_scaled_on_text() -> Iterator[Claim]:
    """Neighbor weights on models trained by SCE."""

    def found() -> tuple[str, Verdict]:
        rows, cells, told = rows_of("scaled-solvers"), after_scaled_cells("small"), []
        gains: dict[str, list[float]] = {}
        for source, steps in product(("uniform", "mask"), corrector_steps("text", "small")):
            plain, weighted = (
                drawn(rows[source, name, str(steps)][PERPLEXITY], cells[source, name, steps])
                for name in ("Euler", "Neighbor")
            )
            told.append(f"{plain.value:.0f} to {weighted.value:.0f} ({source}, {steps:,} steps)")
            gains.setdefault(f"no gain, {source}", []).append(no_worse(weighted.over(plain)))
        return (
            f"Novels ({short_runs()}), Euler to Neighbor, perplexity {', '.join(told)}",
            judged(gains, f"perplexity {', '.join(told)}"),
        )

    said = "Models trained by SCE gain nothing from Neighbor weights in sampling: text"
    yield from tested("appendix, sweeps", said, "scaled-solvers", found)


def span(rows: Sequence[tuple[Value, ...]], column: int) -> str:
    """The least and the largest of a column."""
    values = [number(row[column]).value for row in rows]
    digits = 0 if column == PERPLEXITY else 2
    low, high = (f"{each:.{digits}f}" for each in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
