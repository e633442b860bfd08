"""Few evaluations on several exact targets: which sampler stays closest to the distribution.

    python -m experiments.studies.few_evaluations --out few_evaluations.json

Sequences of eight binary tokens are sampled with their exact posterior, so all error is the
sampler's: the total variation between samples and target, mean over seeds. With fewer evaluations
than tokens, several tokens are drawn at once, as if they were independent. The targets differ in
how the tokens depend on each other.
"""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import cwdfm
from cwdfm.method import Flow
from cwdfm.recommendation import DataFit, recommend_for, widest_distance
from experiments.studies.command import save, study_parser

LENGTH = 8
STATES = torch.cartesian_prod(*[torch.arange(2)] * LENGTH)  # all sequences, [256, 8]
SPINS = (2 * STATES - 1).double()  # the same as -1 and 1
SCHEDULE = cwdfm.Polynomial(2.0)
EVALUATIONS = (2, 4, 6)
TEMPERATURES = (1.0, 0.9, 0.8, 0.7)
DATA = 64  # sequences that the grid of jump-your-steps is fitted to
FIT_DATA = 512  # sequences that choose between samplers


def targets() -> dict[str, Tensor]:
    """Probabilities [256] of all sequences."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    ring = (SPINS * SPINS.roll(1, 1)).sum(1)
    pairs = 0.3 * normal(LENGTH, LENGTH)
    energies = {
        "ring, neighbors agree": 0.8 * ring,
        "ring, neighbors agree weakly": 0.4 * ring,
        "ring, neighbors differ": -0.8 * ring,
        "independent": SPINS @ (0.5 * normal(LENGTH)),
        "random probabilities": 1.5 * normal(len(STATES)),
        "random pairs": ((SPINS @ pairs) * SPINS).sum(1) + SPINS @ (0.3 * normal(LENGTH)),
    }
    return {name: energy.softmax(0) for name, energy in energies.items()}


def distance(target: Tensor, tokens: Tensor) -> float:
    """Total variation between a target and the frequencies of samples [n, 8]."""
    number = (tokens * 2 ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
    frequency = torch.bincount(number, minlength=len(STATES)) / len(tokens)
    return float((frequency - target).abs().sum()) / 2


def samplers(masked: bool) -> Iterator[tuple[str, Any, bool]]:
    """Label and solver, and whether its time grid is fitted to the target."""
    for temperature in TEMPERATURES:
        ancestral = cwdfm.Euler(hazard="integrated", temperature=temperature)
        yield f"ancestral, T = {temperature:g}", ancestral, False
    if masked:
        yield "random order, T = 1", cwdfm.TopK("random"), False
        yield "random order, T = 0.9", cwdfm.TopK("random", temperature=0.9), False
        yield "random order, apart, T = 0.9", cwdfm.TopK("random", temperature=0.9), False
        yield "top-k by margin", cwdfm.TopK("margin"), False
        yield "entropy pace", cwdfm.EntropyPace(), False
    yield "ancestral, fitted grid", cwdfm.Euler(hazard="integrated"), True


def measure(source: cwdfm.Source, target: Tensor, n: int, seeds: int) -> dict[str, list[float]]:
    """The distance of every sampler, for each number of evaluations."""
    model = cwdfm.ExactPosterior(target.reshape((2,) * LENGTH), source, SCHEDULE)
    generator = torch.Generator().manual_seed(0)
    data = STATES[torch.multinomial(target, DATA, True, generator=generator)]
    found: dict[str, list[float]] = {}

    def add(label: str, steps: int, solver: Any, grid: Any) -> None:
        options: dict[str, Any] = {"shape": (n, LENGTH), "steps": steps, "grid": grid}
        flow = (model, source, SCHEDULE)
        draws = (cwdfm.sample(*flow, solver, seed=k, **options) for k in range(seeds))
        mean = statistics.fmean(distance(target, out.tokens) for out in draws)
        found.setdefault(label, []).append(mean)

    for label, solver, fitted in samplers(source.marks_noise):
        for steps in EVALUATIONS:
            if label.startswith("random order, apart"):
                solver = replace(solver, distance=widest_distance(steps))
            grid: Any = (
                cwdfm.jump_your_steps(model, source, SCHEDULE, data, steps) if fitted else "kappa"
            )
            add(label, steps, solver, grid)
    held_out = STATES[torch.multinomial(target, FIT_DATA, True, generator=generator)]
    fit = DataFit(model, Flow(source, SCHEDULE), held_out)
    for steps in EVALUATIONS:
        chosen = recommend_for(fit.flow, steps, LENGTH, faithful=True, fit=fit)
        add("fitted to data", steps, chosen.solver, chosen.options["grid"])
    exact = torch.multinomial(target, seeds * n, True, generator=generator).view(seeds, n)
    floor = statistics.fmean(distance(target, STATES[row]) for row in exact)
    return found | {"exact draws": [floor] * len(EVALUATIONS)}


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--n", type=int, default=4_000, help="samples per seed")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    config = {"n": options.n, "seeds": options.seeds, "evaluations": EVALUATIONS}
    sources = {"mask": cwdfm.MaskSource(2), "uniform": cwdfm.UniformSource(2)}
    rows = []
    for name, source in sources.items():
        for target, probabilities in targets().items():
            errors = measure(source, probabilities, options.n, options.seeds)
            rows.append({"source": name, "target": target, "total_variation": errors})
            print(name, target, errors, flush=True)
    save(options.out, config=config, rows=rows)


if __name__ == "__main__":
    main()
