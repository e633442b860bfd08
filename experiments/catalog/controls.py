"""Controls: what else could explain differences between the paper's results and ours."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

from cwdfm.solver_config import Name, SolverChoice
from experiments import paper
from experiments.catalog.solvers import RADII, TUNED, best, corrector_steps
from experiments.catalog.training import EULER, PATHS, SOURCES, loss_line, searched
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.scale import NAMES, Scale, size
from experiments.tasks.base import Corpus

POWERS, POWERS_AT = (0.25, 0.5, 1.0), 2.0  # exponents, and the scale they are tested with
SHARES = (3.0, 6.0, 12.0)  # betas for entropies normalized to [0, 1]
ROWS: dict[Scale, tuple[int, ...]] = {  # sizes of the training data; 0 for all of it
    "smoke": (64, 0),
    "small": (1_000, 10_000, 0),
    "paper": (1_000, 10_000, 0),
}
NUCLEI = (1.0, 0.9)  # no nucleus, and that of the paper on text
PRINTED = (
    "Neighbor is exp(s n) and Entropy exp(-beta H); n (r) and 1 / H are the weights in the main "
    "text of the paper: proportional to the number of revealed neighbors within r, and to the "
    "inverse entropy."
)
LARGEST = math.log(50_257)  # nats: the entropy of a uniform distribution over GPT-2 tokens


def shares(scale: Scale) -> Plan:
    """Entropy weights with normalized entropies, beta H / log V; text, both sources.

    The paper does not state the unit of its entropies. With nats, its beta of 6 updates hardly any
    but the most certain tokens. With normalized entropies it corresponds to 0.55 in nats, which is
    below the range of its sweep.
    """

    def entries(scale: Scale) -> list[Entry]:
        return [
            Entry((source, f"{share:g} / log V", str(k)), cell)
            for (source, share, k), cell in shares_cells(scale).items()
        ]

    title = "Entropy weights with normalized entropies, text"
    return grid(title, ("source", "beta", "steps"), entries)(scale)


def shares_cells(scale: Scale) -> dict[tuple[str, float, int], Cell]:
    """By source, normalized beta and number of steps."""
    found = {}
    shares = SHARES[:1] if scale == "smoke" else SHARES
    for source, share, k in product(TUNED, shares, size("text", scale).curve[:3:2]):
        choice = SolverChoice(solver="entropy", beta=round(share / LARGEST, 3))
        found[source, share, k] = Cell("text", scale, flow(source), choice, k, sample_seed=2000)
    return found


def weights(corpus: Corpus) -> Callable[[Scale], Plan]:
    """The weights in the paper's main text, ~ n and ~ 1 / H, against exp(s n) and exp(-beta H).

    Both sources, with few steps, the scale's number of steps, and many.
    """

    def entries(scale: Scale) -> list[Entry]:
        cells = weights_cells(corpus, scale)
        return [Entry((source, name, str(k)), cell) for (source, name, k), cell in cells.items()]

    title = f"Interpretations of the weights, {NAMES[corpus]}"
    return grid(title, ("source", "weight", "steps"), entries, notes=(PRINTED,))


def weights_cells(corpus: Corpus, scale: Scale) -> dict[tuple[str, str, int], Cell]:
    """By source, weight and number of steps."""
    sizes = size(corpus, scale)
    printed = {f"n (r = {r})": SolverChoice("neighbor-share", r) for r in RADII}
    printed["1 / H"] = SolverChoice("entropy-inverse")
    return {
        (source, name, k): Cell(corpus, scale, flow(source), choice, k, sizes.seeds)
        for source in SOURCES
        for name, choice in (best(corpus, source) | printed).items()
        for k in dict.fromkeys((sizes.curve[0], sizes.steps, sizes.curve[-1]))
    }


def few_data(scale: Scale) -> Plan:
    """Solvers and paths of models trained on subsets of QM9; mask source.

    The paper regards QM9 itself as a small dataset.
    """

    def entries(scale: Scale) -> list[Entry]:
        return [Entry(labels, cell) for labels, cell in few_data_cells(scale).items()]

    title = "Subsets of the training data, QM9, mask source"
    return grid(title, ("molecules", "training and solver"), entries)(scale)


def few_data_cells(scale: Scale) -> dict[tuple[str, str], Cell]:
    """By size of the training data, and by training and solver."""
    sce, context = (line.cell("molecules", scale) for line in PATHS if line.labels[0] == "mask")
    choices = best("molecules", "mask").items()
    kinds = {f"CE, {name}": replace(sce, fields=flow("mask"), choice=c) for name, c in choices}
    kinds |= {"SCE, Euler": sce, "SCE, context path, own weights": context}
    found = {}
    for count in ROWS[scale]:
        part = {"train_rows": count} if count else {}
        for name, cell in kinds.items():
            labels = f"{count:,}" if count else "all", name
            found[labels] = replace(cell, fields=cell.fields | part)
    return found


def path_solvers(corpus: Corpus) -> Callable[[Scale], Plan]:
    """Solver settings for models trained on a context-weighted path, over the paper's search grid.

    The sampling seed differs from that of the other experiments.
    """

    def entries(scale: Scale) -> list[Entry]:
        choices = {"Euler": EULER}
        for r, s in searched(scale):
            choices[f"Neighbor r = {r}, s = {s:g}"] = SolverChoice("neighbor", r, s)
        return [
            Entry((line.labels[0], name), replace(cell, choice=choice, seeds=1, sample_seed=1000))
            for line in PATHS
            if line.on_context
            for cell in (line.cell(corpus, scale),)
            for name, choice in choices.items()
        ]

    title = f"Solver settings on a context-weighted path, {NAMES[corpus]}"
    return grid(title, ("source", "solver"), entries)


def after_scaled(scale: Scale) -> Plan:
    """Neighbor weights for models trained with SCE, which the paper finds useless; text.

    With the paper's settings, at the scale's number of steps and with many steps.
    """

    def entries(scale: Scale) -> list[Entry]:
        cells = after_scaled_cells(scale)
        return [Entry((source, name, str(k)), cell) for (source, name, k), cell in cells.items()]

    title = "Solvers of models trained with SCE, text"
    return grid(title, ("source", "solver", "steps"), entries)(scale)


def after_scaled_cells(scale: Scale) -> dict[tuple[str, str, int], Cell]:
    """By source, solver and number of steps."""
    steps = corrector_steps("text", scale)
    return {
        (source, name, k): Cell(
            "text", scale, flow(source, "sce"), best("text", source)[name], k, sample_seed=2000
        )
        for source, name, k in product(TUNED, ("Euler", "Neighbor"), steps)
    }


def nucleus(scale: Scale) -> Plan:
    """CE and SCE, sampled without a nucleus and with that of the paper; text."""

    def entries(scale: Scale) -> list[Entry]:
        found = []
        for source, loss, p in product(SOURCES, ("ce", "sce"), NUCLEI):
            line = loss_line(source, loss)
            cell = replace(line.cell("text", scale), top_p=p)
            found.append(Entry((*line.labels, f"{p:g}"), cell))
        return found

    notes = ("p: the probability mass of the nucleus; 1 means no nucleus.",)
    labels = ("source", "loss", "p")
    return grid("Nucleus, CE and SCE, text", labels, entries, notes=notes)(scale)


KNOWN = (
    "With rotary embeddings only, the network cannot distinguish the first token of a masked "
    "sequence from the last. Learned embeddings solve this; so does a first token that is never "
    "masked."
)
POSITIONS = {
    "rotary": flow("mask"),
    "rotary, first token given": flow("mask", fix_first=True),
    "learned": flow("mask", learned_positions=True),
    "learned, first token given": flow("mask", learned_positions=True, fix_first=True),
}


def positions(scale: Scale) -> Plan:
    """Position embeddings and solvers, mask source, QM9.

    With rotary embeddings only, a fully masked sequence looks the same at all positions.
    """
    curve = size("molecules", scale).curve
    few = scale == "smoke"

    def entries(scale: Scale) -> list[Entry]:
        return [
            Entry((known, name, str(k)), Cell("molecules", scale, fields, choice, k))
            for known, fields in list(POSITIONS.items())[: 2 if few else None]
            for name, choice in best("molecules", "mask").items()
            for k in (curve[:1] if few else curve[-3::2])
        ]

    title = "Position embeddings, QM9, mask source"
    return grid(title, ("positions", "solver", "steps"), entries, notes=(KNOWN,))(scale)


def corrector_powers(scale: Scale) -> Plan:
    """Exponents of the corrector's schedule, with many steps; text.

    Small exponents act at all times, large ones mostly around t = 1/2.
    """
    steps = corrector_steps("text", scale)[-1]

    def entries(scale: Scale) -> list[Entry]:
        radius, strength, _ = paper.BEST["text", "uniform"]
        named: tuple[Name, ...] = ("euler", "neighbor")
        found = []
        for solver, power in product(named, POWERS):
            choice = SolverChoice(
                solver, radius, strength, corrector=POWERS_AT, corrector_power=power
            )
            cell = Cell("text", scale, flow("uniform"), choice, steps)
            found.append(Entry((solver.capitalize(), f"{power:g}"), cell))
        return found

    where = f"text, uniform source, {steps:,} steps, scale {POWERS_AT:g}"
    title = f"Exponents of the corrector, {where}"
    notes = ("The corrector's strength is its scale times t^a (1 - t)^b.",)
    return grid(title, ("solver", "a = b"), entries, notes=notes)(scale)
