"""Sections of docs/results.md on the search for the best samples of molecules."""

from experiments.benchmarks.markdown import Result, table
from experiments.benchmarks.search_tables import (
    AS_MENDING,
    MENDING,
    barred_table,
    bars,
    both,
    chosen,
    commands,
    counted,
    mended_table,
    searched_origin,
)
from experiments.claims.on_molecules import COUNTED, counting

REFINED = ("temperature", "share", "steps", "rounds", "cold")


def qm9_search(result: Result) -> str:
    """The paper's rule against counted jumps, at the settings that both were tried with."""
    plain = {"radius": 1, "scale": 4.0, "corrector": 0.0, "temperature": 1.0}
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in result["rows"]:
        setting = row["setting"]
        if any(setting[name] != value for name, value in plain.items()):
            continue
        beta = f", beta {setting['beta']:g}" if setting["solver"].startswith("entropy") else ""
        key = (row["model"], setting["solver"] + beta)
        cells.setdefault(key, {})[setting["steps"]] = both(row)
    steps = sorted({step for found in cells.values() for step in found})
    rows = [
        [f"{model}: {solver}", *(found.get(step, "") for step in steps)]
        for (model, solver), found in sorted(cells.items())
    ]
    return (
        "## Counted jumps\n\n"
        f"Valid / novel of {counted(result)}, one seed, against the number "
        "of steps: context weights by the paper's rule, by which fewer tokens move than without a "
        "weight, and counted, by which as many do. Counts scatter by about 15.\n\n"
        + table(["model: solver", *(f"{k} steps" for k in steps)], rows)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample`, "
        + searched_origin(result)
    )


def qm9_refine(result: Result) -> str:
    """Rounds of refining beside none, for the same steps before."""
    rows = []
    settings = [(row, row["setting"]) for row in result["rows"]]
    for row, setting in sorted(
        settings, key=lambda pair: (pair[0]["model"], *(pair[1][k] for k in REFINED))
    ):
        rounds = f"{setting['rounds']}, temperature {setting['cold']:g}"
        hot = "" if setting["temperature"] == 1 else f", temperature {setting['temperature']:g}"
        rows.append(
            [
                row["model"],
                f"{setting['steps']}{hot}",
                rounds if setting["rounds"] else "none",
                f"{setting['share']:g}" if setting["rounds"] else "",
                f"{row['evaluations']:.1f}",
                both(row),
            ]
        )
    return (
        "## Refining\n\n"
        f"Valid / novel of {counted(result)}, one seed, by Euler's solver, "
        "and after rounds of 6 steps each in which a share of the tokens is noised and sampled "
        "again. Evaluations: model calls a sequence. Counts scatter by about 15.\n\n"
        + table(["model", "steps", "rounds", "share", "evaluations", "valid / novel"], rows)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample --what refine`, "
        + searched_origin(result)
    )


def qm9_mend(result: Result) -> str:
    """What the search of settings found."""
    return (
        f"## How to mend\n\nSettings of mending, one seed. {AS_MENDING}\n\n"
        + mended_table(result)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample --what mend` and `mend-mask`, "
        + searched_origin(result)
    )


def qm9_best(result: Result) -> str:
    """The chosen ones, with the seed that results are reported with."""
    return (
        "## Mending\n\nWith settings chosen on another seed ([how to mend](#how-to-mend)); "
        f"compare [the models in the box](#the-models-in-the-box-on-qm9). {MENDING}\n\n"
        + mended_table(result)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample --seed 0 --n 2048 --what best` and "
        "`best-mask`, " + searched_origin(result)
    )


def qm9_spelled(result: Result) -> str:
    """Those that no other beats in both counts, and what they were before mending."""
    rows = result["rows"]
    front = [row for row in rows if not any(_beats(other, row) for other in rows)]
    plain = [row for row in rows if not row["setting"]["mend"]]
    shown = {str(row["model"]) + str(row["setting"]): row for row in [*plain, *front]}
    return (
        "## Models in eight spellings\n\nA model of 17M, uniform source, trained for 8,000 steps "
        "on eight random spellings of each molecule, after a part of the steps and at the end: it "
        "knows fewer molecules by heart. Without mending, and of all settings those that no other "
        f"beats in both counts. {AS_MENDING} One seed; the choice among {len(rows)} settings was "
        "made on it.\n\n"
        + mended_table(result | {"rows": list(shown.values())})
        + "\n\nTrained by `cwdfm prepare qm9 --spellings 8 --out qm9-8.npz` and `python -m "
        "benchmarks.qm9_search train --data qm9-8.npz --steps 8000 --keep 2000 4000 6000 --models "
        "spelled`; drawn by `python -m benchmarks.qm9_search sample --what spelled --n 2048`, "
        + searched_origin(result)
    )


def _beats(one: Result, other: Result) -> bool:
    """Whether one row is ahead of another in a count, and behind it in none."""
    counts = [(one[name], other[name]) for name in ("valid", "novel")]
    return all(a >= b for a, b in counts) and any(a > b for a, b in counts)


def qm9_best_spelled(result: Result) -> str:
    """Those chosen, with the seed that results are reported with."""
    return (
        "## The best samples of a model in eight spellings\n\nThe model of the section before at "
        "its end: mended with care (many steps, then little noise, much trust asked for, and cold "
        "draws); drawn hot, with a bar ([accepting](method.md)) below which samples are drawn "
        "again, up to eight tries; and drawn hot, mended with care, with a bar. Evaluations are "
        "those of all tries. The settings were chosen by a few runs with another seed, not by a "
        "search: with it the two of 256 steps left more novel ones than they do here. "
        f"{AS_MENDING}\n\n"
        + mended_table(result)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample --seed 0 --what best-spelled`, "
        + searched_origin(result)
    )


def qm9_spelled24(result: Result) -> str:
    """At 24 spellings: what each model gives at most."""
    return (
        "## Models in 24 spellings\n\nThe same with 24 spellings of each molecule, trained for "
        "12,000 steps and looked at after 8,000 too: few steps or hot ones, then mended. Below "
        "are, for at least so many valid ones, the most novel ones that any of up to "
        f"{len({str(row['setting']) for row in result['rows']})} settings gives with any bar. "
        f"{bars(result)}\n\n"
        + barred_table(result)
        + "\n\nTrained by `cwdfm prepare qm9 --spellings 24 --out qm9-24.npz` and `python -m "
        "benchmarks.qm9_search train --data qm9-24.npz --steps 12000 --keep 8000 --models "
        "spelled24`; drawn by `python -m benchmarks.qm9_search sample --n ... --setting ...`, "
        "with the settings and numbers of samples of the results file, " + searched_origin(result)
    )


def qm9_spelled24_long(result: Result) -> str:
    """The same, trained for longer."""
    return (
        f"### For 16,000 steps\n\nAnother run, {len(result['rows'])} settings, in the columns of "
        f"the table before. {chosen(result)}\n\n"
        + barred_table(result)
        + "\n\nTrained in another folder by `python -m benchmarks.qm9_search train --data "
        "qm9-24.npz --steps 16000 --keep 8000 12000 --models spelled24`; drawn by `python -m "
        "benchmarks.qm9_search sample --n 2048 --what hot`, " + searched_origin(result)
    )


def qm9_spelled24_hot(result: Result) -> str:
    """The training of 12,000 steps once more, drawn hotter."""
    settings = {str(row["setting"]) for row in result["rows"]}
    return (
        "### Hotter\n\nAnother run of the training of 12,000 steps, looked at after 8,000 and "
        f"10,000 too, {len(settings)} settings, in the columns of the table before. "
        f"{chosen(result)}\n\n"
        + barred_table(result)
        + "\n\nTrained by `python -m benchmarks.qm9_search train --data qm9-24.npz --steps 12000 "
        "--keep 8000 10000 --models spelled24`; drawn by `python -m benchmarks.qm9_search sample "
        "--n 5120 --setting ...`, with the settings of the results file, " + searched_origin(result)
    )


def qm9_best_spelled24(result: Result) -> str:
    """The one chosen, with the seed that results are reported with."""
    return (
        "## The best samples of a model in 24 spellings\n\nThe model of 12,000 steps, by the "
        "setting that gave most with the other seed: hot steps, mended with care, with a bar. Two "
        f"folds of 1,024. {AS_MENDING}\n\n"
        + mended_table(result)
        + f"\n\nDrawn by {commands(result)}, "
        + searched_origin(result)
    )


def qm9_best_spelled24_again(result: Result) -> str:
    """The same setting with a second run of the training."""
    (row,) = result["rows"]
    alone = [f"{counting(row[what], COUNTED):.0f}" for what in ("valid", "novel")]
    return (
        "### Trained again\n\nThe same setting and seed with the model of the second run of the "
        "training ([hotter](#hotter)), whose own search was not asked. Five folds of 1,024: valid "
        "ones scattered by about 3, novel ones by about 6; folds of independent samples do so by "
        f"about {alone[0]} and {alone[1]}.\n\n"
        + mended_table(result)
        + f"\n\nDrawn by {commands(result)}, "
        + searched_origin(result)
    )


def qm9_best_spelled24_hot(result: Result) -> str:
    """Hotter settings chosen on the second run, with a third run of the training."""
    return (
        "### Hotter, with the seed of results\n\nThe two settings chosen on the second run "
        "([hotter](#hotter)), and the one of the sections before, with a third run of the "
        "training, on which nothing was chosen. Five folds of 1,024.\n\n"
        + mended_table(result)
        + f"\n\nDrawn by {commands(result)}, "
        + searched_origin(result)
    )


def qm9_best_spelled24_seed1(result: Result) -> str:
    """The three settings with a fourth run of the training, by another seed."""
    trained = result["training"]
    return (
        "### Trained with another seed\n\nThe three settings of the section before with a fourth "
        "run of the training, whose weights, order of data and noise are of another seed; nothing "
        "was chosen on it. Five folds of 1,024.\n\n"
        + mended_table(result)
        + f"\n\nTrained by `{trained['command']}`, revision `{trained['revision']}`; drawn by "
        f"{commands(result)}, " + searched_origin(result)
    )
