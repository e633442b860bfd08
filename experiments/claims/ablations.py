"""Claims about ablations on text: radius, training dynamics, scale of the path."""

from collections.abc import Iterator
from itertools import pairwise

from experiments import paper
from experiments.catalog import EXPERIMENTS
from experiments.catalog.ablations import RADII
from experiments.claims.judging import (
    STORE,
    Claim,
    Verdict,
    changes,
    judged,
    no_worse,
    number,
    pair,
    rows_of,
    tested,
)
from experiments.claims.on_text import (
    ENTROPY,
    MAUVE,
    NOVELS,
    PERPLEXITY,
    by_source,
    over_seeds,
    run_entropy,
    run_perplexity,
)


def ablations() -> Iterator[Claim]:
    said = (
        "A larger radius of the loss's weights lowers perplexity and entropy; MAUVE is best at a "
        "moderate one (r = 3)"
    )
    yield from tested(f"bold text, {paper.figure('vicinity_size_abl')}", said, "radius", _radius)

    said = (
        "Scaled cross-entropy makes training more efficient: it goes to lower perplexity, at the "
        "cost of a moderate fall in entropy"
    )
    where = f"abstract, {paper.figure('training_dynamics')}"
    yield from tested(where, said, "dynamics", _dynamics, "tuned-losses-text")

    said = (
        "With a larger scale of the context-weighted path perplexity falls with a uniform source "
        "(48.9 to 37.5) and so does entropy (7.83 to 7.70), while MAUVE does not grow (0.78 to "
        "0.77); with a mask source MAUVE grows (0.71 to 0.75), and by the paper's own table "
        "perplexity too (35.5 to 36.3)"
    )
    yield from tested(paper.table("abl_cwdfm"), said, "scales", _scales)


def _radius() -> tuple[str, Verdict]:
    """Of the loss's weights."""
    rows = rows_of("radius")
    scores = {r: number(rows[str(r),][MAUVE]) for r in RADII}
    judged_by = {r: run_perplexity(rows[str(r),][PERPLEXITY], "uniform") for r in RADII}
    entropy = {r: run_entropy(rows[str(r),][ENTROPY], "uniform") for r in RADII}
    first, last = RADII[0], RADII[-1]
    told = ", ".join(
        f"{r}: perplexity {judged_by[r].value:.0f}, entropy {entropy[r].value:.2f}, MAUVE "
        f"{scores[r].value:.2f}"
        for r in RADII
    )
    inner = max((scores[r] for r in RADII[1:-1]), key=lambda found: found.value)
    return f"{NOVELS}, uniform source, by radius {told}", judged(
        {
            "perplexity": [judged_by[first].over(judged_by[last])],
            "entropy": [entropy[first].above(entropy[last])],
            "MAUVE": [min(inner.above(scores[first]), inner.above(scores[last]))],
        },
        f"perplexity {judged_by[first].value:.0f} (r = {first}) to "
        f"{judged_by[last].value:.0f} (r = {last})",
    )


def _dynamics() -> tuple[str, Verdict]:
    """Quality on the way, CE against SCE."""
    rows = {k: v for k, v in rows_of("dynamics").items() if k[0] in ("CE", "SCE")}
    looks = [step for loss, step in rows if loss == "CE"]
    pairs = [
        pair(
            f"{step} steps",
            lambda row: run_perplexity(row[PERPLEXITY], "uniform"),
            *(rows[loss, step] for loss in ("CE", "SCE")),
        )
        for step in looks
    ]
    own = EXPERIMENTS["dynamics"].plan("small").figures(STORE)[-1].lines["SCE"]
    seen = [number(value).value for _, (value,) in own]
    falling = [after < before for before, after in pairwise(seen)]
    ends = [rows[loss, looks[-1]] for loss in ("CE", "SCE")]
    x, y = (number(row[ENTROPY]) for row in ends)
    (_, before), *scaled = over_seeds("uniform", PERPLEXITY).items()
    over = ", ".join(f"{each.value:.0f} ({weights})" for (_, weights), each in scaled)
    told = (
        f"{NOVELS}, uniform source, perplexity: {changes(pairs)}; entropy at the end "
        f"{x.value:.2f} to {y.value:.2f} bits; SCE's own loss on held-out text falls from look "
        f"to look {sum(falling)} times of {len(falling)}. At the end of these trainings, by three "
        f"seeds: perplexity {before.value:.0f} to {over}"
    )
    effect = f"perplexity {changes(pairs)}"
    return told, judged(
        {"perplexity at the end, three seeds": [before.over(each) for _, each in scaled]}, effect
    )


def _scales() -> tuple[str, Verdict]:
    """Of the context-weighted path."""
    sides = ("0.5", "1")
    effect, gains = by_source("scales", sides, ", s = 0.5 to 1", "MAUVE", MAUVE)
    rows = rows_of("scales")
    x, y = (run_entropy(rows["uniform", side][ENTROPY], "uniform") for side in sides)
    (falls, grows), (_, grows_masked) = gains["uniform"], gains["mask"]
    told = f"{NOVELS}, {effect}; entropy, uniform: {x.value:.2f} to {y.value:.2f}"
    return told, judged(
        {
            "uniform, perplexity": [falls],
            "entropy": [x.above(y)],
            "no gain in MAUVE": [no_worse(-grows)],
            "mask, MAUVE": [grows_masked],
        },
        effect,
    )
