"""Distances between tokens that are revealed at once, and the entropy pace."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from tests.support.cases import slow
from tests.support.chains import SCHEDULE, Memory, counts_of, filled, law_of, masked_in
from tests.support.exact import Array, Chain, State, correlated_target
from tests.support.models import Recorder
from tests.support.stats import assert_differs, assert_follows

CERTAIN = 0.1  # nats, as documented
VOCAB, LENGTH = 7, 20
PACED = cwdfm.EntropyPace(0.6, distance=1)
SPACED = [
    *(cwdfm.TopK("margin", distance=d) for d in (1, 3, 5)),
    *(cwdfm.EntropyBound(2.0, distance=d) for d in (1, 3, 50)),
    *(cwdfm.Threshold(0.4, distance=d) for d in (1, 3)),
    *(cwdfm.EntropyPace(pace, distance=d) for pace in (0.3, 2.0) for d in (0, 1, 3)),
]


@dataclass
class Table:
    """Predictions that depend on the neighbors. Some are certain, and scores never tie."""

    def __post_init__(self) -> None:
        self.table = torch.randn(3, VOCAB + 1, VOCAB + 1, generator=torch.manual_seed(0))

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        near = sum(self.table[k][x_t.roll(k - 1, 1)] for k in range(3))
        return near * torch.linspace(0.3, 3.0, LENGTH)[:, None]


def entropy(p: Array) -> float:
    return float(-sum(q * math.log(q) for q in p if q > 0))


def certainty(solver: cwdfm.Solver, p: Array) -> float:
    """The score that sorts the coordinates, in descending order."""
    first, second = sorted(p, reverse=True)[:2]
    if isinstance(solver, cwdfm.TopK):
        return float(first - second)
    return float(first) if isinstance(solver, cwdfm.Threshold) else -entropy(p)


def limits(
    solver: Any, order: list[int], p_NV: Array, free: int, masked: list[int], t: float, after: float
) -> int:
    """The number of coordinates of `order` that a step reveals, without regard to distances."""
    if isinstance(solver, cwdfm.TopK):
        return max(1, len(masked) - math.floor(free * (1 - after**2) + 1e-6))
    if isinstance(solver, cwdfm.Threshold):
        return max(1, sum(float(p_NV[i].max()) >= solver.threshold for i in order))
    bound = getattr(solver, "gamma", None)
    if bound is None:
        share = (after**2 - t**2) / (1 - t**2)
        bound = solver.pace * share * sum(entropy(p_NV[i]) for i in masked)

    def error(count: int) -> float:
        found = [entropy(p_NV[i]) for i in order[:count]]
        return sum(found) - max(found)

    return max(k for k in range(1, len(order) + 1) if error(k) <= bound)


def choice(
    solver: Any, masked: list[int], p_NV: Array, free: int, t: float, after: float
) -> list[int]:
    """The coordinates that a step reveals, by definition."""
    order = sorted(masked, key=lambda i: -certainty(solver, p_NV[i]))
    apart: list[int] = []
    for i in order:
        rivals = [j for j in apart if entropy(p_NV[j]) > CERTAIN]
        close = any(abs(i - j) <= solver.distance for j in rivals)
        if entropy(p_NV[i]) <= CERTAIN or not close:
            apart.append(i)
    crowded = [i for i in order if i not in apart]
    candidates = apart + crowded if isinstance(solver, cwdfm.TopK) else apart
    return candidates[: limits(solver, candidates, p_NV, free, masked, t, after)]


@pytest.mark.parametrize("solver", [*SPACED[::2], *map(slow, SPACED[1::2])], ids=str)
def test_a_step_reveals_what_a_greedy_pass_chooses(solver: Any) -> None:
    """For prompts of all lengths."""
    source, steps = cwdfm.MaskSource(VOCAB), 5
    fixed = torch.rand(16, LENGTH, generator=torch.manual_seed(0))
    fixed = fixed < torch.linspace(0, 0.9, 16)[:, None]
    prompt = torch.full((LENGTH,), 3)
    state = solver.init(source, torch.arange(16), LENGTH, prompt=prompt, fixed=fixed)
    model, changed, near = Recorder(Table()), 0, replace(solver, distance=0)
    for step in range(steps):
        before, t, after = state.tokens, step / steps, (step + 1) / steps
        state, info = solver.step(model, source, SCHEDULE, state, t, after)
        p_BNV = source.data_logits(model.model(*model.asked[-1])).softmax(-1).double().numpy()
        for b, row in enumerate(before.tolist()):
            masked, free = [i for i in range(LENGTH) if row[i] == VOCAB], int((~fixed[b]).sum())
            expected = masked
            if masked and step < steps - 1:
                expected = choice(solver, masked, p_BNV[b], free, t, after)
                changed += expected != choice(near, masked, p_BNV[b], free, t, after)
            assert sorted(expected) == info.forward[b].nonzero()[:, 0].tolist()
    assert int(state.tokens.max()) < VOCAB
    assert (changed > 0) == (solver.distance > 0)


@pytest.mark.parametrize("steps", [2, 3])
def test_the_law_of_the_samples(steps: int) -> None:
    """By enumeration. False-alarm rate 1e-6."""
    chain = Chain(correlated_target(2, 4, seed=3), mask=True)

    def rule(x: State, _: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
        p_NV, chosen = chain.posterior(x, 0.5), masked_in(chain, x)
        if chosen and k < steps - 1:
            chosen = choice(PACED, chosen, p_NV, chain.length, k / steps, (k + 1) / steps)
        for y, chance in filled(chain, x, chosen, chain.drawn_from(p_NV)):
            yield y, None, chance

    counts = counts_of(chain, PACED, steps)
    assert_follows(counts, law_of(chain, steps, rule))
    assert_differs(counts, chain.target.flatten())


def test_a_small_pace_samples_the_target() -> None:
    """One token per step, in the order of the entropies. False-alarm rate 1e-6."""
    chain = Chain(correlated_target(3, 3, seed=1), mask=True)
    counts = counts_of(chain, cwdfm.EntropyPace(1e-9), 3)
    assert_follows(counts, chain.target.flatten())


def test_distances_keep_tokens_apart_that_depend_on_each_other() -> None:
    """Of two independent pairs of equal tokens, a step draws one token each: two evaluations sample
    the target. False-alarm rate 1e-6.
    """
    target = np.zeros((2, 2, 2, 2))
    target[0, 0, 0, 0], target[1, 1, 0, 0], target[0, 0, 1, 1], target[1, 1, 1, 1] = [0.25] * 4
    chain = Chain(target, mask=True)
    for solver in (PACED, cwdfm.TopK(cwdfm.Neighbor(1, 0.0), distance=1)):
        out = counts_of(chain, solver, 2, grid="kappa")
        assert_follows(out, target.flatten())
    for solver in (cwdfm.TopK(cwdfm.Neighbor(1, 0.0)), cwdfm.EntropyPace(0.6, distance=0)):
        assert_differs(counts_of(chain, solver, 2, grid="kappa"), target.flatten())
