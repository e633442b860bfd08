"""Claims about the main table and the test perplexities."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product

from experiments import paper
from experiments.bench.settings import Shapes
from experiments.catalog.perplexity import TEST_CORPORA
from experiments.catalog.training import SOURCES
from experiments.claims.judging import (
    CLEAR,
    KEPT,
    Claim,
    Measured,
    Verdict,
    by_folds,
    judged,
    no_worse,
    number,
    rows_of,
    tested,
)
from experiments.claims.on_text import (
    ENTROPY,
    HELD_OUT,
    MAUVE,
    NOVELS,
    PERPLEXITY,
    over_seeds,
    run_likelihood,
    run_perplexity,
    short_runs,
)
from experiments.table import Value

MAIN = paper.table("baselines")
TUNED = "tuned-losses-text"  # by which CE and SCE are judged, over seeds
CLOSE = ("BD3LM, block 4", "BD3LM, block 8")  # what the paper's come close to in MAUVE
HARDLY = 0.05  # of a perplexity
DIVERGING = ("MDLM", "SEDD")  # whose losses have the hazard for a weight, and scatter by that
LEVEL = Shapes().vocab  # the perplexity of a level guess; a bound above it tells nothing
# The least that the paper's test perplexities grow by with a uniform source, in nats.
PROMISED = min(
    math.log(after / before)
    for before, after in zip(
        paper.TESTS["DFM", "uniform"], paper.TESTS["DFM + SCE", "uniform"], strict=True
    )
)


def main_table() -> Iterator[Claim]:
    both = f"{MAIN}, {paper.table('loss_functions')}"
    for source, where, promise in (
        ("uniform", f"abstract, bold text, {both}", "82.2 to 30.2 (63%), and MAUVE 0.63 to 0.78"),
        ("mask", both, "40.9 to 38.9, and MAUVE 0.67 to 0.69"),
    ):
        said = f"Scaled cross-entropy lowers perplexity, {source} source: {promise}; entropy stays "
        said += "reasonable"
        yield from tested(where, said, "baselines", partial(_scaled, source), TUNED)

    said = (
        "With scaled cross-entropy flows with a uniform source match block diffusion (in the main "
        "table: come close to it, in MAUVE), and with either source pass SEDD and MDLM in MAUVE "
        "and perplexity"
    )
    yield from tested(f"abstract, {MAIN}, bold text", said, "baselines", _rank)


def _by_name() -> dict[str, tuple[Value, ...]]:
    """The rows of text; labels are (type, name), and names alone tell them apart."""
    return {labels[-1]: row for labels, row in rows_of("baselines", 0).items()}


def _scaled(source: str) -> tuple[str, Verdict]:
    """Cross-entropy and its scaled form, over seeds; by weights of a search, if there was one."""
    perplexity, mauve, entropy = (
        over_seeds(source, column) for column in (PERPLEXITY, MAUVE, ENTROPY)
    )
    ce, *scaled = perplexity
    told = (
        f"Novels ({short_runs()}), means of three seeds (of perplexities geometric). CE: "
        f"perplexity {perplexity[ce].value:.0f}, MAUVE {mauve[ce].value:.2f}, entropy "
        f"{entropy[ce].value:.2f} bits"
    )
    for sce in scaled:
        lower, higher = perplexity[ce].over(perplexity[sce]), mauve[sce].above(mauve[ce])
        told += (
            f". SCE, {sce[1]}: perplexity {perplexity[sce].value:.0f} ({lower:+.1f} errors), MAUVE "
            f"{mauve[sce].value:.2f} ({higher:+.1f}), entropy {entropy[sce].value:.2f} bits"
        )
    data = by_folds(rows_of(TUNED)["data", "", ""][ENTROPY])
    told += (
        f". The data's own entropy: {data.value:.2f} bits. On text the paper does not tell its s"
    )
    best = scaled[-1]  # those of a search come last
    a, b, c, d = perplexity[ce], perplexity[best], mauve[ce], mauve[best]
    effect = f"perplexity {a.value:.0f} to {b.value:.0f}, MAUVE {c.value:.2f} to {d.value:.2f}"
    before, after = (number(paper.text(f"{source}, {of}")[PERPLEXITY]) for of in ("ce", "sce"))
    short = _grown(a, b, by=math.log(after.value / before.value))  # of what is promised
    if no_worse(-short) < 0:
        told += f". A fall as large as the paper's is {short:.0f} standard errors away"
    return told, judged(
        {
            "perplexity": [a.over(b)],
            "MAUVE": [d.above(c)],
            "entropy, beside the data's": [no_worse(entropy[best].above(data))],
            "a fall as the paper's": [no_worse(-short)],
        },
        effect,
    )


def _rank() -> tuple[str, Verdict]:
    """All methods beside each other."""
    rows = _by_name()
    ppl = {
        name: run_perplexity(
            row[PERPLEXITY],
            "uniform" if "uniform" in name else "mask",
            diverging=name in DIVERGING,
        )
        for name, row in rows.items()
        if name
    }
    mauve = {name: number(row[MAUVE]) for name, row in rows.items() if name}
    gains = {}
    for source, other in product(SOURCES, ("SEDD", "MDLM")):
        ours = f"DFM + SCE, {source}"
        gains[f"{source} beside {other}, perplexity and MAUVE"] = [
            ppl[other].over(ppl[ours]),
            mauve[ours].above(mauve[other]),
        ]
    gains[f"uniform beside {' and '.join(CLOSE)}, MAUVE"] = [
        no_worse(mauve["DFM + SCE, uniform"].above(mauve[block])) for block in CLOSE
    ]
    listed = "; ".join(f"{n} {ppl[n].value:.0f} and {mauve[n].value:.2f}" for n in ppl)
    told = (
        f"{NOVELS}, perplexity and MAUVE: {listed}. BD3LM reads every sequence twice, noised "
        f"and clean, and has half the steps: all read as many tokens"
    )
    if all(ppl[other].over(ppl["DFM, uniform"]) > CLEAR for other in ("SEDD", "MDLM")):
        told += ". Plain cross-entropy with a uniform source clearly passes both in perplexity"
    compared = ("SEDD", "MDLM", "DFM + SCE, uniform", "DFM + SCE, mask")
    effect = ", ".join(f"{name} {ppl[name].value:.0f}" for name in compared)
    return told, judged(gains, f"perplexity: {effect}")


def perplexities() -> Iterator[Claim]:
    for source, what in (
        (
            "uniform",
            "makes test perplexity worse with a uniform source (by 44% and more) while samples "
            "become better (judged above)",
        ),
        ("mask", "hardly changes test perplexity with a mask source"),
    ):
        found = partial(_tests, source)
        said = f"Scaled cross-entropy {what}"
        yield from tested(paper.table("elbo"), said, "perplexity", found)


def _tests(source: str) -> tuple[str, Verdict]:
    """Of the novels, and of the paper's test corpora that are to be had."""
    tests = rows_of("perplexity", 0)
    pairs = {"novels, held out (`baselines`)": _pair(_by_name(), source)}
    for i, test in enumerate(TEST_CORPORA):
        values = [tests[name, source][i] for name in ("DFM", "DFM + SCE")]
        if all(value.value is not None for value in values):
            pairs[test] = run_likelihood(values[0]), run_likelihood(values[1])
    told, counting = [], []
    for name, (before, after) in pairs.items():
        beyond = max(before.value, after.value) > LEVEL
        left = " (above a level guess, so left out of the verdict)" if beyond else ""
        told.append(f"{name}: {before.value:,.0f} to {after.value:,.0f}{left}")
        counting += [] if beyond else [(before, after)]
    if absent := [test for test in TEST_CORPORA if test not in pairs]:
        told.append(f"not to be had here: {', '.join(absent)}")
    if source == "uniform":
        gains = {
            "worse": [_grown(*pair) for pair in counting],
            "by as much as the paper's": [
                no_worse(_grown(*pair, by=PROMISED)) for pair in counting
            ],
        }
    else:
        gains = {"hardly changed": [_same(*pair) for pair in counting]}
    return f"{NOVELS}, perplexity: {'; '.join(told)}", judged(gains, told[0])


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
