"""What the solver changes, with models trained by cross-entropy: steps, weights, correctors."""

from collections.abc import Callable

from cwdfm.method.choice import Name, SolverChoice
from cwdfm.repro.cell import Cell
from cwdfm.repro.experiment import Plan
from cwdfm.repro.experiments.baselines import MASK, UNIFORM
from cwdfm.repro.grid import Entry, grid
from cwdfm.repro.jobs import Corpus
from cwdfm.repro.scale import Scale, size

# The paper's best settings: (radius, scale, beta).
BEST: dict[tuple[Corpus, str], tuple[int, float, float]] = {
    ("text", "uniform"): (1, 5.0, 6.0),
    ("text", "mask"): (1, 5.0, 6.0),
    ("molecules", "uniform"): (1, 4.0, 7.0),
    ("molecules", "mask"): (1, 4.0, 6.0),
}
RADII = (1, 2, 3)
SCALES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
BETAS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
CORRECTORS = (0.0, 0.5, 1.0, 2.0, 5.0)
NAMES = {"text": "text", "molecules": "QM9"}


def fields(source: str) -> dict[str, object]:
    """Of the recipe, for a source."""
    return MASK if source == "mask" else UNIFORM


def best(corpus: Corpus, source: str) -> dict[str, SolverChoice]:
    """The three solvers with the paper's settings."""
    radius, scale, beta = BEST[corpus, source]
    return {
        "Euler": SolverChoice(solver="euler"),
        "Neighbor": SolverChoice(solver="neighbor", radius=radius, scale=scale),
        "Entropy": SolverChoice(solver="entropy", beta=beta),
    }


def steps(corpus: Corpus, source: str) -> Callable[[Scale], Plan]:
    """Quality against steps."""

    def entries(scale: Scale) -> list[Entry]:
        sizes = size(corpus, scale)
        return [
            Entry(
                (name, str(k)),
                Cell(corpus, scale, fields(source), choice, k, sizes.seeds),
                name,
                k,
            )
            for name, choice in best(corpus, source).items()
            for k in sizes.curve
        ]

    title = f"Quality against steps, {NAMES[corpus]}, {source} source"
    return grid(title, ("solver", "steps"), entries, x="steps", log=True)


def sweep(corpus: Corpus, source: str) -> Callable[[Scale], Plan]:
    """Radius and scale of Neighbor weights, and beta of Entropy weights, on a seed of their own."""

    def entries(scale: Scale) -> list[Entry]:
        few = scale == "smoke"
        radii, scales, betas = (RADII[:1], SCALES[:1], BETAS[:1]) if few else (RADII, SCALES, BETAS)
        choices = {("Euler", ""): SolverChoice(solver="euler")}
        for radius in radii:
            for strength in scales:
                choices["Neighbor", f"r = {radius}, s = {strength:g}"] = SolverChoice(
                    solver="neighbor", radius=radius, scale=strength
                )
        for beta in betas:
            choices["Entropy", f"beta = {beta:g}"] = SolverChoice(solver="entropy", beta=beta)
        return [
            # Another seed than the one that other experiments report.
            Entry(labels, Cell(corpus, scale, fields(source), choice, sample_seed=1000))
            for labels, choice in choices.items()
        ]

    title = f"Solver settings, {NAMES[corpus]}, {source} source"
    return grid(title, ("solver", "settings"), entries)


def corrector(corpus: Corpus, source: str) -> Callable[[Scale], Plan]:
    """Correctors of several strengths, with and without Neighbor weights.

    With the scale's own number of steps, and with many, where Neighbor weights lead without them.
    """

    def entries(scale: Scale) -> list[Entry]:
        radius, strength, _ = BEST[corpus, source]
        names: tuple[tuple[str, Name], ...] = (("Euler", "euler"), ("Neighbor", "neighbor"))
        found = []
        for steps in corrector_steps(corpus, scale):
            for name, solver in names:
                for c in CORRECTORS[:2] if scale == "smoke" else CORRECTORS:
                    choice = SolverChoice(solver=solver, radius=radius, scale=strength, corrector=c)
                    cell = Cell(corpus, scale, fields(source), choice, steps)
                    line = f"{name}, {steps:,} steps"
                    found.append(Entry((name, str(steps), f"{c:g}"), cell, line, c))
        return found

    title = f"Predictor-corrector, {NAMES[corpus]}, {source} source"
    return grid(title, ("solver", "steps", "corrector"), entries, x="scale of the corrector")


def corrector_steps(corpus: Corpus, scale: Scale) -> tuple[int, ...]:
    """The numbers of steps that correctors are tried with."""
    sizes = size(corpus, scale)
    return tuple(dict.fromkeys((sizes.steps, sizes.curve[-1])))
