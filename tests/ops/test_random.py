"""Philox against its published test vectors; uniforms against their distribution; the kernel.

The kernel runs in Triton's interpreter: TRITON_INTERPRET=1 pytest this file.
"""

from typing import cast

import numpy as np
import pytest
import torch
from scipy import stats

from cwdfm.ops import dispatch
from cwdfm.ops.random import _BLOCK, Purpose, _plain_uniform, philox, uniform, uniform_BN
from tests.support.kernels import in_both_modes, interpreted
from tests.support.stats import FALSE_ALARM, assert_follows

# Known answers for philox4x32-10 from the Random123 distribution: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF, 0xFFFFFFFF), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
LARGE = torch.tensor([0, 1, 2**32 - 1, 2**32, 2**40 + 7, 2**56 + 3, 2**63 - 1, -3])


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = philox(tuple(torch.tensor([c]) for c in counter), key)
    assert tuple(int(w) for w in words) == expected


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


def assert_fused(
    seed: int, purpose: Purpose, index: torch.Tensor, step: int, position: torch.Tensor
) -> torch.Tensor:
    """Uniforms, after a check that both implementations give the same bits."""
    plain, found = in_both_modes(lambda: uniform(seed, purpose, index, step, position))
    assert found.dtype == torch.float64
    assert found.shape == plain.shape
    assert torch.equal(found, plain)
    return found


@interpreted
@pytest.mark.parametrize("purpose", Purpose, ids=str)
def test_every_purpose_has_the_same_bits(purpose: Purpose) -> None:
    assert_fused(5, purpose, torch.arange(3)[:, None], 2, torch.arange(40)[None])


@interpreted
@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("step", [0, 2**31, 2**32 - 1])
def test_large_numbers_have_the_same_bits(seed: int, step: int) -> None:
    assert_fused(seed, Purpose.TIE, LARGE[:7, None], step, LARGE[None, :7])


SHAPES = {
    "a batch, more than a block": (torch.arange(3)[:, None], torch.arange(_BLOCK + 1)[None]),
    "vectors": (torch.arange(70), torch.arange(70).flip(0)),
    "a vector, more than a block": (torch.arange(2 * _BLOCK + 5), torch.arange(2 * _BLOCK + 5)),
    "scalars": (torch.tensor(3), torch.tensor(4)),
    "a vector and one": (torch.arange(5), torch.zeros(1, dtype=torch.int64)),
    "a column and one": (torch.arange(5)[:, None], torch.ones(1, 1, dtype=torch.int64)),
    "a row above a batch": (torch.arange(7), torch.arange(21).reshape(3, 7)),
    "three axes": (torch.arange(4)[:, None, None], torch.arange(6).reshape(2, 3)),
    "transposed": (torch.arange(12).reshape(3, 4).T, torch.arange(12).reshape(4, 3)),
    "every other": (torch.arange(20)[::2], torch.arange(40)[3::4]),
    "part of a batch": (torch.arange(9).expand(5, 9)[1:4, 2:7], torch.arange(5)),
    "no rows": (torch.arange(0)[:, None], torch.arange(5)[None]),
    "nothing": (torch.arange(0), torch.arange(0)),
}


@interpreted
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_the_same_bits(shape: str) -> None:
    index, position = SHAPES[shape]
    assert_fused(2**40 + 1, Purpose.PROPOSAL, index, 9, position)


@interpreted
def test_per_sample_steps_have_the_same_bits() -> None:
    step, index = torch.tensor([0, 5, 2**31, 2**32 - 1, 7, 8, 9]), LARGE[:7]
    for found in in_both_modes(lambda: uniform_BN(3, Purpose.SOURCE, index, step, 3)):
        for i, k in enumerate(step.tolist()):
            assert torch.equal(
                found[i : i + 1], uniform_BN(3, Purpose.SOURCE, index[i : i + 1], k, 3)
            )
    flat = in_both_modes(lambda: uniform(3, Purpose.SOURCE, index, step, torch.zeros_like(step)))
    assert torch.equal(flat[0], found[:, 0])
    assert torch.equal(flat[1], found[:, 0])


@interpreted
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers_of_the_kernel(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    position, step, index, rest = counter
    purpose, index = cast(Purpose, rest & 0xFF), index | (rest >> 8) << 32
    seed = key[0] | key[1] << 32
    u = assert_fused(seed, purpose, torch.tensor([index]), step, torch.tensor([position]))
    assert float(u) * 2**53 == expected[0] >> 5 << 26 | expected[1] >> 6


@interpreted
def test_where_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU only if forced; never on a device that Triton does not support."""
    for mode, wanted in (("on", True), ("auto", False), ("off", False)):
        monkeypatch.setattr(dispatch, "MODE", mode)
        assert dispatch.fused_device(torch.device("cpu")) is wanted
        assert not dispatch.fused_device(torch.device("meta"))
