"""Claims about solvers on molecules, with the paper's settings."""

from collections.abc import Iterator
from functools import partial

from experiments import paper
from experiments.catalog import STEPS as QUALITY
from experiments.catalog.controls import few_data_cells
from experiments.catalog.curves import trainings
from experiments.catalog.solvers import steps_cells
from experiments.cell import Cell
from experiments.claims.judging import Claim, Verdict, clearly, ends, judged, no_worse, read, tested
from experiments.claims.on_molecules import MODEL, NOVEL, STEPS, VALID, Paired, Runs
from experiments.claims.training import PATH_CELLS

COUNTS = {VALID: "valid", NOVEL: "novel"}
MOLECULES = {
    ("mask", "euler"): "Neighbor weights beat Euler at all steps: 2.8 times the valid and 1.9 "
    "times the novel molecules",
    ("mask", "entropy"): "Neighbor weights beat Entropy weights at all steps, in valid and novel "
    "molecules",
    ("uniform", "euler"): "Neighbor weights give more valid molecules than Euler at all steps, and "
    "as many novel ones",
    ("uniform", "entropy"): "Neighbor weights give more valid molecules than Entropy weights at "
    "all steps, and as many novel ones",
}


def solvers_on_molecules() -> Iterator[Claim]:
    for (source, rival), said in MOLECULES.items():

        def found(source: str = source, rival: str = rival) -> tuple[str, Verdict]:
            cells = steps_cells("molecules", source, "small")
            pairs = {k: (cells[rival.capitalize(), k], cells["Neighbor", k]) for k in STEPS}
            runs = Paired(tuple(pairs.values()))
            gains = {"valid": [runs.gain(*pair, VALID) for pair in pairs.values()]}
            novel, last = runs.gain(*pairs[STEPS[-1]], NOVEL), f"novel, {STEPS[-1]} steps"
            # With a uniform source not fewer of them, with a mask source more.
            gains[last] = [no_worse(novel) if source == "uniform" else novel]
            shown = ends([f"{k} steps: {_counts(runs, *pairs[k])}" for k in STEPS])
            told = f"{MODEL}, {runs.told}, {rival.capitalize()} to Neighbor, {shown}"
            box = in_the_box(source, rival)
            return f"{told}. {box}{betas(source) if rival == 'entropy' else ''}", judged(
                gains, shown
            )

        experiment = f"steps-molecules-{source}"
        where = f"{paper.figure(QUALITY['molecules', source])}, QM9, {source} source"
        yield from tested(where, said, experiment, found)


def _counts(runs: Paired, before: Cell, after: Cell) -> str:
    told = []
    for what, name in ((VALID, "valid"), (NOVEL, "novel")):
        a, b = runs.means(before, after, what)
        told.append(f"{a:.0f} to {b:.0f} {name}")
    return ", ".join(told)


def in_the_box(source: str, rival: str) -> str:
    """What one model shows that was trained for longer; it does not decide."""
    cells = {
        (r["solver"], r["steps"]): r for r in read("qm9_small")["rows"] if r["source"] == source
    }
    steps = sorted({k for _, k in cells})
    shown = "; ".join(
        f"{k} steps: "
        + ", ".join(
            f"{cells[rival, k][what]['mean']:g} to {cells['neighbor', k][what]['mean']:g} {what}"
            for what in ("valid", "novel")
        )
        for k in (steps[0], steps[-1])
    )
    return f"The model in the box, trained for longer, beside that: {shown}"


def betas(source: str) -> str:
    """What another beta does at few steps; the paper's best is one for many."""
    found = [
        row
        for row in read("qm9_search")["rows"]
        if row["model"] == f"qm9-{source}-small"
        and (row["setting"]["solver"], row["setting"]["steps"]) == ("entropy", STEPS[0])
    ]
    if not found:
        return ""
    valid = {row["setting"]["beta"]: row["valid"] for row in found}
    told = " and ".join(f"{valid[beta]:g} with beta {beta:g}" for beta in sorted(valid))
    samples, seed = found[0]["samples"], found[0]["seed"]
    return (
        f". Its valid Entropy-weighted molecules at {STEPS[0]} steps in a search of settings, "
        f"which has a seed of its own ({seed}) and {samples:,} samples: {told}"
    )


def after_scaled() -> Iterator[Claim]:
    """Neighbor weights on models trained by SCE, from the table of all trainings and solvers."""

    def found(source: str) -> tuple[str, Verdict]:
        pairs = {
            each.name: {k: (each.cells["Euler"][k], each.cells["Neighbor"][k]) for k in STEPS}
            for each in trainings("small")
            if each.source == source
        }
        scaled, plain = (Paired(tuple(pairs[loss].values())) for loss in ("SCE", "CE"))
        told = [f"{k} steps: {_counts(scaled, *pair)}" for k, pair in pairs["SCE"].items()]
        shown = f"{MODEL}, QM9, {scaled.told}, Euler to Neighbor, {ends(told)}"
        if not clearly([plain.gain(*pair, VALID) for pair in plain.pairs]):
            shown += ". Models trained by CE gain nothing either"
        kept = [no_worse(-scaled.gain(*pair, VALID)) for pair in scaled.pairs]
        return shown, judged({"no gain in valid": kept}, ends(told))

    for source in ("uniform", "mask"):
        said = (
            f"Models trained by SCE gain nothing from Neighbor weights in sampling: QM9, {source}"
        )
        yield from tested("appendix, sweeps", f"{said} source", "curves", partial(found, source))


FEW = {  # what the paper says of few data, before and after
    "Local context is a more reliable guide than the model's uncertainty where data are few": (
        "CE, Entropy",
        "CE, Neighbor",
    ),
    "Context-weighted paths are particularly useful where data are few": (
        "SCE, Euler",
        "SCE, context path, own weights",
    ),
}


def few_data() -> Iterator[Claim]:
    """Parts of the training data: what the paper says of few data, with QM9 itself for a case."""
    where = "bold text, conclusion; smaller parts of QM9"
    for said, names in FEW.items():
        yield from tested(where, said, "few-data", partial(_few, *names))


def _few(before: str, after: str) -> tuple[str, Verdict]:
    """By solvers of the same trainings, seed by seed, or by two trainings."""
    cells = few_data_cells("small")
    parts = list(dict.fromkeys(part for part, _ in cells))
    same = before.partition(",")[0] == after.partition(",")[0] == "CE"
    runs = Runs((*PATH_CELLS.values(), *cells.values()))
    pairs = {part: (cells[part, before], cells[part, after]) for part in parts}
    paired = Paired(tuple(pairs.values()))
    told = []
    for part in parts:
        each = [
            f"{name} {' and '.join(f'{runs.mean(cells[part, name], k).value:.0f}' for k in COUNTS)}"
            for name in ("CE, Euler", before, after)
        ]
        told.append(f"{part}: {', '.join(each)}")
    gains: dict[str, list[float]] = {}
    for k, name in COUNTS.items():
        for a, b in (pairs[part] for part in parts if part != "all"):
            gain = paired.gain(a, b, k) if same else runs.mean(b, k).above(runs.mean(a, k))
            gains.setdefault(name, []).append(gain)
    many = runs.told(*cells.values())
    setting = f"{MODEL}, mask source, {many}, valid and novel by molecules to train on"
    effect = "; ".join(told[:-1])
    return f"{setting}, {'; '.join(told)}", judged(gains, f"valid and novel by {effect}")
