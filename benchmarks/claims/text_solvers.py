"""Claims about solvers on text, with the paper's settings."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

from benchmarks.claims.judging import (
    STORE,
    Claim,
    Measured,
    Result,
    Verdict,
    by_folds,
    clearly,
    judged,
    no_worse,
    number,
    read,
    rows_of,
    tested,
    without_data,
)
from benchmarks.claims.on_text import ENTROPY, MAUVE, PERPLEXITY, short_runs
from cwdfm.repro import paper
from cwdfm.repro.experiments.controls import POWERS_AT
from cwdfm.repro.experiments.solvers import CORRECTORS, corrector_steps, steps_cells
from cwdfm.repro.scale import size
from cwdfm.repro.table import Value
from cwdfm.solver import Corrector

Rows = dict[tuple[str, int, float], Result]
ByStep = dict[int, Result]


def text(source: str) -> Rows:
    """Rows of results/text_small_*.json by solver, steps and nucleus."""
    result = read(f"text_small_{source}")
    rows = {}
    for row in result["rows"]:
        options = result["config"].get(row["name"], {}).get("options")
        if options:
            rows[options["solver"], options["steps"], options["top_p"]] = row
    return rows


def longer(source: str) -> str:
    """What the longer runs on text were; the tables of `cwdfm repro` have shorter ones."""
    recipe = read(f"text_small_{source}")["config"][f"recipe-{source}"]["recipe"]
    runs = f"{recipe['steps']:,} steps of {recipe['batch_size']}"
    alone = ", a loss of masked tokens alone" if recipe["masked_only"] else ""
    return f"Novels ([{runs}](results.md#text-at-small-scale-{source}-source){alone})"


def shorter(source: str) -> str:
    """Perplexities by Euler and with Neighbor weights in the shorter runs, at many steps."""
    sizes, rows = size("text", "small"), rows_of(f"steps-text-{source}")
    cells = steps_cells("text", source, "small")
    told, dates = [], set()
    for k in sizes.curve[-2:]:
        found = []
        for name in ("Euler", "Neighbor"):
            cell = cells[name, k]
            dates.add(STORE.run_of(cell.train(), cell.sample()))
            found.append(rows[name, str(k)][1].value)
        if None not in found:
            told.append(f"{found[0]:.0f} to {found[1]:.0f} at {k}")
    runs = "one run" if len(dates) == 1 else "solvers on different runs"
    return f"trained for less ({short_runs(runs)}): {', '.join(told) or 'not done yet'}"


def perplexity(row: Result) -> Measured:
    """Under the judge, with its error by five folds."""
    found = row["perplexity"]["perplexity"]
    return Measured(found["value"], found["fold_std"] / math.sqrt(5))


def mauve(row: Result) -> Measured:
    return Measured(row["mauve"]["mauve"], row["mauve"]["std"])


def bits(row: Result) -> str:
    """The entropy of its samples."""
    return f"{row['statistics']['entropy']['value']:.2f}"


def beta(*sources: str) -> str:
    """With which beta Entropy weights are, and what the sweep of shorter runs says of others."""
    said = f"Entropy weights with the paper's best beta for text, {paper.BEST['text', 'mask'][2]:g}"
    told = []
    for source in sources:
        lowest: dict[str, tuple[float, str]] = {}  # perplexity and settings, by family
        for (family, setting), row in rows_of(f"sweep-text-{source}").items():
            if (value := row[1].value) is not None and family != "data":
                lowest[family] = min(lowest.get(family, (math.inf, "")), (value, setting))
        if len(lowest) == 3:
            each = [f"{v:.0f} {' '.join([f, w]).strip()}" for f, (v, w) in lowest.items()]
            told.append(f"{source} source {', '.join(each)}")
    steps = size("text", "small").steps
    swept = f". Lowest perplexities in sweeps on shorter runs, {steps} steps: {'; '.join(told)}"
    return said + (swept if told else "; none was searched for here")


def solvers_on_text() -> Iterator[Claim]:
    rows = text("uniform")
    steps = sorted({key[1] for key in rows})
    euler, neighbor = ({k: rows[s, k, 1.0] for k in steps} for s in ("euler", "neighbor"))
    last = steps[-1]
    entropic = {k: rows["entropy", k, 1.0] for k in steps}
    before, after = perplexity(euler[last]), perplexity(neighbor[last])
    a, b = mauve(euler[last]), mauve(neighbor[last])
    yield Claim(
        paper.figure("nfe_vs_quality_uniform"),
        "At many steps Neighbor weights beat Euler in perplexity (22%, from 512 steps on) and "
        "MAUVE (up to 23%, in the introduction 24%; from 256 steps on), at comparable entropy",
        f"{longer('uniform')}, {last} steps: perplexity {before.value:.0f} to {after.value:.0f} "
        f"({100 * (after.value / before.value - 1):+.0f}%), {lower(euler, neighbor)}; MAUVE "
        f"{a.value:.2f} to {b.value:.2f}, errors of {a.error:.2f} and {b.error:.2f}, "
        f"{higher(euler, neighbor)}; entropy {bits(euler[last])} to {bits(neighbor[last])} bits; "
        f"perplexity {shorter('uniform')}",
        judged(
            {"perplexity": [before.above(after)], "MAUVE": [b.above(a)]},
            _changed(before, after, a, b),
        ),
        ("steps-text-uniform",),
    )
    weighted, c = perplexity(entropic[last]), mauve(entropic[last])
    yield Claim(
        paper.figure("nfe_vs_quality_uniform"),
        "At many steps, from 1,024 on, Neighbor weights beat Entropy weights too, in perplexity "
        "and MAUVE",
        f"{longer('uniform')}, {last} steps: perplexity {weighted.value:.0f} to {after.value:.0f}, "
        f"{lower(entropic, neighbor)}; MAUVE {c.value:.2f} to {b.value:.2f}, "
        f"{higher(entropic, neighbor)}. {beta('uniform')}",
        judged(
            {"perplexity": [weighted.above(after)], "MAUVE": [b.above(c)]},
            _changed(weighted, after, c, b),
        ),
        ("steps-text-uniform",),
    )
    yield from few_steps(rows, text("mask"))
    yield with_masks(text("mask"))


def _changed(before: Measured, after: Measured, mauve: Measured, then: Measured) -> str:
    """At the most steps."""
    return (
        f"perplexity {before.value:.0f} to {after.value:.0f}, MAUVE {mauve.value:.2f} to "
        f"{then.value:.2f}"
    )


def few_steps(*tables: Rows) -> Iterator[Claim]:
    """What the weights do at the fewest steps; tables of the uniform source and of the mask."""
    told, effects = [], []
    strongest: dict[str, list[float]] = {}
    weaker: dict[str, list[float]] = {}
    for source, found in zip(("uniform", "mask"), tables, strict=True):
        few = min(key[1] for key in found)
        each = {s: perplexity(found[s, few, 1.0]) for s in ("euler", "neighbor", "entropy")}
        numbers = ", ".join(f"{value.value:,.0f} {name}" for name, value in each.items())
        told.append(f"{longer(source)}, {source} source, {few} steps: {numbers}")
        effects.append(f"{numbers} ({source}, {few} steps)")
        strongest[f"{source}, beside Euler and Neighbor"] = [
            each[other].above(each["entropy"]) for other in ("euler", "neighbor")
        ]
        weaker[source] = [each["neighbor"].above(each["euler"])]
    shown = f"Perplexity. {'; '.join(told)}"
    effect = f"perplexity {'; '.join(effects)}"
    yield Claim(
        "section on sampling, conclusion",
        "At few steps Neighbor weights are less effective: Euler is ahead of them",
        shown,
        judged(weaker, effect),
        ("steps-text-uniform", "steps-text-mask"),
    )
    yield Claim(
        "section on sampling",
        "At few steps Entropy weights are the strongest",
        f"{shown}. {beta('uniform', 'mask')}",
        judged(strongest, effect),
        ("steps-text-uniform", "steps-text-mask"),
    )


def with_masks(rows: Rows) -> Claim:
    """Both weights with a mask source; of Entropy weights there is the whole law alone."""
    told: list[str] = []
    effects: list[str] = []
    gains: dict[str, list[float]] = {}
    steps = sorted({key[1] for key in rows})
    for solver, p, name in (
        ("neighbor", 1.0, "Neighbor"),
        ("neighbor", 0.9, "Neighbor, nucleus 0.9"),
        ("entropy", 1.0, "Entropy"),
    ):
        pairs = [[rows[s, k, p] for s in ("euler", solver)] for k in steps]
        found = [(perplexity(a), perplexity(b)) for a, b in pairs]
        each = [
            f"{a.value:.0f} to {b.value:,.0f} at {k}"
            for k, (a, b) in zip(steps, found, strict=True)
        ]
        a, b = map(bits, pairs[-1])
        told.append(f"{name}: {', '.join(each)}, entropy then {a} to {b} bits")
        before, after = found[-1]
        gains[name] = [before.above(after)]
        effects.append(f"{before.value:.0f} to {after.value:.0f} ({name})")
    return Claim(
        paper.figure("nfe_vs_quality_mask"),
        "With a mask source Neighbor and Entropy weights lower the perplexity too, at many steps "
        "and comparable entropy",
        f"{longer('mask')}, perplexity by Euler and with weights, {'; '.join(told)}; Neighbor "
        f"{shorter('mask')}. {beta('mask')}",
        judged(gains, f"perplexity {', '.join(effects)}"),
        ("steps-text-mask",),
    )


def lower(plain: ByStep, weighted: ByStep) -> str:
    """From how many steps on the weighted ones have the lower perplexity."""
    return _ahead(
        "lower", {k: perplexity(plain[k]).value - perplexity(weighted[k]).value for k in plain}
    )


def higher(plain: ByStep, weighted: ByStep) -> str:
    """From how many steps on the weighted ones have the higher MAUVE."""
    return _ahead("higher", {k: mauve(weighted[k]).value - mauve(plain[k]).value for k in plain})


def _ahead(how: str, gains: dict[int, float]) -> str:
    behind = max((k for k, gain in gains.items() if gain <= 0), default=0)
    ahead = [k for k in gains if k > behind]
    return f"{how} from {min(ahead)} steps on" if ahead else f"{how} at no number of steps"


def corrector() -> Iterator[Claim]:
    def found() -> tuple[str, Verdict]:
        rows = rows_of("corrector")
        alone, *scales = (f"{c:g}" for c in CORRECTORS)
        told = []
        gains: dict[str, list[float]] = {
            "perplexity, beside the corrector alone": [],
            "beside Neighbor weights alone": [],
            "MAUVE, beside the corrector alone": [],
        }
        by_perplexity, by_neighbor, by_mauve = gains.values()
        for steps in map(str, corrector_steps("text", "small")):
            plain, both = ([rows[s, steps, c] for c in scales] for s in ("Euler", "Neighbor"))
            weighted = rows["Neighbor", steps, alone]
            named = {
                "Euler": [rows["Euler", steps, alone]],
                "corrector": plain,
                "Neighbor": [weighted],
                "both": both,
            }
            each = [
                f"{name} {', '.join(f'{span(part, k)}' for k in (PERPLEXITY, MAUVE, ENTROPY))}"
                for name, part in named.items()
            ]
            told.append(f"{steps} steps: {'; '.join(each)}")
            for a, b in zip(plain, both, strict=True):
                by_perplexity.append(by_folds(a[PERPLEXITY]).above(by_folds(b[PERPLEXITY])))
                by_mauve.append(number(b[MAUVE]).above(number(a[MAUVE])))
            best = min((by_folds(row[PERPLEXITY]) for row in both), key=lambda each: each.value)
            by_neighbor.append(by_folds(weighted[PERPLEXITY]).above(best))
        many = f"{len(scales)} scales, a = b = {Corrector().a:g}"
        shown = f"Novels ({short_runs()}), uniform source, {many}; perplexity, MAUVE and entropy"
        shown += f" at {'; at '.join(told)}"
        if not clearly(by_neighbor):
            shown += ". Both together are not clearly better than Neighbor weights alone"
        low = [f"{name} {span(part, PERPLEXITY)}" for name, part in named.items()]
        effect = f"perplexity at {int(steps):,} steps: {', '.join(low)}"
        return f"{shown}{by_powers()}", judged(gains, effect)

    said = (
        "Neighbor weights and a predictor-corrector complement each other: both together lower "
        "perplexity further and slightly improve MAUVE, at the cost of lower entropy"
    )
    where = f"{paper.figure('corrector_uniform_nw')}, bold text"
    yield from tested(where, said, "corrector", found)


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
        rows, told = rows_of("scaled-solvers"), []
        gains: dict[str, list[float]] = {}
        for source, steps in product(("uniform", "mask"), corrector_steps("text", "small")):
            plain, weighted = (
                by_folds(rows[source, name, str(steps)][PERPLEXITY])
                for name in ("Euler", "Neighbor")
            )
            told.append(f"{plain.value:.0f} to {weighted.value:.0f} ({source}, {steps:,} steps)")
            gains.setdefault(f"no gain, {source}", []).append(no_worse(weighted.above(plain)))
        return (
            f"Novels ({short_runs('one run each')}), Euler to Neighbor, perplexity "
            f"{', '.join(told)}",
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
