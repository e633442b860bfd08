"""What sweeps of settings say: r and s of Neighbor weights, beta of Entropy weights."""

import math
from collections.abc import Iterator
from functools import partial

from experiments import paper
from experiments.catalog.solvers import TUNED, steps_cells
from experiments.cell import weights_told
from experiments.claims.judging import (
    ALONE,
    CLEAR,
    Claim,
    Measured,
    Missing,
    Verdict,
    by_folds,
    met,
    number,
    or_missing,
    rows_of,
    tested,
)
from experiments.claims.on_molecules import COUNT_ERROR, MODEL, QM9, VALID
from experiments.claims.on_text import MAUVE, PERPLEXITY, drawn
from experiments.claims.tuned import at
from experiments.jobs import Corpus
from experiments.scale import size
from experiments.table import Value


def best_settings() -> Iterator[Claim]:
    """Whether what suits the paper's models best suits ours too."""
    measures: dict[Corpus, str] = {"text": "perplexity", "molecules": "valid"}
    for corpus, name in measures.items():
        for source in ("uniform", "mask"):
            radius, scale, beta = paper.BEST[corpus, source]
            sweep = f"sweep-{corpus}-{source}"
            said = (
                f"The best settings are r = {radius}, s = {scale:g} and beta = {beta:g}: {corpus}, "
                f"{source} source"
            )
            found = partial(_beside_best, corpus, source, sweep, name)
            yield from tested(paper.table("nw_hyperparams"), said, sweep, found)


def _beside_best(corpus: Corpus, source: str, sweep: str, name: str) -> tuple[str, Verdict]:
    """Near if the best of all, which is so by chance too, is not far ahead of the paper's.

    Where none is clearly ahead of Euler there is nothing to choose: that alone decides nothing, and
    beside settings that are near the claim holds in part. The best depend on the number of steps,
    which the paper does not tell, so on text many steps count too.
    """
    rows, told, chosen_here, near, unchosen = rows_of(sweep), [], [], [], 0
    euler = _rank(corpus, rows["Euler", ""])
    for family, theirs in said_best(corpus, source).items():
        settings = {key[1]: row for key, row in rows.items() if key[0] == family}
        found = {setting: _rank(corpus, row) for setting, row in settings.items()}
        best = max(found, key=lambda setting: found[setting].value)
        chosen = found[best].above(euler) > ALONE
        if chosen:
            near.append(found[best].above(found[theirs]) < ALONE)
        unchosen += not chosen
        chosen_here.append(best)
        told.append(
            f"{family} {best} ({abs(found[best].value):.0f}), the paper's "
            f"{abs(found[theirs].value):.0f}{'' if chosen else ', none clearly ahead of Euler'}"
        )
    many, as_near = _at_many_steps(source) if corpus == "text" else ("", [])
    near += as_near
    effect = " and ".join(chosen_here)
    verdict = met(*near, *[False] * unchosen, effect=effect)
    if not near:
        verdict = Verdict("undecided here", effect=effect)
    steps = f"{size(corpus, 'small').steps} steps"
    shown = f"Best here, {name}, {steps}, Euler {abs(euler.value):.0f}: {'; '.join(told)}{many}"
    return shown, verdict


def _at_many_steps(source: str) -> tuple[str, list[bool]]:
    """What the best of the sweep and the paper's are at the most steps; nothing while missing.

    Near, again, is what there is to choose.
    """
    last = size("text", "small").curve[-1]
    theirs, cells = rows_of(f"steps-text-{source}"), steps_cells("text", source, "small")
    told, near = [], []
    try:
        euler = at(source, "Euler", last)
        for family in ("Neighbor", "Entropy"):
            ours = at(source, family, last)
            other = drawn(theirs[family, str(last)][PERPLEXITY], cells[family, last])
            if max(euler.over(ours), euler.over(other)) > ALONE:
                near.append(other.over(ours) < ALONE)
            told.append(f"{family} {ours.value:.0f}, the paper's {other.value:.0f}")
    except Missing:
        return "", []
    radius, scale, beta = TUNED[source]
    tuned = f"{weights_told(radius, scale)} and beta = {beta:g}, Euler {euler.value:.0f}"
    return f". At {last:,} steps, {tuned}, solvers on other runs: {'; '.join(told)}", near


def _rank(corpus: Corpus, row: tuple[Value, ...]) -> Measured:
    """The larger the better: valid molecules, or perplexity with its sign turned."""
    if corpus == "molecules":
        return Measured(number(row[VALID]).value, COUNT_ERROR)
    found = by_folds(row[PERPLEXITY])
    return Measured(-found.value, found.error)


def said_best(corpus: Corpus, source: str) -> dict[str, str]:
    """The paper's best settings, as sweeps call them."""
    radius, scale, beta = paper.BEST[corpus, source]
    return {"Neighbor": weights_told(radius, scale), "Entropy": f"beta = {beta:g}"}


def settings() -> str:
    """What the sweeps of r, s and beta say of the weights themselves."""
    told = [
        f"- **Settings** of the weights, {MODEL}, {QM9.steps} steps, on a seed of their own",
        '  (results.md, "solver settings"), valid molecules:',
    ]
    for source in ("uniform", "mask"):
        found = or_missing(f"sweep-molecules-{source}", partial(_swept, source))
        told.append(f"  {source} source: {found}")
    steps = size("text", "small").steps
    told.append(f"  Perplexity and MAUVE on novels (shorter runs, {steps} steps), likewise:")
    for source in ("uniform", "mask"):
        found = or_missing(f"sweep-text-{source}", partial(_swept_text, source))
        told.append(f"  {source} source: {found}")
    return "\n".join(told)


def _swept_text(source: str) -> str:
    rows = rows_of(f"sweep-text-{source}")
    told = {"Euler": rows["Euler", ""]}
    for whose, (radius, strength, beta) in (
        ("", TUNED[source]),
        (" (the paper's best)", paper.BEST["text", source]),
    ):
        neighbor, entropy = weights_told(radius, strength), f"beta = {beta:g}"
        told[f"Neighbor {neighbor}{whose}"] = rows["Neighbor", neighbor]
        told[f"Entropy {entropy}{whose}"] = rows["Entropy", entropy]
    each = [
        f"{name}: {number(row[PERPLEXITY]).value:,.0f} and {number(row[MAUVE]).value:.2f}"
        for name, row in told.items()
    ]
    return f"{'; '.join(each)}."


def _swept(source: str) -> str:
    rows = rows_of(f"sweep-molecules-{source}")
    valid = {key: number(row[VALID]).value for key, row in rows.items()}
    plain, parts = valid["Euler", ""], [f"Euler {valid['Euler', '']:.0f}"]
    for family, said in said_best("molecules", source).items():
        ours = {key[1]: value for key, value in valid.items() if key[0] == family}
        best = max(ours, key=lambda key: ours[key])
        error = math.sqrt(2) * COUNT_ERROR
        shown = "none clearly above Euler"
        if ours[best] - plain > ALONE * error:  # the best of many is above by chance
            near = sum(ours[best] - value < CLEAR * error for value in ours.values()) - 1
            shown = f"the best {best}, {near} others near it"
        low, high = min(ours.values()), max(ours.values())
        parts.append(
            f"{len(ours)} of {family} {low:.0f} to {high:.0f}, {shown} (the paper's best: {said})"
        )
    return f"{'; '.join(parts)}."
