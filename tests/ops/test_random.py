"""Philox against its published test vectors; uniforms against their distribution."""

import numpy as np
import pytest
import torch
from scipy import stats

from cwdfm.ops.random import Purpose, _plain_uniform, philox, uniform, uniform_BN
from tests.support.philox import KNOWN
from tests.support.stats import FALSE_ALARM, assert_follows


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = philox(tuple(torch.tensor([c]) for c in counter), key)
    assert tuple(int(w) for w in words) == expected


LARGE = torch.tensor([0, 1, 2**32 - 1, 2**32, 2**40 + 7, 2**56 + 3, 2**63 - 1, -3])


@pytest.mark.parametrize("step", [0, 2**32 - 1, torch.arange(8)[:, None]], ids=str)
@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**64 - 1])
def test_numba_loop_is_bitwise_equal_to_tensor_arithmetic(
    seed: int, step: int | torch.Tensor
) -> None:
    """For numbers of any size and tensors of any shape."""
    arguments = [(purpose, LARGE[:, None], step, LARGE[None]) for purpose in Purpose]
    if isinstance(step, int):
        shapes = [torch.arange(n).reshape(shape) for n, shape in ((1, ()), (0, (3, 0)), (6, (6,)))]
        arguments += [(Purpose.TIE, x, step, x) for x in shapes]
    for which in arguments:
        assert torch.equal(uniform(seed, *which), _plain_uniform(seed, *which))


def test_draws_can_be_part_of_one_compiled_graph() -> None:
    """With tensor arithmetic, because the numba loop cannot be traced."""

    def doubled(index: torch.Tensor) -> torch.Tensor:
        return 2 * uniform_BN(7, Purpose.TIE, index, 3, 5)

    index = torch.arange(4)
    graph = torch.compile(doubled, fullgraph=True, backend="eager")
    assert torch.equal(graph(index), doubled(index))


def test_uniforms_follow_the_uniform_law() -> None:
    u = uniform_BN(7, Purpose.REVEAL, torch.arange(1000), 3, 1000).flatten().numpy()
    counts = np.bincount((u * 64).astype(int), minlength=64)
    assert_follows(counts, np.full(64, 1 / 64))
    assert stats.kstest(u, "uniform").pvalue > FALSE_ALARM
    # all 53 bits are random, including the last
    low_bits = (u * 2**53).astype(np.int64) % 16
    assert_follows(np.bincount(low_bits, minlength=16), np.full(16, 1 / 16))


def test_draws_differ_in_every_argument() -> None:
    index, position = torch.arange(50), torch.arange(50)
    draws = [
        uniform(seed, purpose, index[:, None], step, position[None])
        for seed in (0, 1, 2**32, 2**64 - 1)
        for purpose in Purpose
        for step in (0, 1, 2**32 - 1)
    ]
    values = torch.stack(draws).flatten()
    assert values.unique().numel() == values.numel()
    assert bool(((values >= 0) & (values < 1)).all())
    large = uniform(0, Purpose.SOURCE, torch.tensor([0, 2**32, 2**40]), 0, torch.zeros(3).long())
    assert large.unique().numel() == 3


def test_largest_uniform_stays_inside_the_total() -> None:
    """u * total < total for the largest u, which keeps inverse transform inside the support."""
    u = torch.tensor(1 - 2.0**-53, dtype=torch.float64)
    totals = torch.rand(100_000, dtype=torch.float64, generator=torch.manual_seed(0)) * 3 + 1e-300
    assert bool((u * totals < totals).all())
