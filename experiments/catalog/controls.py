"""Controls: other possible explanations of differences between the paper's results and ours."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from cwdfm.solver_config import Name
from experiments import paper
from experiments.catalog.solvers import RADII, TUNED, best, corrector_steps
from experiments.catalog.training import EULER, PATHS, SOURCES, loss_line, searched
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.grid import Entry, grid
from experiments.scale import NAMES, Scale, size
from experiments.solver_choice import SolverChoice
from experiments.tasks.base import Corpus

POWERS, POWERS_AT = (0.25, 0.5, 1.0), 2.0  # exponents, and the scale they are tested with
SHARES = (3.0, 6.0, 12.0)  # betas for entropies normalized to [0, 1]
ROWS = (1_000, 10_000, 0)  # sizes of the training data; 0 for all of it
NUCLEI = (1.0, 0.9)  # no nucleus sampling, and the paper's nucleus on text
PRINTED = (
    "Neighbor is exp(s n) and Entropy exp(-beta H); n (r) and 1 / H are the weights in the main "
    "text of the paper: proportional to the number of revealed neighbors within r, and to the "
    "inverse entropy."
)
LARGEST = math.log(50_257)  # nats: the entropy of a uniform distribution over GPT-2 tokens


@grid("Entropy weights with normalized entropies, text", ("source", "beta", "steps"))
def shares(scale: Scale) -> Iterator[Entry]:
    """Entropy weights with normalized entropies, beta H / log V; text, both sources.

    The paper does not state the unit of its entropies. In nats, its beta of 6 updates almost only
    the most certain tokens. With normalized entropies it corresponds to 0.55 in nats, which is
    below the range of its sweep.
    """
    shares = SHARES[:1] if scale == "smoke" else SHARES
    for source, share, k in product(TUNED, shares, size("text", scale).curve[:3:2]):
        choice = SolverChoice(solver="entropy", beta=round(share / LARGEST, 3))
        cell = Cell("text", scale, flow(source), choice, k, sample_seed=2000)
        yield Entry((source, f"{share:g} / log V", str(k)), cell)


def weights(corpus: Corpus) -> Callable[[Scale], Plan]:
    """The weights in the paper's main text, ~ n and ~ 1 / H, against exp(s n) and exp(-beta H).

    Both sources, with few steps, the scale's number of steps, and many.
    """
    printed = {f"n (r = {r})": SolverChoice("neighbor-share", r) for r in RADII}
    printed["1 / H"] = SolverChoice("entropy-inverse")

    title = f"Interpretations of the weights, {NAMES[corpus]}"

    @grid(title, ("source", "weight", "steps"), notes=(PRINTED,))
    def plan(scale: Scale) -> Iterator[Entry]:
        sizes = size(corpus, scale)
        for source in SOURCES:
            for name, choice in (best(corpus, source) | printed).items():
                for k in dict.fromkeys((sizes.curve[0], sizes.steps, sizes.curve[-1])):
                    cell = Cell(corpus, scale, flow(source), choice, k, sizes.seeds)
                    yield Entry((source, name, str(k)), cell)

    return plan


@grid("Subsets of the training data, QM9, mask source", ("molecules", "training and solver"))
def few_data(scale: Scale) -> Iterator[Entry]:
    """Solvers and paths of models trained on subsets of QM9; mask source.

    The paper regards QM9 itself as a small dataset.
    """
    sce, context = (line.cell("molecules", scale) for line in PATHS if line.labels[0] == "mask")
    choices = best("molecules", "mask").items()
    kinds = {f"CE, {name}": replace(sce, fields=flow("mask"), choice=c) for name, c in choices}
    kinds |= {"SCE, Euler": sce, "SCE, context path, own weights": context}
    for count in (64, 0) if scale == "smoke" else ROWS:
        part = {"train_rows": count} if count else {}
        for name, cell in kinds.items():
            labels = f"{count:,}" if count else "all", name
            yield Entry(labels, replace(cell, fields=cell.fields | part))


def path_solvers(corpus: Corpus) -> Callable[[Scale], Plan]:
    """Solver settings for models trained on a context-weighted path, over the paper's search grid.

    The sampling seed differs from that of the other experiments.
    """

    @grid(f"Solver settings on a context-weighted path, {NAMES[corpus]}", ("source", "solver"))
    def plan(scale: Scale) -> Iterator[Entry]:
        choices = {"Euler": EULER}
        for r, s in searched(scale):
            choices[f"Neighbor r = {r}, s = {s:g}"] = SolverChoice("neighbor", r, s)
        for line in filter(lambda line: line.on_context, PATHS):
            cell = replace(line.cell(corpus, scale), seeds=1, sample_seed=1000)
            for name, choice in choices.items():
                yield Entry((line.labels[0], name), replace(cell, choice=choice))

    return plan


@grid("Solvers of models trained with SCE, text", ("source", "solver", "steps"))
def after_scaled(scale: Scale) -> Iterator[Entry]:
    """Neighbor weights for models trained with SCE, where the paper finds no benefit; text.

    With the paper's settings, at the scale's number of steps and with many steps.
    """
    for source, name, k in product(TUNED, ("Euler", "Neighbor"), corrector_steps(scale)):
        choice = best("text", source)[name]
        cell = Cell("text", scale, flow(source, "sce"), choice, k, sample_seed=2000)
        yield Entry((source, name, str(k)), cell)


@grid(
    "Nucleus, CE and SCE, text",
    ("source", "loss", "p"),
    notes=("p: the probability mass of the nucleus; 1 means no nucleus.",),
)
def nucleus(scale: Scale) -> Iterator[Entry]:
    """CE and SCE, sampled without nucleus sampling and with the paper's nucleus; text."""
    for source, loss, p in product(SOURCES, ("ce", "sce"), NUCLEI):
        line = loss_line(source, loss)
        yield Entry((*line.labels, f"{p:g}"), replace(line.cell("text", scale), top_p=p))


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


@grid("Position embeddings, QM9, mask source", ("positions", "solver", "steps"), notes=(KNOWN,))
def positions(scale: Scale) -> Iterator[Entry]:
    """Position embeddings and solvers, mask source, QM9."""
    curve, few = size("molecules", scale).curve, scale == "smoke"
    for known, fields in list(POSITIONS.items())[: 2 if few else None]:
        for name, choice in best("molecules", "mask").items():
            for k in curve[:1] if few else curve[-3::2]:
                yield Entry((known, name, str(k)), Cell("molecules", scale, fields, choice, k))


def corrector_powers(scale: Scale) -> Plan:
    """Exponents of the corrector's schedule, with many steps; text.

    Small exponents act at all times, large ones mostly around t = 1/2.
    """
    steps = corrector_steps(scale)[-1]
    where = f"text, uniform source, {steps:,} steps, scale {POWERS_AT:g}"
    notes = ("The corrector's strength is its scale times t^a (1 - t)^b.",)

    @grid(f"Exponents of the corrector, {where}", ("solver", "a = b"), notes=notes)
    def plan(scale: Scale) -> Iterator[Entry]:
        radius, strength, _ = paper.BEST["text", "uniform"]
        named: tuple[Name, ...] = ("euler", "neighbor")
        for solver, power in product(named, POWERS):
            choice = SolverChoice(
                solver, radius, strength, corrector=POWERS_AT, corrector_power=power
            )
            cell = Cell("text", scale, flow("uniform"), choice, steps)
            yield Entry((solver.capitalize(), f"{power:g}"), cell)

    return plan(scale)
