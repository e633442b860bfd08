"""Sections of docs/results.md on the models in the box: their samplers, what limits them."""

import math
from itertools import product
from typing import Any

from benchmarks.claims.judging import COUNT_ERROR, COUNTED, counting, read
from benchmarks.markdown import Result, origin, table

DESCRIBED = ("steps", "share, trust", "temperature")
MENDED = ("temperature", "steps", "mend", "noise", "trust", "again")
REFINED = ("temperature", "share", "steps", "rounds", "cold")


def qm9_small(result: Result) -> str:
    steps = sorted({row["steps"] for row in result["rows"]})
    cell = {(r["source"], r["solver"], r["steps"]): r for r in result["rows"]}
    names = {"euler": "Euler", "neighbor": "Neighbor-weighted", "entropy": "Entropy-weighted"}
    rows = [
        [
            f"{source}: {label}",
            *(
                f"{cell[source, solver, k]['valid']['mean']:g} / "
                f"{cell[source, solver, k]['novel']['mean']:g}"
                for k in steps
            ),
        ]
        for source in ("uniform", "mask")
        for solver, label in names.items()
    ]
    trainings = "\n".join(
        f"- `{name}`: `{card['training']['command']}`, revision `{card['training']['revision']}`, "
        f"{card['training']['date'][:10]}, {card['training']['hardware']['gpu']}, seed "
        f"{card['recipe']['seed']}, validation loss {card['best_validation']:.4f}."
        for name, card in result["trainings"].items()
    )
    return (
        "## The models in the box on QM9\n\n"
        "Valid / novel of 1,024, means of two folds, against the number of steps. Neighbor weights "
        "with radius 1 and scale 4, Entropy with beta 6, Euler hazard. One training run each.\n\n"
        + table(["source: solver", *map(str, steps)], rows)
        + f"\n\n{_leads(cell, steps)}\n\nTrained by:\n\n"
        + trainings
        + "\n\nScored by "
        + origin(result)
    )


def _leads(cell: dict[tuple[str, str, int], Result], steps: list[int]) -> str:
    """From how many steps on weights are ahead, and what they cost; from the means alone."""

    def ahead(source: str, solver: str, others: tuple[str, ...], what: str = "valid") -> list[int]:
        """The numbers of steps at which a solver has more than each of the others."""
        count = {key: row[what]["mean"] for key, row in cell.items()}
        return [
            k
            for k in steps
            if all(count[source, solver, k] > count[source, other, k] for other in others)
        ]

    def at(found: list[int]) -> str:
        if found and found == steps[-len(found) :]:
            return f"from {found[0]} steps on"
        return f"at {', '.join(map(str, found)) or 'no number of'} steps"

    told = []
    for source in ("uniform", "mask"):
        most = ahead(source, "neighbor", ("euler", "entropy"))
        fewer = ahead(source, "euler", ("neighbor",), "novel")
        entropy = ahead(source, "entropy", ("euler",))
        told.append(
            f"With the {source} source Neighbor weights give the most valid molecules {at(most)}, "
            f"and fewer novel ones than Euler {at(fewer)}; Entropy weights give more valid ones "
            f"than Euler {at(entropy)}."
        )
    folds = min(row["folds"] for row in cell.values())
    scatter = f"Means scatter by about {COUNT_ERROR / math.sqrt(folds):.0f}."
    return " ".join([*told, scatter])


def qm9_limits(result: Result) -> str:
    cell = {(row["cell"], row["solver"]): row for row in result["rows"]}
    rows = []
    for name in dict.fromkeys(row["cell"] for row in result["rows"]):
        euler, neighbor = cell[name, "euler"], cell[name, "neighbor"]
        shown = [f"{r['valid']['mean']:.0f} / {r['novel']['mean']:.0f}" for r in (euler, neighbor)]
        rows.append([name, f"{euler['steps']:,}", f"{euler['validation']['elbo']:.3f}", *shown])
    training = result["training"]
    cards = read("qm9_small")["trainings"].values()
    box = " and ".join(f"{steps:,}" for steps in sorted({card["steps"] for card in cards}))
    return (
        "## What limits a small model of QM9\n\n"
        "One change at a time from the settings of `qm9-small`, all trained side by side on one "
        f"GPU until their time was up: short runs, planned for {result['config']['steps']:,} steps "
        "and stopped before. "
        "Valid / novel of 1,024 at 128 steps; the bound is on 256 held-out molecules, in nats a "
        "token, at the last validation.\n\n"
        + table(["change", "steps", "bound", "Euler", "Neighbor-weighted"], rows)
        + f"\n\nMore steps are worth most: the models in the box are these settings at {box} steps "
        "([above](#the-models-in-the-box-on-qm9)). Then width (17M has seen fewer steps here and "
        "is ahead), and with a mask source known positions. Dropout hurts models this small, "
        "averaging helps a little, a learning rate of 3e-4 is too low. Counts of one run "
        "each scatter by about 15.\n\n"
        "Trained by `python -m benchmarks.qm9_limits run`, each by the command that its row of the "
        f"results file holds, revision `{training['revision']}`, {training['hardware']['gpu']}; "
        "scored by " + origin(result | {"config": result["base"]})
    )


def qm9_causes(result: Result) -> str:
    """A plain walk with one thing done otherwise, by both solvers."""
    config, solvers = result["config"], list(dict.fromkeys(row["solver"] for row in result["rows"]))
    cells = {(row["change"], row["solver"]): row for row in result["rows"]}
    rows = [
        [change, *(_both(cells[change, solver]) for solver in solvers)]
        for change in dict.fromkeys(row["change"] for row in result["rows"])
    ]
    return (
        "## What a sampler may do otherwise\n\n"
        f"A plain walk of the chain with `{config['model']}`, written apart from the library's "
        f"solvers, in {config['steps']} steps: carry-over, the last step, precision and padding. "
        f"Valid / novel of {config['samples']:,}, one seed; counts scatter by about 15. Without "
        "carry-over revealed tokens are drawn again at Euler's rate, and all are in the last step, "
        "from what the network finds in their place; this one was trained on masked tokens alone, "
        "so that says little of one that was trained on all.\n\n"
        + table(["change", *solvers], rows)
        + "\n\n"
        + origin(result)
    )


def qm9_endings(result: Result) -> str:
    """The paper's own setting, read in other ways."""
    readings = list(dict.fromkeys(row["reading"] for row in result["rows"]))
    cells = {(*row["labels"], row["reading"]): row for row in result["rows"]}
    rows = [
        [*labels, f"{100 * cells[*labels, readings[0]]['empty']:.1f}%"]
        + [_both(cells[*labels, reading]) for reading in readings]
        for labels in dict.fromkeys(tuple(row["labels"]) for row in result["rows"])
    ]
    return (
        "## How sequences are read\n\n"
        "The samples of the paper's own setting (`headline`), at the most steps, when what stands "
        "behind an end token is left out, when it counts too, and when every sequence counts as "
        "invalid that is not `<bos>`, molecule, `<eos>` and padding. Valid / novel of 1,024, means "
        "of five folds; empty: nothing before the first end.\n\n"
        + table(["loss", "solver", "steps", "empty", *readings], rows)
        + "\n\n"
        + origin(result)
    )


def _both(row: Result) -> str:
    return f"{row['valid']:.0f} / {row['novel']:.0f}"


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
        cells.setdefault(key, {})[setting["steps"]] = _both(row)
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
        + table(["model: solver", *map(str, steps)], rows)
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
                _both(row),
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
        f"## How to mend\n\nSettings of mending, one seed. {MENDING}\n\n"
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
        f"beats in both counts. {MENDING} One seed; the choice among {len(rows)} settings was made "
        "on it.\n\n"
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
        f"{MENDING}\n\n"
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
        f"### For 16,000 steps\n\nAnother run, {len(result['rows'])} settings. {bars(result)}\n\n"
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
        f"10,000 too, {len(settings)} settings. {bars(result)}\n\n"
        + barred_table(result)
        + "\n\nTrained by `python -m benchmarks.qm9_search train --data qm9-24.npz --steps 12000 "
        "--keep 8000 10000 --models spelled24`; drawn by `python -m benchmarks.qm9_search sample "
        "--n 5120 --setting ...`, with the settings of the results file, " + searched_origin(result)
    )


def qm9_best_spelled24(result: Result) -> str:
    """The one chosen, with the seed that results are reported with."""
    (row,) = result["rows"]
    return (
        "## The best samples of a model in 24 spellings\n\nThe model of 12,000 steps, by the "
        "setting that gave most with the other seed: hot steps, mended with care, with a bar. Two "
        f"folds of 1,024. {MENDING}\n\n"
        + mended_table(result)
        + f"\n\nDrawn by `{row['command']}`, "
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
        + f"\n\nDrawn by `{row['command']}`, "
        + searched_origin(result)
    )


def qm9_best_spelled24_hot(result: Result) -> str:
    """Hotter settings chosen on the second run, with a third run of the training."""
    drawn = " and ".join(f"`{command}`" for command in sorted(commands(result)))
    return (
        "### Hotter, with the seed of results\n\nThe two settings chosen on the second run "
        "([hotter](#hotter)), and the one of the sections before, with a third run of the "
        "training, on which nothing was chosen. Five folds of 1,024.\n\n"
        + mended_table(result)
        + f"\n\nDrawn by {drawn}, "
        + searched_origin(result)
    )


def commands(result: Result) -> set[str]:
    """By which the samples were drawn."""
    return {row["command"] for row in result["rows"]}


def bars(result: Result) -> str:
    """What a table of bars shows."""
    return (
        f"Valid / novel of 1,024, counted among {counted(result)} samples of one seed, on which "
        "the choice was made: with another seed it would give less. A bar of plausibility is drawn "
        "afterwards, so that the share beside it is left, and counts of these are scaled up to "
        "1,024, of which a few fewer would be unique; evaluations are model calls for each sample "
        "left."
    )


MENDING = (
    "Valid / novel of 1,024, by Euler's solver and after mending: at most 80 rounds with the "
    "uniform source, 10 with the mask source, where each takes 1 / share evaluations. "
    "Evaluations: model calls a sequence. Counts among 1,024 samples scatter by about 15."
)


def counted(result: Result) -> str:
    """How many samples."""
    return " or ".join(f"{n:,}" for n in sorted({row["samples"] for row in result["rows"]}))


def searched_origin(result: Result) -> str:
    revisions = ", ".join(f"`{r}`" for r in sorted({row["revision"] for row in result["rows"]}))
    return f"revision {revisions}; scored by {origin(result)}"


def mended_table(result: Result) -> str:
    rows = []
    barred = any(row["setting"].get("accept") for row in result["rows"])
    for row in sorted(
        result["rows"], key=lambda row: (row["model"], *(row["setting"][k] for k in MENDED))
    ):
        bar, glance = row["setting"].get("accept"), row["setting"].get("glance")
        read = f" at share {glance:g}" if glance else ""
        rows.append(
            [
                row["model"],
                *described(row["setting"]),
                *([f"{bar:g}{read}" if bar else ""] if barred else []),
                f"{row['evaluations']:.1f}",
                f"{row['valid']:g} / {row['novel']:g}",
            ]
        )
    bars = ["least plausibility"] if barred else []
    return table(["model", *DESCRIBED, *bars, "evaluations", "valid / novel"], rows)


def described(setting: dict[str, Any]) -> list[str]:
    """A sampler's steps and mending, in the columns of DESCRIBED."""
    hot = "" if setting["temperature"] == 1 else f", temperature {setting['temperature']:g}"
    weights = "" if setting["solver"] == "euler" else f", {setting['solver']}"
    steps = f"{setting['steps']}{weights}{hot}"
    if not setting["mend"]:
        return [steps, "", ""]
    return [steps, f"{setting['noise']:g}, {setting['trust']:g}", f"{setting['again']:g}"]


def barred_table(result: Result) -> str:
    """For every model and least number of valid ones, the setting and bar with most novel ones."""
    found = []
    for row in result["rows"]:
        whole = {"share": 1.0, "least": 0.0, "valid": row["valid"], "novel": row["novel"]}
        found += [(row, kept) for kept in [whole, *row.get("accepting", [])]]
    rows = []
    for model, least in product(sorted({row["model"] for row in result["rows"]}), (970, 980, 990)):
        enough = [pair for pair in found if pair[0]["model"] == model and pair[1]["valid"] >= least]
        row, kept = max(enough, key=lambda pair: pair[1]["novel"])
        rows.append(
            [
                model,
                str(least),
                *described(row["setting"]),
                f"{kept['least']:.4f}, {kept['share']:.0%}" if kept["share"] < 1 else "",
                f"{row['evaluations'] / kept['share']:.1f}",
                _both(kept),
            ]
        )
    head = ["model", "at least", *DESCRIBED, "bar, accepted", "evaluations", "valid / novel"]
    return table(head, rows)
