"""Theorem 1: counts follow Binomial(N, kappa_t); with equivariant weights so do the marginals.

Checked for the context path and for the simulated chain, with both sources. The control is a
positional bias, which preserves the counts but not the marginals.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from tests.support.cases import slow
from tests.support.stats import FALSE_ALARM, assert_differs, assert_follows, binomial, p_value
from tests.support.weights import PositionalBias

SCHEDULE = cwdfm.Polynomial(2.0)
SOURCES = [cwdfm.MaskSource(12), cwdfm.UniformSource(12)]
NEIGHBORS = [cwdfm.Neighbor(1, 4.0), cwdfm.Neighbor(2, 1.0), cwdfm.Neighbor(3, -0.5)]


def path_reveals(
    source: cwdfm.Source, weight: cwdfm.Weight, t: float, length: int, n: int
) -> Tensor:
    x_1 = torch.zeros(n, length, dtype=torch.int64)
    path = cwdfm.ContextPath(source, SCHEDULE, weight)
    return path.sample(x_1, torch.full((n,), t), seed=3).revealed


def chain_reveals(
    source: cwdfm.Source, weight: cwdfm.Weight, t: float, length: int, n: int, steps: int = 100
) -> Tensor:
    """The chain towards a known x_1, stepped manually from noise that differs everywhere.

    Weights act on the state at the start of a step, so the counts are off by O(1/steps): at 100
    steps their mean of 4.9 is, over 40,000 sequences, off by 0.009 with an error of 0.008. Even
    0.02 would be one false alarm in 400,000 instead of a million, at 3,000 sequences.
    """
    goal = 7

    def clairvoyant(x_t: Tensor, t: Tensor) -> Tensor:
        logits = torch.full((*x_t.shape, source.num_tokens), -torch.inf)
        logits[..., goal] = 0.5
        return logits

    solver = cwdfm.Euler(weight=weight, hazard="integrated")
    state = solver.init(source, torch.arange(n), length, seed=4)
    tokens = torch.where(state.tokens == goal, goal + 1, state.tokens)
    state = replace(state, tokens=tokens)
    grid = np.sqrt(np.linspace(0, t**2, steps + 1))  # uniform in kappa
    for a, b in itertools.pairwise(grid):
        state, _ = solver.step(clairvoyant, source, SCHEDULE, state, float(a), float(b))
    return state.tokens == goal


def counts_law(revealed_BN: Tensor) -> np.ndarray:
    n = revealed_BN.shape[1]
    return np.bincount(revealed_BN.sum(1).numpy(), minlength=n + 1)


def assert_marginals(revealed_BN: Tensor, kappa: float) -> None:
    n = len(revealed_BN)
    for total in revealed_BN.sum(0).tolist():
        assert p_value(np.array([total, n - total]), np.array([kappa, 1 - kappa])) > FALSE_ALARM


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("weight", [*NEIGHBORS, cwdfm.NeighborShare(1)], ids=str)
@pytest.mark.parametrize("t", [0.7, slow(0.3)])
def test_path_preserves_counts_and_marginals(
    source: cwdfm.Source, weight: cwdfm.Weight, t: float
) -> None:
    revealed = path_reveals(source, weight, t, 12, 40_000)
    assert_follows(counts_law(revealed), binomial(12, t**2))
    assert_marginals(revealed, t**2)


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("weight", [NEIGHBORS[0], slow(NEIGHBORS[1]), slow(NEIGHBORS[2])], ids=str)
def test_chain_preserves_counts_and_marginals(source: cwdfm.Source, weight: cwdfm.Weight) -> None:
    revealed = chain_reveals(source, weight, 0.7, 10, 2_000)
    assert_follows(counts_law(revealed), binomial(10, 0.49))
    assert_marginals(revealed, 0.49)


@pytest.mark.parametrize("reveals", [path_reveals, chain_reveals])
def test_positional_bias_preserves_counts_but_not_marginals(reveals: Callable[..., Tensor]) -> None:
    revealed = reveals(cwdfm.MaskSource(12), PositionalBias(), 0.7, 10, 3_000)
    assert_follows(counts_law(revealed), binomial(10, 0.49))
    first = int(revealed[:, 0].sum())
    assert_differs(np.array([first, 3_000 - first]), np.array([0.49, 0.51]))


def test_entropy_weights_preserve_counts() -> None:
    """With the posterior of a model with strong preferences."""
    source, length, n = cwdfm.MaskSource(3), 6, 2_000
    table = torch.randn(length, 3, generator=torch.manual_seed(0)) * 3

    def model(x_t: Tensor, t: Tensor) -> Tensor:
        mixed = table + table.roll(1, 0) * (x_t == 1)[..., None]
        return torch.nn.functional.pad(mixed, (0, 1), value=-torch.inf)

    solver = cwdfm.Euler(weight=cwdfm.Entropy(beta=3.0), hazard="integrated")
    state = solver.init(source, torch.arange(n), length, seed=1)
    grid = np.sqrt(np.linspace(0, 0.5, 201))
    for a, b in itertools.pairwise(grid):
        state, _ = solver.step(model, source, SCHEDULE, state, float(a), float(b))
    revealed = source.revealed(state.tokens)
    assert_follows(counts_law(revealed), binomial(length, 0.5))
    # marginals are not preserved: this model changes them
    totals = revealed.sum(0)
    assert any(
        p_value(np.array([int(k), n - int(k)]), np.array([0.5, 0.5])) < FALSE_ALARM for k in totals
    )


def test_boundary_cut_does_not_preserve_the_marginals() -> None:
    """A window cut at the ends has less context there, so the ends are revealed later."""
    revealed = path_reveals(cwdfm.MaskSource(5), cwdfm.Neighbor(1, 4.0, "cut"), 0.7, 12, 40_000)
    assert_follows(counts_law(revealed), binomial(12, 0.49))
    first = int(revealed[:, 0].sum())
    assert_differs(np.array([first, 40_000 - first]), np.array([0.49, 0.51]))
