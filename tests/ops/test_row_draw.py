"""`row_draw` against the plain sampler and against exact intervals.

The kernel runs in Triton's interpreter: TRITON_INTERPRET=1 pytest this file.
"""

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.ops import categorical, dispatch
from cwdfm.ops.categorical import BLOCK_BYTES, LINE_BYTES, TILE, row_draw, sample_categorical
from tests.support.stats import assert_differs, assert_follows

pytestmark = [
    pytest.mark.skipif(
        find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
        reason="needs Triton and TRITON_INTERPRET=1",
    ),
    # The interpreter casts whole lines. Unused memory next to a row may hold a signaling NaN, about
    # which numpy warns.
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]
BELOW_ONE = 1 - 2.0**-53
BLOCK = BLOCK_BYTES // 4  # tokens, in float32


def rows_of(rows: int, vocab: int, dtype: torch.dtype, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    g = torch.manual_seed(vocab)
    logits = (torch.randn(rows, vocab, generator=g) * scale).to(dtype)
    return logits, torch.rand(rows, generator=g, dtype=torch.float64)


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_intervals(logits: Tensor, tokens: list[int], temperature: float = 1.0) -> None:
    """u just inside either end of a token's interval of cumulative mass selects the token."""
    p = (logits.double() / temperature).softmax(0)
    above = p.cumsum(0)
    # Far enough inside for the relative error of the masses below the token and of its own.
    slack = 2e-6 * above.clamp(max=1.0)[tokens]
    low, high = (above - p)[tokens] + slack, above[tokens] - slack
    assert bool((low < high).all()), "the tokens are too rare for this test"
    for u in (low, high):
        drawn = row_draw(logits.expand(len(u), -1), u, temperature=temperature)
        assert drawn.tolist() == tokens


# One token, less than a block, one token less or more than a block, blocks in several tiles.
@pytest.mark.parametrize("vocab", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 700, (TILE + 2) * BLOCK + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draws_match_the_plain_ones(vocab: int, dtype: torch.dtype, temperature: float) -> None:
    logits, u = rows_of(5, vocab, dtype)  # rows start at every offset of a line
    expected = sample_categorical(logits, u, temperature=temperature)
    assert torch.equal(row_draw(logits, u, temperature=temperature), expected)


def test_a_vocabulary_of_a_language_model() -> None:
    logits, u = rows_of(2, 50_257, torch.bfloat16)
    assert torch.equal(row_draw(logits, u), sample_categorical(logits, u))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_tokens_have_their_exact_intervals(temperature: float) -> None:
    """First and last tokens of rows, tiles, blocks and lines; every second block is flat."""
    vocab = TILE * BLOCK + 9
    logits = rows_of(1, vocab, torch.float32, scale=1.5)[0][0]
    logits[(torch.arange(vocab) // BLOCK) % 2 == 1] = 0.5
    tokens = [0, 3, 4, BLOCK - 1, BLOCK, 5 * BLOCK - 1, TILE * BLOCK - 1, TILE * BLOCK, vocab - 1]
    assert_intervals(logits, tokens, temperature)


def test_law() -> None:
    """200 draws of five tokens in two blocks; false-alarm rate 1e-6, with a control."""
    law = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    places = [0, 3, BLOCK - 1, BLOCK, BLOCK + 40]
    logits = torch.full((BLOCK + 50,), -torch.inf)
    logits[places] = torch.from_numpy(law).log().float()
    u = torch.rand(200, generator=torch.manual_seed(0), dtype=torch.float64)
    tokens = row_draw(logits.expand(200, -1), u)
    counts = np.bincount(tokens.numpy(), minlength=len(logits))
    assert counts[places].sum() == 200
    assert_follows(counts[places], law)
    assert_differs(counts[places], np.full(5, 0.2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_of_the_unit_interval_stay_in_the_support(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks and tokens of probability zero at the start, in between and at the end."""
    monkeypatch.setattr(dispatch, "MODE", "on")
    logits = torch.full((5 * BLOCK,), -torch.inf)
    possible = [BLOCK + 7, BLOCK + 9, 3 * BLOCK + 1]
    logits[possible] = torch.tensor([-40.0, 0.3, -30.0])
    u = float64(0.0, 1e-300, 0.5, BELOW_ONE)
    drawn = sample_categorical(logits.expand(4, -1), u, dtype=dtype)
    first, second, last = possible
    reached = second if dtype == torch.float32 else last
    assert drawn.tolist() == [first, first, second, reached]


@pytest.mark.parametrize("vocab", [BLOCK - 8, 9 * BLOCK])
def test_largest_u_selects_the_last_token(vocab: int) -> None:
    """For any rounding: sums in a different order may end below u * total."""
    logits, u = rows_of(12, vocab, torch.float32, scale=8.0)
    logits[:, -1] = 20.0
    assert row_draw(logits, torch.full_like(u, BELOW_ONE)).tolist() == [vocab - 1] * 12


def test_boundary_belongs_to_the_next_token() -> None:
    """Four equal masses, two per block, with impossible tokens in between: all sums are exact."""
    places = [1, 3, BLOCK, BLOCK + 5]
    logits = torch.full((2 * BLOCK,), -torch.inf)
    logits[places] = 7.0
    assert row_draw(logits.expand(4, -1), float64(0.0, 0.25, 0.5, 0.75)).tolist() == places


def test_rare_tokens_are_reached_only_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens of probability 1e-12: next to a likely one, and alone in a block."""
    logits = torch.zeros(2 * BLOCK) - torch.inf
    logits[5] = 0.0
    logits[[7, BLOCK + 2]] = np.log(1e-12)
    u = float64(1 - 2.1e-12, 1 - 1.9e-12, 1 - 1.1e-12, 1 - 0.9e-12, 1 - 0.1e-12)
    rows = logits.expand(5, -1)
    monkeypatch.setattr(dispatch, "MODE", "on")
    assert sample_categorical(rows, u).tolist() == [5, 7, 7, BLOCK + 2, BLOCK + 2]
    assert sample_categorical(rows, u, dtype=torch.float32).tolist() == [5] * 5


def test_masses_of_blocks_far_below_the_largest_are_kept() -> None:
    """exp(-200) underflows float32, and u = 1e-90 falls into it."""
    logits = torch.full((3 * BLOCK,), -torch.inf)
    logits[[4, BLOCK + 1, BLOCK + 3]] = torch.tensor([-200.0, 0.0, 0.0])
    u = float64(0.0, 1e-90, 1e-80, 0.75)
    assert row_draw(logits.expand(4, -1), u).tolist() == [4, 4, BLOCK + 1, BLOCK + 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_huge_logits_and_small_temperatures_do_not_overflow(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    logits = torch.full((3, 300), -most, dtype=dtype)
    logits[0, 270], logits[1, [3, 290]], logits[2] = most, most, -most
    u = float64(0.4, 0.6, 0.5 + 1e-9)
    with np.errstate(over="ignore"):
        for temperature in (1e-6, 1.0):
            assert row_draw(logits, u, temperature=temperature).tolist() == [270, 290, 150]


def test_extreme_temperatures() -> None:
    logits = torch.linspace(-5, 5, 300).expand(3, -1).contiguous()
    logits[:, 17] = 5.1
    u = float64(0.0, 0.5, BELOW_ONE)
    assert row_draw(logits, u, temperature=1e-6).tolist() == [17] * 3
    # Nearly uniform: probabilities differ by a hundred-thousandth.
    assert row_draw(logits, u, temperature=1e6).tolist() == [0, 150, 299]
    assert_intervals(logits[0], [0, 17, 255, 256, 299], temperature=1e6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", [300, 2 * TILE * BLOCK + 300])
def test_rows_may_have_any_offset_and_stride(vocab: int, dtype: torch.dtype) -> None:
    """Next to signaling NaNs in the same lines; in columns; one row expanded."""
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    above_infinity = torch.tensor([torch.inf], dtype=dtype).view(bits) + 1
    nan = above_infinity.view(dtype)
    assert nan.isnan()
    logits, u = rows_of(4, vocab, dtype)
    expected = sample_categorical(logits, u)
    size = LINE_BYTES // logits.element_size()
    for ahead in (0, 1, size - 1, size, size + 1):
        wide = nan.repeat(4, vocab + 11 + ahead)
        inside = wide[:, ahead : ahead + vocab]
        inside.copy_(logits)
        assert torch.equal(row_draw(inside, u), expected)
    assert torch.equal(row_draw(logits.T.contiguous().T, u), expected)
    assert torch.equal(row_draw(logits[1:], u[1:]), expected[1:])
    assert torch.equal(row_draw(logits[::2], u[::2]), expected[::2])
    same = logits[3].expand(4, -1)
    assert torch.equal(row_draw(same, u), sample_categorical(same, u))
    assert row_draw(logits[:0], u[:0]).shape == (0,)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 299])
def test_rows_without_a_distribution_are_an_error(bad: float, place: int) -> None:
    """As in the plain sampler; the library checks logits before it draws."""
    logits, u = rows_of(3, 300, torch.float32)
    logits[1, place if bad != -torch.inf else slice(None)] = bad
    with pytest.raises(RuntimeError):
        sample_categorical(logits, u)
    with np.errstate(all="ignore"), pytest.raises(InputError, match="in 1 of 3 rows"):
        row_draw(logits, u)


def test_when_the_kernel_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if enabled, and neither for float64 logits nor for nucleus sampling."""
    calls: list[torch.dtype] = []

    def counted(logits: Tensor, *rest: Any, **options: Any) -> Tensor:
        calls.append(logits.dtype)
        return row_draw(logits, *rest, **options)

    monkeypatch.setattr(categorical, "row_draw", counted)
    logits, u = rows_of(2, 10, torch.float32)
    for mode in ("auto", "off", "on"):
        monkeypatch.setattr(dispatch, "MODE", mode)
        assert not calls
        sample_categorical(logits.double(), u)
        sample_categorical(logits, u, top_p=0.9)
        sample_categorical(logits, u)
    assert calls == [torch.float32]
