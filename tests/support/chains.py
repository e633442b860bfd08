"""The exact law of discretized chains, from the exact posterior."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import cwdfm
from tests.support.exact import Chain, LogWeight, entropy, neighbor

SCHEDULE = cwdfm.Polynomial(2.0)
N_SAMPLES = 60_000
# Weights, each with a reference implementation of its log-weight.
WEIGHTS: dict[str, tuple[cwdfm.Weight | None, LogWeight | None]] = {
    "none": (None, None),
    "neighbor": (cwdfm.Neighbor(1, 2.0), neighbor(1, 2.0)),
    "entropy": (cwdfm.Entropy(3.0), entropy(3.0)),
    "sum": (
        cwdfm.Neighbor(1, 1.0) + cwdfm.Entropy(2.0),
        lambda r, p: neighbor(1, 1.0)(r, p) + entropy(2.0)(r, p),
    ),
}


def source_of(chain: Chain) -> cwdfm.Source:
    return (cwdfm.MaskSource if chain.mask else cwdfm.UniformSource)(chain.vocab)


def model_of(chain: Chain) -> cwdfm.ExactPosterior:
    return cwdfm.ExactPosterior(torch.from_numpy(chain.target), source_of(chain), SCHEDULE)


def sample_chain(
    chain: Chain, solver: cwdfm.Solver, steps: int, n: int = N_SAMPLES, **options: Any
) -> cwdfm.Samples:
    """Sample with the chain's exact posterior."""
    shape, model = (n, chain.length), model_of(chain)
    return cwdfm.sample(
        model, source_of(chain), SCHEDULE, solver, shape=shape, steps=steps, **options
    )


def hazards(t: float, t_next: float, exact: bool, corrector: cwdfm.Corrector | None) -> list[float]:
    """The step's hazards for kappa = t^2, written out; (inf, 0) for the last step."""
    if t_next == 1:
        return [math.inf, 0.0]
    h = t_next - t
    forward = math.log((1 - t**2) / (1 - t_next**2)) if exact else h * 2 * t / (1 - t**2)
    if corrector is None:
        return [forward, 0.0]
    extra = corrector.scale * t**corrector.a * (1 - t) ** corrector.b
    backward = 0.0 if t == 0 else (2 * math.log(t_next / t) if exact else h * 2 / t)
    return [(1 + extra) * forward, extra * backward]


def exact_law(
    chain: Chain,
    grid: np.ndarray,
    *,
    exact: bool = False,
    corrector: cwdfm.Corrector | None = None,
    prompt: tuple[int, ...] | None = None,
) -> np.ndarray:
    law = chain.start(prompt)
    for t, t_next in pairwise(grid):
        law = law @ chain.step_matrix(t**2, *hazards(t, t_next, exact, corrector))
    return chain.data_law(law)
