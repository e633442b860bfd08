"""Two-stage solvers: their exact law, and their order of convergence against expm."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import expm

import cwdfm
from tests.support.cases import slow
from tests.support.chains import WEIGHTS, counts_of, sample_chain
from tests.support.exact import Array, Chain, State, alphas, correlated_target
from tests.support.stats import assert_differs, assert_follows

TRAPEZOIDAL, RK2 = cwdfm.ThetaTrapezoidal, cwdfm.ThetaRK2


def rates(chain: Chain, x: State, kappa: float) -> Array:
    """The rates of all jumps per unit of integrated hazard, [N, V], as the chain defines them."""
    p_NV = chain.posterior(x, kappa)
    if not chain.mask:
        return p_NV
    revealed = np.array(x) != chain.vocab
    return np.asarray(alphas(chain.log_weight, revealed, p_NV)[:, None] * p_NV)


def jump(chain: Chain, x: State, rate_NV: Array, hazard: float) -> Array:
    """The law of the next state, if every token is replaced at these rates."""
    law = np.ones(1)
    for token, rate_V in zip(x, rate_NV, strict=True):
        total = rate_V.sum()
        next_T = np.zeros(chain.vocab + chain.mask)
        next_T[token] += math.exp(-total * hazard)
        next_T[: chain.vocab] += (1 - math.exp(-total * hazard)) * rate_V / max(total, 1e-300)
        law = np.multiply.outer(law, next_T)
    return law.ravel()


def step_matrix(chain: Chain, solver: cwdfm.Solver, clock: float, hazard: float) -> Array:
    """One step from the time with integrated hazard `clock`, by the definition of the methods."""
    kappa = 1 - math.exp(-clock)
    theta = getattr(solver, "theta", 1.0)
    matrix = np.zeros((len(chain.states),) * 2)
    for row, x in zip(matrix, chain.states, strict=True):
        x_rate = rates(chain, x, kappa)
        first = jump(chain, x, x_rate, theta * hazard)
        if isinstance(solver, cwdfm.Euler):
            row += first
            continue
        for chance, y in zip(first, chain.states, strict=True):
            if chance == 0:
                continue
            y_rate = rates(chain, y, 1 - math.exp(-clock - theta * hazard))
            if isinstance(solver, TRAPEZOIDAL):
                a = 1 / (2 * theta * (1 - theta))
                rate = np.maximum(a * y_rate - (a - 1) * x_rate, 0)
                row += chance * jump(chain, y, rate, (1 - theta) * hazard)
            else:
                moved = (np.array(x) != y)[:, None]
                rate = np.where(moved, x_rate, y_rate) / (2 * theta)
                rate += (1 - 1 / (2 * theta)) * x_rate
                row += chance * jump(chain, x, rate, hazard)
    return matrix


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("solver", [TRAPEZOIDAL(0.4), RK2(0.7)], ids=str)
def test_exact_law(solver: cwdfm.Solver, mask: bool) -> None:
    """False-alarm rate 1e-6."""
    chain, times = Chain(correlated_target(2, 3, seed=1), mask), [0.0, 0.5, 0.8, 1.0]
    counts = sampled(chain, solver, times)
    assert_follows(counts, grid_law(chain, solver, times))
    other = RK2(0.7) if isinstance(solver, TRAPEZOIDAL) else TRAPEZOIDAL(0.4)
    assert_differs(counts, grid_law(chain, other, times))


@pytest.mark.parametrize("name", ["entropy", slow("neighbor")])
@pytest.mark.parametrize("kind", [TRAPEZOIDAL, RK2])
def test_exact_law_with_a_weight(kind: type[cwdfm.Solver], name: str) -> None:
    """Four positions, where neighbors matter. False-alarm rate 1e-6."""
    weight, log_weight = WEIGHTS[name]
    target, times = correlated_target(2, 4, seed=2), [0.0, 0.6, 1.0]
    chain = Chain(target, mask=True, log_weight=log_weight)
    solver = kind(weight=weight)  # type: ignore[call-arg]
    counts = sampled(chain, solver, times)
    assert_follows(counts, grid_law(chain, solver, times))


def sampled(chain: Chain, solver: cwdfm.Solver, times: list[float]) -> NDArray[np.int64]:
    grid = torch.tensor(times, dtype=torch.float64)
    return counts_of(chain, solver, len(times) - 1, grid=grid)


def grid_law(chain: Chain, solver: cwdfm.Solver, times: list[float]) -> Array:
    """The law of samples; the last step draws all coordinates from one prediction."""
    law, clocks = chain.start(), [-math.log(1 - t**2) if t < 1 else math.inf for t in times]
    for clock, after in pairwise(clocks[:-1]):
        law = law @ step_matrix(chain, solver, clock, after - clock)
    return chain.data_law(law @ chain.step_matrix(times[-2] ** 2, math.inf))


def convergence(chain: Chain, solver: cwdfm.Solver) -> tuple[Array, Array]:
    """Total variation to the exact transition law for 4, 8 and 16 steps, and the orders."""
    exact = chain.start() @ expm(chain.generator(0.5))  # a mask source's rates have no time
    errors = []
    for steps in (4, 8, 16):
        law = chain.start()
        for k in range(steps):
            law = law @ step_matrix(chain, solver, k / steps, 1 / steps)
        errors.append(np.abs(law - exact).sum() / 2)
    return np.array(errors), np.log2(np.array(errors[:-1]) / errors[1:])


def test_order_of_convergence() -> None:
    """Two where no rate is negative; one for RK2, whose jumps are independent of each other."""
    weak = Chain(correlated_target(2, 3, seed=1, power=0.3), mask=True)
    euler, first = convergence(weak, cwdfm.Euler(hazard="integrated"))
    trapezoidal, second = convergence(weak, TRAPEZOIDAL())
    _, rk2 = convergence(weak, RK2())
    assert np.allclose(first, 1, atol=0.05)
    assert np.allclose(second, 2, atol=0.1)
    assert np.allclose(rk2, 1, atol=0.05)
    assert (trapezoidal < euler / 20).all()
    strong = Chain(correlated_target(2, 3, seed=1), mask=True)
    euler, _ = convergence(strong, cwdfm.Euler(hazard="integrated"))
    clipped, order = convergence(strong, TRAPEZOIDAL())
    assert np.allclose(order, 1, atol=0.05)
    assert (clipped[:-1] < euler[1:] * 0.6).all()  # at equal numbers of evaluations


def test_invalid_options() -> None:
    for kind, theta in ((TRAPEZOIDAL, 1.0), (TRAPEZOIDAL, 0), (RK2, 0.4), (RK2, "0.5")):
        with pytest.raises(cwdfm.InputError, match="theta must be in"):
            kind(theta)  # type: ignore[arg-type]
    solver = TRAPEZOIDAL(weight=cwdfm.Neighbor())
    chain = Chain(correlated_target(2, 4, seed=1), mask=False)
    with pytest.raises(cwdfm.InputError, match="mask source only"):
        sample_chain(chain, solver, 2, n=4)
