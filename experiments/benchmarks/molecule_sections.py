"""Sections of docs/results.md on molecules: models, their limits, and what a sampler may change."""

import math

from experiments.benchmarks.markdown import Result, origin, table
from experiments.benchmarks.search_tables import both
from experiments.claims.judging import read
from experiments.claims.on_molecules import COUNT_ERROR


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
        + table(["source: solver", *(f"{k} steps" for k in steps)], rows)
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
        [change, *(both(cells[change, solver]) for solver in solvers)]
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
        + [both(cells[*labels, reading]) for reading in readings]
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
