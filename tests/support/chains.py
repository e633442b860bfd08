"""The exact law of discretized chains, from the exact posterior."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import cwdfm
from tests.support.exact import Array, Chain, LogWeight, State, entropy, neighbor
from tests.support.stats import histogram

Memory = Any
# (state, memory, number of the step) -> the next states and memories with their probabilities
Rule = Callable[[State, Memory, int], Iterator[tuple[State, Memory, float]]]
SCHEDULE = cwdfm.Polynomial(2.0)
N_SAMPLES = 40_000
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


def counts_of(chain: Chain, solver: cwdfm.Solver, steps: int, **options: Any) -> NDArray[np.int64]:
    """The histogram of samples."""
    return histogram(sample_chain(chain, solver, steps, **options).tokens, chain.vocab)


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


def law_of(chain: Chain, steps: int, rule: Rule) -> Array:
    """The law of samples after `steps` steps of a rule; it starts without a memory."""
    law: dict[tuple[State, Memory], float] = {
        (x, None): c for x, c in zip(chain.states, chain.start(), strict=True) if c > 0
    }
    for k in range(steps):
        after: dict[tuple[State, Memory], float] = defaultdict(float)
        for (x, memory), mass in law.items():
            for y, remembered, chance in rule(x, memory, k):
                after[y, remembered] += mass * chance
        law = after
    found = np.zeros(chain.target.shape)
    for (x, _), mass in law.items():
        found[x] += mass
    return found.ravel()


def filled(chain: Chain, x: State, chosen: list[int], p_NV: Array) -> Iterator[tuple[State, float]]:
    """All ways to draw the chosen coordinates, with their probabilities."""
    for tokens in product(range(chain.vocab), repeat=len(chosen)):
        new = dict(zip(chosen, tokens, strict=True))
        y = tuple(new.get(i, x[i]) for i in range(chain.length))
        yield y, math.prod(p_NV[i, v] for i, v in new.items())


def masked_in(chain: Chain, x: State) -> list[int]:
    return [i for i in range(chain.length) if x[i] == chain.vocab]
