"""Beyond the paper: the best molecules that our models give, and by what."""

from collections.abc import Iterator

from experiments.benchmarks.markdown import Result
from experiments.claims.judging import CLEAR, read
from experiments.claims.on_molecules import counting

GOAL = {"valid": 980, "novel": 310}  # which we set ourselves
RUNS = {  # of the training in 24 spellings, each with the seed of results
    "first": "qm9_best_spelled24",
    "second": "qm9_best_spelled24_again",
    "third": "qm9_best_spelled24_hot",
    "fourth": "qm9_best_spelled24_seed1",
}


def beyond() -> str:
    """The best that the models in the box give, and by what."""
    rows, before = read("qm9_best")["rows"], read("qm9_small")["rows"]
    searched = sorted(read("qm9_mend")["rows"], key=lambda row: -row["valid"])
    told = []
    for source in ("uniform", "mask"):
        ours = [row for row in rows if row["model"] == f"qm9-{source}-small"]
        # The setting with the most valid ones on the search's seed, as it does on the reported one.
        best = next(
            row
            for found in searched
            for row in ours
            if found["model"] == row["model"]
            and _alike(row["setting"], found["setting"])
            and row["setting"]["mend"]
        )
        steps = best["setting"]["steps"]
        plain = next(
            row for row in ours if row["setting"]["steps"] == steps and not row["setting"]["mend"]
        )
        paper = max((row for row in before if row["source"] == source), key=_valid)
        told.append(
            f"- **{source.capitalize()} source**: {best['valid']:g} valid and {best['novel']:g} "
            f"novel of 1,024, by {steps} Euler steps and mending, in {best['evaluations']:.0f} "
            f"evaluations a molecule; before mending they are {plain['valid']:g} and "
            f"{plain['novel']:g}. The best of the paper's solvers here: {_valid(paper):g} and "
            f"{paper['novel']['mean']:g} ({paper['solver']}, {paper['steps']} steps)."
        )
    return "\n".join([*told, eight_spellings(), spellings24()])


def _alike(one: Result, other: Result) -> bool:
    """Whether two settings say the same where both say something."""
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def eight_spellings() -> str:
    """The largest numbers of valid molecules that leave so many novel ones."""
    rows, chosen = read("qm9_spelled")["rows"], read("qm9_best_spelled")["rows"]
    box = [row for row in read("qm9_mend")["rows"] if row["model"] == "qm9-uniform-small"]
    drawn = ";\n  ".join(f"{sampler(row)}: {counts(row)}" for row in chosen)
    return (
        "- **Uniform source, 17M in eight spellings** of each molecule (8,000 steps, and models on "
        f"the way): {most_valid(rows)}.\n  These are the best of {len(rows)} settings on the seed "
        "of the search ([results](results.md#models-in-eight-spellings));\n  of "
        f"{len(box)} settings of mending for the model in the box, 4M in one spelling, "
        f"{most_valid(box)}. Size and spellings\n  changed together.\n  On the seed of results, "
        "valid and novel:\n  "
        f"{drawn}\n  ([results](results.md#the-best-samples-of-a-model-in-eight-spellings))."
    )


def most_valid(rows: list[Result]) -> str:
    """The most valid ones with at least 250 novel ones, and with at least 300."""
    told: list[str] = []
    for least in (250, 300):
        fitting = [row for row in rows if row["novel"] >= least]
        if not fitting:  # nor does any leave more
            return "; ".join([*told, f"none leaves {least} novel ones"])
        row = max(fitting, key=lambda row: float(row["valid"]))
        told.append(f"{row['valid']:g} valid with {row['novel']:g} novel")
    return " or ".join(told)


def sampler(row: Result) -> str:
    """How samples were drawn, and by which model where it is not that of the end."""
    setting = row["setting"]
    how = [f"{setting['steps']} steps"]
    how += [f"temperature {setting['temperature']:g}"] if setting["temperature"] != 1 else []
    how += ["mended with care"] if setting["mend"] else []
    how += [f"accepted from {setting['accept']:g} on"] if setting.get("accept") else []
    early = after(row["model"])
    return ", ".join([*how, *([f"model {early}"] if early else [])])


def after(model: str) -> str:
    """Of a model that was kept on the way, when; nothing of the one at the end."""
    _, _, steps = model.partition("model-")
    return f"after {int(steps):,} steps of training" if steps else ""


def counts(row: Result) -> str:
    return (
        f"{row['valid']:g} and {row['novel']:g} in {row['evaluations']:.0f} evaluations a molecule"
    )


def spellings24() -> str:
    """Four runs of one training, what a search found on the second, and the goal."""
    drawn = [
        f"  - {run} run, {sampler(row)}: {counts(row)} ({row['samples']:,} samples); "
        f"{beside_goal(row)}"
        for run, row in by_run()
    ]
    hot = read("qm9_spelled24_hot")["rows"]
    found = ", ".join(
        f"{barred(hot, model)} {after(model) or 'at the end'}"
        for model in sorted({row["model"] for row in hot}, key=lambda name: (len(name), name))
    )
    return "\n".join(
        [
            "- **Uniform source, 17M in 24 spellings**, 12,000 steps, four runs of the training: "
            "three of one seed (runs on a GPU\n  differ all the same), the fourth of another. The "
            "setting at temperature 2.5 was chosen on the first run with the seed of the\n  "
            "search ([results](results.md#models-in-24-spellings)). On the second run, with that\n"
            "  seed too, hotter steps and higher bars left at least 990 valid ones with so many "
            f"novel ones at most: {found}\n  ([results](results.md#hotter)); the other two "
            "settings were chosen there. Nothing was chosen on the third and the fourth. Valid and "
            "novel on the\n  seed of results "
            "([first](results.md#the-best-samples-of-a-model-in-24-spellings), "
            "[second](results.md#trained-again), [third](results.md#hotter-with-the-seed-of-"
            "results), [fourth](results.md#trained-with-another-seed)):",
            *drawn,
            goal(),
        ]
    )


def by_run() -> Iterator[tuple[str, Result]]:
    """Which run of the training in 24 spellings, and its results with the seed of results."""
    for run, name in RUNS.items():
        for row in read(name)["rows"]:
            yield run, row


def gaps(row: Result) -> dict[str, float]:
    """By how much a result is above the goal."""
    return {what: row[what] - least for what, least in GOAL.items()}


def reached(row: Result) -> bool:
    return min(gaps(row).values()) >= 0


def beside_goal(row: Result) -> str:
    """Whether a result reaches the goal, and by how much beside errors of counting."""
    told = " and ".join(
        f"{gap:+g} ± {counting(row[what], row['samples']):.1f} {what}"
        for what, gap in gaps(row).items()
    )
    return f"{'reaches' if reached(row) else 'misses'} the goal, {told}"


def goal() -> str:
    """Which settings reach the goal, on how many runs, and which clearly."""
    rows: dict[str, list[Result]] = {}
    for _, row in by_run():
        rows.setdefault(sampler(row), []).append(row)
    told = [
        f"at temperature {found[0]['setting']['temperature']:g} on {sum(map(reached, found))} of "
        f"{len(found)} run{'s' if len(found) > 1 else ''}"
        for found in rows.values()
    ]
    clear = [
        f"at temperature {row['setting']['temperature']:g} on the {run} run"
        for run, row in by_run()
        if all(g > CLEAR * counting(row[what], row["samples"]) for what, g in gaps(row).items())
    ]
    return (
        f"\n  The goal is reached {', '.join(told)};\n  in both numbers by more than {CLEAR:g} "
        f"standard errors of counting (behind ±, as of independent samples): "
        f"{' and '.join(clear) or 'never'}."
    )


def barred(rows: list[Result], model: str) -> str:
    """The most novel ones of a model with 990 valid, by any setting and bar."""
    ours = [row for row in rows if row["model"] == model]
    found = [kept for row in ours for kept in [row, *row.get("accepting", [])]]
    return f"{max((kept['novel'] for kept in found if kept['valid'] >= 990), default=0):.0f}"


def _valid(row: Result) -> float:
    return float(row["valid"]["mean"])
