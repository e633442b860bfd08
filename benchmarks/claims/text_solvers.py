"""Claims about solvers on text, with the paper's settings."""

import math
from collections.abc import Iterator
from itertools import product

from benchmarks.claims.judging import (
    STORE,
    Claim,
    Measured,
    Result,
    Verdict,
    by_folds,
    judged,
    no_worse,
    number,
    read,
    rows_of,
    tested,
)
from benchmarks.claims.on_text import short_runs
from cwdfm.repro import paper
from cwdfm.repro.experiments.solvers import CORRECTORS, corrector_steps, steps_cells
from cwdfm.repro.scale import size
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
    return f"Novels ({recipe['steps']:,} steps of {recipe['batch_size']})"


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
        "figure, uniform source",
        "At many steps Neighbor weights beat Euler in perplexity (22%, from 512 steps on) and "
        "MAUVE (up to 23%, in the introduction 24%; from 256 steps on), at comparable entropy",
        f"{longer('uniform')}, {last} steps: perplexity {before.value:.0f} to {after.value:.0f} "
        f"({100 * (after.value / before.value - 1):+.0f}%), {lower(euler, neighbor)}; MAUVE "
        f"{a.value:.2f} to {b.value:.2f}, errors of {a.error:.2f} and {b.error:.2f}, "
        f"{higher(euler, neighbor)}; entropy {bits(euler[last])} to {bits(neighbor[last])} bits; "
        f"perplexity {shorter('uniform')}",
        judged({"perplexity": [before.above(after)], "MAUVE": [b.above(a)]}),
    )
    weighted, c = perplexity(entropic[last]), mauve(entropic[last])
    yield Claim(
        "figure, uniform source",
        "At many steps, from 1,024 on, Neighbor weights beat Entropy weights too, in perplexity "
        "and MAUVE",
        f"{longer('uniform')}, {last} steps: perplexity {weighted.value:.0f} to {after.value:.0f}, "
        f"{lower(entropic, neighbor)}; MAUVE {c.value:.2f} to {b.value:.2f}, "
        f"{higher(entropic, neighbor)}. {beta('uniform')}",
        judged({"perplexity": [weighted.above(after)], "MAUVE": [b.above(c)]}),
    )
    yield from few_steps(rows, text("mask"))
    yield with_masks(text("mask"))


def few_steps(*tables: Rows) -> Iterator[Claim]:
    """What the weights do at the fewest steps; tables of the uniform source and of the mask."""
    told = []
    strongest: dict[str, list[float]] = {}
    weaker: dict[str, list[float]] = {}
    for source, found in zip(("uniform", "mask"), tables, strict=True):
        few = min(key[1] for key in found)
        each = {s: perplexity(found[s, few, 1.0]) for s in ("euler", "neighbor", "entropy")}
        numbers = ", ".join(f"{value.value:,.0f} {name}" for name, value in each.items())
        told.append(f"{source} source, {few} steps: {numbers}")
        strongest[f"{source}, beside Euler and Neighbor"] = [
            each[other].above(each["entropy"]) for other in ("euler", "neighbor")
        ]
        weaker[source] = [each["neighbor"].above(each["euler"])]
    shown = f"{longer('uniform')}, perplexity, {'; '.join(told)}"
    yield Claim(
        "section on sampling, conclusion",
        "At few steps Neighbor weights are less effective: Euler is ahead of them",
        shown,
        judged(weaker),
    )
    yield Claim(
        "section on sampling",
        "At few steps Entropy weights are the strongest",
        f"{shown}. {beta('uniform', 'mask')}",
        judged(strongest),
    )


def with_masks(rows: Rows) -> Claim:
    """Both weights with a mask source; of Entropy weights there is the whole law alone."""
    told: list[str] = []
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
    return Claim(
        "figure, mask source",
        "With a mask source Neighbor and Entropy weights lower the perplexity too, at many steps "
        "and comparable entropy",
        f"{longer('mask')}, perplexity by Euler and with weights, {'; '.join(told)}; Neighbor "
        f"{shorter('mask')}. {beta('mask')}",
        judged(gains),
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
        told = []
        gains: dict[str, list[float]] = {"perplexity": [], "MAUVE": []}
        correctors = [c for c in CORRECTORS if c]  # the first is none
        for steps, c in product(corrector_steps("text", "small"), correctors):
            plain, weighted = (rows[name, str(steps), f"{c:g}"] for name in ("Euler", "Neighbor"))
            a, b = by_folds(plain[1]), by_folds(weighted[1])
            x, y = number(plain[0]), number(weighted[0])
            h, i = number(plain[2]), number(weighted[2])
            told.append(
                f"{steps:,} steps, scale {c:g}: perplexity {a.value:.0f} to {b.value:.0f}, MAUVE "
                f"{x.value:.2f} to {y.value:.2f}, entropy {h.value:.2f} to {i.value:.2f}"
            )
            gains["perplexity"].append(a.above(b))
            gains["MAUVE"].append(no_worse(y.above(x)))
        power = f"a = b = {Corrector().a:g}, no other tried"
        return f"Novels ({short_runs()}), uniform source, {power}, {'; '.join(told)}", judged(gains)

    said = (
        "Neighbor weights help a predictor-corrector further, in perplexity and slightly in MAUVE, "
        "at the cost of lower entropy"
    )
    yield from tested("figure", said, "corrector", found)
