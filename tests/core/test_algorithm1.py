"""Algorithm 1 against the exact law of reveal sets, by enumeration of all orders."""

from collections import defaultdict
from itertools import product
from math import exp, nextafter

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.path import algorithm1
from cwdfm.path.algorithm1 import reveal_in_order, reveal_naive
from tests.support.cases import slow
from tests.support.stats import assert_differs, assert_follows, binomial, histogram

Mask = tuple[bool, ...]


def law_after(weight: cwdfm.Weight, start: Mask, draws: int) -> dict[Mask, float]:
    """The exact law of the reveal mask after some draws, by enumerating the chain on sets.

    alpha comes from the weight itself; tests/core/test_weight.py checks the weight.
    """
    law = {start: 1.0}
    for _ in range(draws):
        following: dict[Mask, float] = defaultdict(float)
        for mask, chance in law.items():
            alpha = weight(torch.tensor([mask]))[0].tolist()
            for i, a in enumerate(alpha):
                if not mask[i]:
                    revealed = (*mask[:i], True, *mask[i + 1 :])
                    following[revealed] += chance * a / sum(alpha)
        law = following
    return law


def as_array(law: dict[Mask, float], length: int) -> np.ndarray:
    return np.array([law.get(mask, 0.0) for mask in product([False, True], repeat=length)])


def draws(weight: cwdfm.Weight, start: Mask, count: int, n: int, naive: bool = False) -> Tensor:
    start_BN = torch.tensor([start]).repeat(n, 1)
    u_BN = uniform_BN(5, Purpose.ORDER, torch.arange(n), 0, len(start))
    reveal = reveal_naive if naive else reveal_in_order
    return reveal(weight, start_BN, torch.full((n,), count), u_BN)


WEIGHTS = [
    cwdfm.Neighbor(1, 4.0),
    cwdfm.Neighbor(2, 0.5),
    cwdfm.Neighbor(3, -1.0),
    cwdfm.Neighbor(1, 1.0, "cut"),
    cwdfm.Neighbor(3, 2.0, "cut"),
    cwdfm.Neighbor(1, 1.0, "cut", (2, 4)),
    cwdfm.Distance(1.0, 3),
    cwdfm.Neighbor(1, 1.0) + cwdfm.Distance(0.5, 2),
]


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
@pytest.mark.parametrize("count", [2, slow(4), 6])
def test_reveal_sets_follow_the_exact_law(weight: cwdfm.Weight, count: int) -> None:
    length = 8
    nothing = (False,) * length
    exact = as_array(law_after(weight, nothing, count), length)
    revealed = draws(weight, nothing, count, 40_000)
    assert bool((revealed.sum(1) == count).all())
    assert_follows(histogram(revealed.long(), 2), exact)


@pytest.mark.parametrize("weight", [cwdfm.Neighbor(1, 2.0), cwdfm.Neighbor(2, -0.7)], ids=str)
def test_naive_and_bucketed_share_the_law(weight: cwdfm.Weight) -> None:
    start = (False, True, False, False, False, False, True, False)
    exact = as_array(law_after(weight, start, 3), 8)
    for naive in (False, True):
        assert_follows(histogram(draws(weight, start, 3, 60_000, naive).long(), 2), exact)


def test_wrong_law_is_detected() -> None:
    """A control: the same draws must fail the test for a different scale."""
    nothing = (False,) * 8
    exact = as_array(law_after(cwdfm.Neighbor(1, 0.9), nothing, 4), 8)
    revealed = draws(cwdfm.Neighbor(1, 1.0), nothing, 4, 60_000)
    assert_differs(histogram(revealed.long(), 2), exact)


def test_neighbors_on_a_torus_come_first() -> None:
    """After one reveal on a 4 x 5 torus, its 8 neighbors are e^scale times as likely."""
    weight = cwdfm.Neighbor(1, 1.5, grid=(4, 5))
    start = tuple(i == 7 for i in range(20))
    revealed = draws(weight, start, 1, 40_000)
    chosen = (revealed & ~torch.tensor(start)).long().argmax(1)
    near = set(weight.neighbors(20)[7].tolist())
    raw = np.array([0.0 if i == 7 else np.exp(1.5 * (i in near)) for i in range(20)])
    assert_follows(np.bincount(chosen.numpy(), minlength=20), raw / raw.sum())


def test_compiled_and_interpreted_loops_agree() -> None:
    """Without numba the same function runs as plain Python: the samples must be the same."""
    compiled = algorithm1._reveal_loop
    interpreted = getattr(compiled, "py_func", None)
    assert interpreted is not None, "numba is a dependency of the library: install it"
    weight = cwdfm.Neighbor(2, 1.0, "cut")
    level = np.arange(5) * 1.0
    ratio = np.exp(np.minimum(level[:, None] - level[None, :], 0))
    results = []
    for loop in (compiled, interpreted):
        revealed = np.zeros((20, 30), dtype=bool)
        u = uniform_BN(1, Purpose.ORDER, torch.arange(20), 0, 30).numpy()
        loop(revealed, np.arange(20), u, weight.neighbors(30).numpy(), ratio, True)
        results.append(revealed)
    assert (results[0] == results[1]).all()
    assert results[0].sum(1).tolist() == list(range(20))


@pytest.mark.parametrize("scale", [300.0, -300.0])
def test_extreme_scales_reveal_the_right_number(scale: float) -> None:
    weight = cwdfm.Neighbor(3, scale)
    revealed = draws(weight, (False,) * 50, 37, 100)
    assert bool((revealed.sum(1) == 37).all())


@pytest.mark.parametrize("naive", [False, True])
def test_extreme_uniforms_choose_masked_coordinates(naive: bool) -> None:
    """u = 0 chooses the first with positive weight, u = 1 - 2^-53 the last, each once."""
    start_BN = torch.rand(100, 40, generator=torch.manual_seed(0)) < 0.3
    start_BN[:, [0, -1]] = True
    count_B = (~start_BN).sum(1) // 2
    reveal = reveal_naive if naive else reveal_in_order
    for scale, u in product((-2.0, -0.3, 0.7), (0.0, 1 - 2**-53)):
        u_BN = torch.full(start_BN.shape, u, dtype=torch.float64)
        revealed_BN = reveal(cwdfm.Neighbor(2, scale), start_BN, count_B, u_BN)
        assert torch.equal((revealed_BN & ~start_BN).sum(1), count_B)


def test_a_uniform_just_below_a_border_falls_into_the_lower_bucket() -> None:
    """Nine coordinates far from all, each exp(-2) of the one between four that are revealed.

    In float64 9 exp(-2) less one bit, over exp(-2), is 9: one place beyond them.
    """
    weight = cwdfm.Neighbor(2, 0.5)
    start_BN = torch.tensor([[True, True, False, True, True] + [False] * 13])
    mass = [size * exp(-0.5 * (4 - c)) for c, size in enumerate((9, 2, 2, 0, 1))]
    u = mass[0] / sum(mass)
    while u * sum(mass) >= mass[0]:
        u = nextafter(u, 0.0)
    revealed_BN = reveal_in_order(
        weight, start_BN, torch.tensor([1]), torch.full((1, 18), u, dtype=torch.float64)
    )
    assert weight.count(start_BN)[revealed_BN & ~start_BN].tolist() == [0]


def test_path_law_is_the_mixture_over_counts() -> None:
    """p~_t itself: Binomial counts, then Algorithm 1, at N = 6."""
    length, t = 6, 0.7
    weight = cwdfm.Neighbor(1, 2.0)
    path = cwdfm.ContextPath(cwdfm.MaskSource(3), cwdfm.Polynomial(2.0), weight)
    exact = sum(
        chance * as_array(law_after(weight, (False,) * length, m), length)
        for m, chance in enumerate(binomial(length, t**2))
    )
    batch = path.sample(torch.zeros(60_000, length, dtype=torch.int64), torch.full((60_000,), t))
    assert_follows(histogram(batch.revealed.long(), 2), np.asarray(exact))


def test_indices_beyond_16_bits() -> None:
    """Reveals all but ten of 40,000 coordinates, each once."""
    length = 40_000
    count, start = torch.tensor([length - 10]), torch.zeros(1, length, dtype=torch.bool)
    u = torch.rand(1, length, generator=torch.manual_seed(0), dtype=torch.float64)
    revealed = reveal_in_order(cwdfm.Neighbor(1, 2.0), start, count, u)
    assert int(revealed.sum()) == length - 10
