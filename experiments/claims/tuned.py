"""Claims about solvers on text, with the settings that suit our own models best.

The paper searches r, s and beta for its models and reports solvers with the best. What is best for
them need not be so here, where `python -m experiments run sweep-text-...` has searched the same grid.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial

from experiments import paper
from experiments.catalog import STEPS as QUALITY
from experiments.catalog.controls import LARGEST, SHARES, shares_cells
from experiments.catalog.solvers import TUNED, tuned_cells
from experiments.claims.judging import (
    CLEAR,
    Claim,
    Measured,
    Missing,
    Verdict,
    judged,
    number,
    read,
    rows_of,
    tested,
)
from experiments.claims.on_molecules import COUNT_ERROR, STEPS
from experiments.claims.on_text import MAUVE, PERPLEXITY, Drawn, drawn, of_runs, short_runs
from experiments.claims.text_solvers import STRONGER
from experiments.scale import size

CURVE = size("text", "small").curve
SOLVERS = ("Euler", "Neighbor", "Entropy")
COUNTED = ("Neighbor-counted", "Entropy-counted")  # beyond the paper, told beside its own


def tuned() -> Iterator[Claim]:
    for source in TUNED:
        name = f"tuned-text-{source}"
        where = f"{paper.figure(QUALITY['text', source])}, our settings"
        for rival in ("Euler", "Entropy"):
            gains = f"Neighbor weights beat {rival}{' weights' if rival == 'Entropy' else ''}"
            gains += f" at many steps, in perplexity{' and MAUVE' if source == 'uniform' else ''}"
            yield from tested(where, gains, name, partial(many_steps, source, rival))
        yield from tested(where, STRONGER, name, partial(few_steps, source))


def shares() -> Iterator[Claim]:
    where = "section on sampling, entropies read as shares of the largest"
    yield from tested(where, STRONGER, "entropy-shares", by_shares)


def many_steps(source: str, rival: str) -> tuple[str, Verdict]:
    """With a mask source the paper has no gain in MAUVE."""
    last, rows = CURVE[-1], rows_of(f"tuned-text-{source}")
    before, after = (at(source, solver, last) for solver in (rival, "Neighbor"))
    gains = {"perplexity": [before.over(after)]}
    scores = {solver: number(rows[solver, str(last)][MAUVE]) for solver in SOLVERS}
    if source == "uniform":
        gains["MAUVE"] = [scores["Neighbor"].above(scores[rival])]
    each = [f"{solver} {score.value:.2f}" for solver, score in scores.items()]
    told = f"{shown(source)}; MAUVE at {last:,}: {', '.join(each)}"
    effect = f"perplexity at {last:,} steps: {before.value:.0f} to {after.value:.0f}"
    return told, judged(gains, effect)


def few_steps(source: str) -> tuple[str, Verdict]:
    first = CURVE[0]
    gains = {"perplexity": [at(source, "Neighbor", first).over(at(source, "Entropy", first))]}
    effect = f"{first} steps: {at_first(source, *SOLVERS)}"
    return f"{settings(source)}, {effect}", judged(gains, f"perplexity at {effect}")


def by_shares() -> tuple[str, Verdict]:
    """Entropy weights with the paper's beta, if its entropies are 1 at their largest."""
    rows, told, gains = rows_of("entropy-shares"), [], {}
    cells, first = shares_cells("small"), CURVE[0]
    for source in TUNED:
        found = {
            share: drawn(
                rows[source, f"{share:g} / log V", str(first)][PERPLEXITY],
                cells[source, share, first],
            )
            for share in SHARES
        }
        ours = found[paper.BEST["text", source][2]]
        gains[f"{source} source"] = [at(source, "Neighbor", first).over(ours)]
        each = ", ".join(f"{value.value:.0f} ({share:g})" for share, value in found.items())
        told.append(f"{source} source: {at_first(source, 'Euler', 'Neighbor')}, Entropy {each}")
    return (
        f"Novels ({short_runs()}), perplexity, {first} steps, by beta of H / log V, "
        f"{'; '.join(told)}",
        judged(gains, f"perplexity, {'; '.join(told)}"),
    )


def counted() -> str:
    """What counted jumps change at few steps, of the sources that are done."""
    told = []
    for source in TUNED:
        with suppress(Missing):
            told.append(f"{source} source, {at_first(source, *SOLVERS, *COUNTED)}")
    return (
        f"\n  On text, perplexity at {CURVE[0]} steps: {'; '.join(told)}\n  "
        "([results](results.md#quality-against-steps-settings-of-the-sweep-text-uniform-source))."
        if told
        else ""
    )


def as_shares() -> str:
    """What the unit of entropies has to do with few steps; nothing while that is missing."""
    rows, first = rows_of("entropy-shares"), CURVE[0]
    told = []
    for source in TUNED:
        share = paper.BEST["text", source][2]
        with suppress(Missing):
            found = number(rows[source, f"{share:g} / log V", str(first)][PERPLEXITY])
            told.append(f"{source} source, Euler {at(source, 'Euler', first).value:.0f}, Entropy")
            told[-1] += f" {found.value:.0f}"
    beta = paper.BEST["text", "mask"][2]
    return (
        "\n  Nor does the paper tell the unit of its entropies. As shares of the largest, log V, "
        f"its beta of {beta:g} is\n  {beta / LARGEST:.2f} in nats, below all that its sweep has. "
        f"Perplexity at {first} steps: {'; '.join(told)}\n  "
        "([results](results.md#entropy-weights-by-shares-of-the-largest-entropy-text))."
        if len(told) == len(TUNED)
        else ""
    )


def independently() -> Claim:
    """Whether few steps are too few for Neighbor weights for the reason that the paper gives.

    Counted jumps update neighbours as independently, but as many tokens in a step as without
    weights. If that were the reason, they would bring little back.
    """
    steps, model = STEPS[0], "qm9-mask-small"
    solvers = ("euler", "neighbor", "neighbor-counted")
    valid = {
        row["setting"]["solver"]: Measured(-row["valid"], COUNT_ERROR)
        for row in read("qm9_search")["rows"]
        if (row["model"], row["setting"]["steps"]) == (model, steps)
    }
    found = {"molecules": [valid[solver] for solver in solvers]}
    numbers = ", ".join(f"{solver} {-valid[solver].value:.0f}" for solver in solvers)
    told = [f"{model}, {steps} steps, valid: {numbers}"]
    for source in TUNED:
        with suppress(Missing):
            names = ("Euler", "Neighbor", "Neighbor-counted")
            each = [at(source, name, CURVE[0]).of_any_run for name in names]
            weak = each[1].over(each[0]) > CLEAR
            if weak:
                found[f"text, {source} source"] = each
            shown = at_first(source, *names) + ("" if weak else " (Neighbor weights are not weak)")
            told.append(f"novels, {CURVE[0]} steps, perplexity, {source} source: {shown}")
    return Claim(
        "section on sampling",
        "Neighbor weights are weak at few steps since neighbours are updated too independently",
        "If that were the cause, counted jumps would leave most of the loss as it is: they update "
        "neighbours as independently, but as many tokens in a step as without weights "
        f"([results](results.md#counted-jumps)). {'; '.join(told)}",
        judged(
            {f"what is left, beside half, {name}": [_left(*each)] for name, each in found.items()},
            "; ".join(told[1:]),
        ),
        ("tuned-text-uniform", "tuned-text-mask"),
    )


def _left(euler: Measured, weighted: Measured, counted: Measured) -> float:
    """By how many errors counted jumps leave more than half of what weights lose."""
    half = (euler.value + weighted.value) / 2
    return (counted.value - half) / math.hypot(counted.error, euler.error / 2, weighted.error / 2)


def at_first(source: str, *solvers: str) -> str:
    """Perplexities at the fewest steps."""
    return ", ".join(f"{s} {at(source, s, CURVE[0]).value:.0f}" for s in solvers)


def at(source: str, solver: str, steps: int) -> Drawn:
    """A perplexity."""
    value = rows_of(f"tuned-text-{source}")[solver, str(steps)][PERPLEXITY]
    return drawn(value, tuned_cells(source, "small")[solver, steps])


def settings(source: str) -> str:
    """Of training and of weights."""
    radius, scale, beta = TUNED[source]
    runs = short_runs(of_runs(tuned_cells(source, "small").values()))
    return f"Novels ({runs}), r = {radius}, s = {scale:g}, beta = {beta:g}, perplexity"


def shown(source: str) -> str:
    """The settings, and all perplexities."""
    told = []
    for solver in (*SOLVERS, *COUNTED):
        with suppress(Missing) if solver in COUNTED else nullcontext():
            values = [f"{at(source, solver, k).value:,.0f}" for k in CURVE]
            told.append(f"{solver} {', '.join(values)}")
    steps = ", ".join(f"{k:,}" for k in CURVE)
    return f"{settings(source)} at {steps} steps: {'; '.join(told)}"
