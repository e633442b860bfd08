"""Claims about training: losses, paths, and the main table."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product

from benchmarks.claims.judging import (
    CLEAR,
    KEPT,
    MODEL,
    NOVEL,
    QM9,
    STEPS,
    STORE,
    VALID,
    Claim,
    Measured,
    Missing,
    Pair,
    Runs,
    Verdict,
    by_folds,
    changes,
    judged,
    no_worse,
    number,
    pair,
    rows_of,
    run_entropy,
    run_likelihood,
    run_perplexity,
    short_of,
    short_runs,
    tested,
)
from cwdfm.repro import paper
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.experiments.training import LOSSES, PATHS, RADII, SOURCES, TEST_CORPORA
from cwdfm.repro.table import Value

MAUVE, PERPLEXITY, ENTROPY, HELD_OUT = range(4)
BOTH = ("SCE", "SCE, context path")  # as the table of curves calls the two paths
LOSS_CELLS = {line.labels: line.cell("molecules", "small") for line in LOSSES}
PATH_CELLS = {line.labels: line.cell("molecules", "small") for line in PATHS}
TRAINING = f"{MODEL}, {QM9.recipe.steps:,} steps"


NOVELS = f"Novels ({short_runs('one run each')})"


def by_source(
    name: str, sides: tuple[str, str], more: str, other: str, column: int
) -> tuple[str, dict[str, list[float]]]:
    """Two rows of a table on text for each source: what changes, and by how many errors.

    Perplexity (down is better) first, then another measure (up).
    """
    rows, told, gains = rows_of(name, 0), [], {}
    for source in SOURCES:
        before, after = rows[source, sides[0]], rows[source, sides[1]]
        a, b = (run_perplexity(row[PERPLEXITY], source) for row in (before, after))
        x, y = number(before[column]), number(after[column])
        told.append(
            f"{source}{more}: perplexity {a.value:.0f} to {b.value:.0f}, {other} {x.value:.2f} to "
            f"{y.value:.2f}"
        )
        gains[source] = [a.over(b), y.above(x)]
    return f"{NOVELS}, {'; '.join(told)}", gains


def behind(pairs: list[Pair], before: str, after: str) -> tuple[list[float], str]:
    """What growths that are clearly smaller than the paper's count, and how far they are from it.

    `before` and `after` are names of the paper's rows, without the source.
    """
    short = {}
    for source, *ours in pairs:
        theirs = [by_folds(paper.molecules(f"{source}, {name}")[0]) for name in (before, after)]
        short[source] = short_of((ours[0], ours[1]), (theirs[0], theirs[1]))
    gains = [no_worse(-gap) for gap in short.values()]
    far = [f"{gap:.0f} ({source})" for source, gap in short.items() if no_worse(-gap) < 0]
    told = f". The paper's growth, of odds, is {' and '.join(far)} standard errors away"
    return gains, told if far else ""


def searched(training: str) -> str:
    """What a search of r and s has found of valid molecules, as far as it is done."""
    told = []
    for source in SOURCES:
        rows = rows_of(f"sweep-training-{source}").items()
        found = {labels[1]: row[VALID].value for labels, row in rows if labels[0] == training}
        valid = {setting: value for setting, value in found.items() if value is not None}
        if len(valid) > 1:
            best = max(valid, key=lambda setting: valid[setting])
            told.append(
                f"{source} source, {len(valid)} of {len(found)} settings: "
                f"{min(valid.values()):.0f} to {valid[best]:.0f} valid, the most by {best}"
            )
    searches = "; ".join(told)
    return f". A search of r and s, one run each on a seed of its own: {searches}" if told else ""


def losses() -> Iterator[Claim]:
    runs = Runs(tuple(LOSS_CELLS.values()))

    def against(loss: str) -> tuple[str, list[float], list[float], list[Pair]]:
        """What SCE changes from another loss, by how many errors: valid ones, novel ones.

        And the pairs of valid ones themselves.
        """
        told: list[str] = []
        gains: list[list[float]] = []
        valid: list[Pair] = []
        sources = [s for s in SOURCES if runs.counts(LOSS_CELLS[s, loss], VALID)]
        for what, name in ((VALID, "valid"), (NOVEL, "novel")):
            mean = partial(runs.mean, what=what)
            pairs = [
                pair(source, mean, LOSS_CELLS[source, loss], LOSS_CELLS[source, "SCE"])
                for source in sources
            ]
            told.append(f"{changes(pairs)} {name}")
            gains.append([b.above(a) for _, a, b in pairs])
            valid = valid or pairs
        many = runs.told(*(LOSS_CELLS[source, loss] for source in sources))
        left = "".join(f", not done yet with a {s} source" for s in SOURCES if s not in sources)
        return f"{loss} ({many}) to SCE: {', '.join(told)}{left}", gains[0], gains[1], valid

    many = runs.told(*(LOSS_CELLS[source, "SCE"] for source in SOURCES))
    recipe = QM9.recipe
    weights = f"r = {recipe.loss_radius}, s = {recipe.loss_scale:g}"
    model = f"{TRAINING}, SCE {many}, {weights}"

    def plain() -> tuple[str, Verdict]:
        told, valid, novel, pairs = against("CE")
        short, far = behind(pairs, "ce", "sce")
        return f"{model}. {told}{far}{searched('SCE')}", judged([*valid, *novel, *short])

    said = (
        "Scaled cross-entropy gives more valid molecules than cross-entropy, 475 to 556 (uniform), "
        "135 to 177 (mask), and more novel ones, 287 to 298, 115 to 138"
    )
    yield from tested("table of losses", said, "losses", plain)

    def others() -> tuple[str, Verdict]:
        found = [against(loss) for loss in ("NELBO", "Bregman")]
        gains = [gain for _, valid, _, _ in found for gain in valid]
        gains += [no_worse(gain) for _, _, novel, _ in found for gain in novel]
        return f"{model}. {'; '.join(told for told, *_ in found)}", judged(gains)

    said = (
        "Scaled cross-entropy gives more valid molecules than NELBO and Bregman too, and is "
        "competitive in novel ones"
    )
    yield from tested("table of losses", said, "losses", others)

    def text() -> tuple[str, Verdict]:
        rows = rows_of("losses", 0)
        others = list(product(SOURCES, ("NELBO", "Bregman")))
        done = [which for which in others if rows[which][PERPLEXITY].value is not None]
        pairs = [
            (
                f"{source}, {loss}",
                run_perplexity(rows[source, loss][PERPLEXITY], source, diverging=True),
                run_perplexity(rows[source, "SCE"][PERPLEXITY], source),
            )
            for source, loss in done
        ]
        told, gains = [f"perplexity: {changes(pairs)}"], [a.over(b) for _, a, b in pairs]
        for name, column in (("MAUVE", MAUVE), ("entropy", ENTROPY)):
            each = []
            for source, loss in done:
                other, scaled = (number(rows[source, of][column]) for of in (loss, "SCE"))
                each.append(f"{other.value:.2f} to {scaled.value:.2f} ({source}, {loss})")
                gain = scaled.above(other)
                if name == "MAUVE":  # the paper's own gain is none with a mask source
                    gains.append(no_worse(gain) if source == "mask" else gain)
            told.append(f"{name}: {', '.join(each)}")
        told += [f"not done yet: {', '.join(which)}" for which in others if which not in done]
        return f"{NOVELS}, {'; '.join(told)}", judged(gains)

    said = "Scaled cross-entropy is ahead of NELBO and Bregman too: text"
    yield from tested("table of losses", said, "losses", text)


def paths() -> Iterator[Claim]:
    runs = Runs(tuple(PATH_CELLS.values()))

    def molecules() -> tuple[str, Verdict]:
        gains: list[float] = []
        told: list[str] = []
        valid: list[Pair] = []
        for what, name in ((VALID, "valid"), (NOVEL, "novel")):
            pairs = [
                (
                    s,
                    runs.mean(PATH_CELLS[s, "mixture"], what),
                    runs.mean(PATH_CELLS[s, "context"], what),
                )
                for s in SOURCES
            ]
            told.append(f"{changes(pairs)} {name}")
            gains += [b.above(a) for _, a, b in pairs]
            valid = valid or pairs
        told.append("the context path sampled with its own weights, the other by Euler")
        told += both_by_euler()
        short, far = behind(valid, "sce", "sce, context 1")
        choice = PATH_CELLS["mask", "context"].choice
        model = f"{TRAINING}, {runs.told()}, r = {choice.radius}, s = {choice.scale:g}"
        found = f"{model}: {'; '.join(told)}{far}{searched(BOTH[1])}"
        return found, judged([*gains, *short])

    said = (
        "Training on the context-weighted path gives more valid and novel molecules: 556 to 658 "
        "(uniform) and 177 to 298 (mask) valid"
    )
    yield from tested("table of paths", said, "paths", molecules)

    def text() -> tuple[str, Verdict]:
        sides = ("mixture", "context")
        told, gains = by_source("paths", sides, "", "MAUVE", MAUVE)
        rows = rows_of("paths", 0)
        x, y = (run_entropy(rows["uniform", side][ENTROPY], "uniform") for side in sides)
        told += f"; entropy, uniform: {x.value:.2f} to {y.value:.2f}"
        not_gained = (no_worse(-gain) for gain in gains["uniform"])
        return told, judged([*gains["mask"], *not_gained, y.above(x)])

    said = (
        "Text gains from that path with a mask source, perplexity 38.9 to 36.3 and MAUVE 0.69 to "
        "0.75, and not with a uniform one, where entropy grows modestly"
    )
    yield from tested("table of paths", said, "paths", text)


def both_by_euler() -> list[str]:
    """A remark on the two paths, from the experiment on curves; none while that is missing."""
    curves, shown = rows_of("curves", VALID), STEPS.index(QM9.steps)
    try:
        euler = [
            pair(s, lambda row: number(row[shown]), *(curves[s, name, "Euler"] for name in BOTH))
            for s in SOURCES
        ]
    except Missing:
        return []
    return [f"both by Euler, one run: {changes(euler)} valid"]


def main_table() -> Iterator[Claim]:
    # Labels are (type, name); names alone tell the rows apart.
    rows = {labels[-1]: row for labels, row in rows_of("baselines", 0).items()}
    for source, where, promise in (
        ("uniform", "abstract, main table", "82.2 to 30.2 (63%), and MAUVE 0.63 to 0.78"),
        ("mask", "main table", "40.9 to 38.9, and MAUVE 0.67 to 0.69"),
    ):

        def scaled(source: str = source) -> tuple[str, Verdict]:
            ce, sce = rows[f"DFM, {source}"], rows[f"DFM + SCE, {source}"]
            a, b = (run_perplexity(row[PERPLEXITY], source) for row in (ce, sce))
            c, d = (number(row[MAUVE]) for row in (ce, sce))
            told = (
                f"{NOVELS}: perplexity {a.value:.0f} to {b.value:.0f}, MAUVE {c.value:.2f} to "
                f"{d.value:.2f}, entropy {ce[ENTROPY].value:.2f} to {sce[ENTROPY].value:.2f} bits"
            )
            before, after = (
                number(paper.text(f"{source}, {of}")[PERPLEXITY]) for of in ("ce", "sce")
            )
            short = _grown(a, b, by=math.log(after.value / before.value))  # of what is promised
            if no_worse(-short) < 0:
                told += f". A fall as large as the paper's is {short:.0f} standard errors away"
            return told, judged([a.over(b), d.above(c), no_worse(-short)])

        said = f"Scaled cross-entropy lowers perplexity, {source} source: {promise}"
        yield from tested(where, said, "baselines", scaled)

    def rank() -> tuple[str, Verdict]:
        ppl = {
            name: run_perplexity(row[PERPLEXITY], "uniform" if "uniform" in name else "mask")
            for name, row in rows.items()
            if name
        }
        mauve = {name: number(row[MAUVE]) for name, row in rows.items() if name}
        gains = []
        for ours, other in product((f"DFM + SCE, {s}" for s in SOURCES), ("SEDD", "MDLM")):
            gains += [ppl[other].over(ppl[ours]), mauve[ours].above(mauve[other])]
        gains += [no_worse(mauve["DFM + SCE, uniform"].above(mauve[block])) for block in CLOSE]
        listed = "; ".join(f"{n} {ppl[n].value:.0f} and {mauve[n].value:.2f}" for n in ppl)
        told = (
            f"{NOVELS}, perplexity and MAUVE: {listed}. BD3LM has half the steps, of twice the "
            f"tokens"
        )
        if all(ppl[other].over(ppl["DFM, uniform"]) > CLEAR for other in ("SEDD", "MDLM")):
            told += ". Plain cross-entropy with a uniform source passes both in perplexity too"
        return told, judged(gains)

    said = (
        "Flows trained so come close to block diffusion in MAUVE with a uniform source, and pass "
        "SEDD and MDLM in MAUVE and perplexity"
    )
    yield from tested("abstract, main table", said, "baselines", rank)


def perplexities() -> Iterator[Claim]:
    def found() -> tuple[str, Verdict]:
        main = {labels[-1]: row for labels, row in rows_of("baselines", 0).items()}
        tests = rows_of("perplexity", 0)
        columns = {"novels, held out": {s: _pair(main, s) for s in SOURCES}}
        for i, test in enumerate(TEST_CORPORA):
            if all(row[i].value is not None for row in tests.values()):
                columns[test] = {
                    s: (
                        run_likelihood(tests["DFM", s][i]),
                        run_likelihood(tests["DFM + SCE", s][i]),
                    )
                    for s in SOURCES
                }
        told, gains = [], []
        for name, pairs in columns.items():
            told.append(f"{name}: {changes((s, *pair) for s, pair in pairs.items())}")
            (u, v), (m, n) = pairs["uniform"], pairs["mask"]
            gains += [_grown(u, v), no_worse(_grown(u, v, by=PROMISED)), _same(m, n)]
        return f"{NOVELS}: {'; '.join(told)}", judged(gains)

    said = (
        "Scaled cross-entropy makes test perplexity worse with a uniform source (by 44% and "
        "more), and hardly changes it with a mask source"
    )
    yield from tested("table of test perplexities", said, "baselines", found)


CLOSE = ("BD3LM, block 4", "BD3LM, block 8")  # what the paper's come close to in MAUVE
HARDLY = 0.05  # of a perplexity
# The least that the paper's test perplexities grow by with a uniform source, in nats.
PROMISED = min(
    math.log(after / before)
    for before, after in zip(
        paper.TESTS["DFM", "uniform"], paper.TESTS["DFM + SCE", "uniform"], strict=True
    )
)


def _grown(before: Measured, after: Measured, by: float = 0.0) -> float:
    """By how many standard errors a perplexity grew by more than so many nats."""
    errors = (each.error / each.value for each in (before, after))
    return (math.log(after.value / before.value) - by) / math.hypot(*errors)


def _same(before: Measured, after: Measured) -> float:
    """Kept if hardly changed; beyond that it counts against it as far as it exceeds errors."""
    change = abs(math.log(after.value / before.value))
    return KEPT if change < HARDLY else -abs(after.over(before))


def _pair(main: dict[str, tuple[Value, ...]], source: str) -> tuple[Measured, Measured]:
    plain, scaled = (main[f"{name}, {source}"][HELD_OUT] for name in ("DFM", "DFM + SCE"))
    return run_likelihood(plain), run_likelihood(scaled)


def ablations() -> Iterator[Claim]:
    def radius() -> tuple[str, Verdict]:
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
            [
                judged_by[first].over(judged_by[last]),
                entropy[first].above(entropy[last]),
                min(inner.above(scores[first]), inner.above(scores[last])),
            ]
        )

    said = (
        "A larger radius of the loss's weights lowers perplexity and entropy; MAUVE is best at a "
        "moderate one"
    )
    yield from tested("appendix", said, "radius", radius)

    def dynamics() -> tuple[str, Verdict]:
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
        last = [rows[loss, looks[-1]][ENTROPY] for loss in ("CE", "SCE")]
        x, y = (run_entropy(value, "uniform") for value in last)
        told = (
            f"{NOVELS}, uniform source, perplexity: {changes(pairs)}; entropy at the end "
            f"{x.value:.2f} to {y.value:.2f} bits; SCE's own loss on held-out text falls from look "
            f"to look {sum(falling)} times of {len(falling)}"
        )
        _, before, after = pairs[-1]
        return told, judged([before.over(after), x.above(y)])

    said = (
        "Scaled cross-entropy takes training smoothly to lower perplexity, with a moderate fall in "
        "entropy"
    )
    yield from tested("appendix", said, "dynamics", dynamics)

    def scales() -> tuple[str, Verdict]:
        sides = ("0.5", "1")
        told, gains = by_source("scales", sides, ", s = 0.5 to 1", "MAUVE", MAUVE)
        rows = rows_of("scales")
        x, y = (run_entropy(rows["uniform", side][ENTROPY], "uniform") for side in sides)
        (falls, grows), (_, grows_masked) = gains["uniform"], gains["mask"]
        told += f"; entropy, uniform: {x.value:.2f} to {y.value:.2f}"
        return told, judged([falls, x.above(y), no_worse(-grows), grows_masked])

    said = (
        "With a larger scale of the context-weighted path perplexity falls with a uniform source "
        "(48.9 to 37.5) and so does entropy (7.83 to 7.70), while MAUVE does not grow (0.78 to "
        "0.77); with a mask source MAUVE grows (0.71 to 0.75)"
    )
    yield from tested("appendix", said, "scales", scales)
