"""The kernel of counter-based uniforms, in Triton's interpreter, is bitwise equal to PyTorch.

Run where Triton can be imported: TRITON_INTERPRET=1 pytest this file.
"""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor

from cwdfm.ops import dispatch
from cwdfm.ops.dispatch import fused_device
from cwdfm.ops.random import _BLOCK, Purpose, uniform, uniform_BN
from tests.support.kernels import interpreted
from tests.support.philox import KNOWN

pytestmark = interpreted
Draw = Callable[[int, Purpose, Tensor, int, Tensor], Tensor]
LARGE = torch.tensor([0, 1, 2**32 - 1, 2**32, 2**40 + 7, 2**56 + 3, 2**63 - 1])


@pytest.fixture
def checked_draw(monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Uniforms, after a check that both implementations give the same bits."""

    def both(seed: int, purpose: Purpose, index: Tensor, step: int, position: Tensor) -> Tensor:
        monkeypatch.setattr(dispatch, "MODE", "off")
        plain = uniform(seed, purpose, index, step, position)
        monkeypatch.setattr(dispatch, "MODE", "on")
        assert fused_device(index.device)
        fused = uniform(seed, purpose, index, step, position)
        assert fused.dtype == torch.float64
        assert fused.shape == plain.shape
        assert torch.equal(fused, plain)
        return fused

    return both


@pytest.mark.parametrize("purpose", Purpose, ids=str)
def test_every_purpose_has_the_same_bits(checked_draw: Draw, purpose: Purpose) -> None:
    checked_draw(5, purpose, torch.arange(3)[:, None], 2, torch.arange(40)[None])


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("step", [0, 2**31, 2**32 - 1])
def test_large_numbers_have_the_same_bits(checked_draw: Draw, seed: int, step: int) -> None:
    checked_draw(seed, Purpose.TIE, LARGE[:, None], step, LARGE[None])


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


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_the_same_bits(checked_draw: Draw, shape: str) -> None:
    index, position = SHAPES[shape]
    checked_draw(2**40 + 1, Purpose.PROPOSAL, index, 9, position)


def test_per_sample_steps_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.tensor([0, 5, 2**31, 2**32 - 1, 7, 8, 9])
    position = torch.arange(3)
    for mode in ("off", "on"):
        monkeypatch.setattr(dispatch, "MODE", mode)
        found = uniform(3, Purpose.SOURCE, LARGE[:, None], step[:, None], position[None, :])
        for i, k in enumerate(step.tolist()):
            alone = uniform(3, Purpose.SOURCE, LARGE[i : i + 1, None], k, position[None, :])
            assert torch.equal(found[i : i + 1], alone)
        flat = uniform(3, Purpose.SOURCE, LARGE, step, torch.zeros_like(step))
        assert torch.equal(flat, found[:, 0])
        batch = uniform_BN(3, Purpose.SOURCE, LARGE, step, 3)
        assert torch.equal(batch, found)


def test_whole_batches_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []
    for mode in ("off", "on"):
        monkeypatch.setattr(dispatch, "MODE", mode)
        draws.append(uniform_BN(3, Purpose.REVEAL, torch.arange(10, 15), 1, 33))
    assert torch.equal(*draws)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(
    checked_draw: Draw,
    counter: tuple[int, ...],
    key: tuple[int, int],
    expected: tuple[int, ...],
) -> None:
    position, step, index, rest = counter
    purpose = cast(Purpose, rest & 0xFF)
    index |= (rest >> 8) << 32
    seed = key[0] | key[1] << 32
    u = checked_draw(seed, purpose, torch.tensor([index]), step, torch.tensor([position]))
    assert float(u) * 2**53 == expected[0] >> 5 << 26 | expected[1] >> 6


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU only if forced; never on a device that Triton does not support."""
    for mode, wanted in (("on", True), ("auto", False), ("off", False)):
        monkeypatch.setattr(dispatch, "MODE", mode)
        assert fused_device(torch.device("cpu")) is wanted
        assert not fused_device(torch.device("meta"))
