"""The kernels that draw tokens, from rows of logits and from the head, against exact laws.

On a CPU they run in Triton's interpreter: TRITON_INTERPRET=1 pytest this file. It does not support
bfloat16 products, so float16 serves as half precision there.
"""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.ops import categorical, dispatch
from cwdfm.ops.categorical import (
    BLOCK_BYTES,
    LINE_BYTES,
    TILE,
    first_above,
    row_draw,
    sample_categorical,
)
from cwdfm.ops.head_draw import BLOCK, choose_blocks, head_draw
from cwdfm.weight.entropy import prediction_entropy
from tests.support.cases import slow
from tests.support.gpu import COMPILED, DEVICES
from tests.support.kernels import interpreted, random_head
from tests.support.stats import assert_differs, assert_follows

# The interpreter casts whole lines. Unused memory next to a row may hold a signaling NaN, about
# which numpy warns.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
FULL, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
BELOW_ONE = 1 - 2.0**-53
ROW_BLOCK = BLOCK_BYTES // 4  # tokens, in float32


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uniforms(rows: int, device: str = "cpu") -> Tensor:
    return torch.rand(rows, generator=torch.manual_seed(4), dtype=torch.float64).to(device)


def logits_of(rows: int, vocab: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    return (torch.randn(rows, vocab, generator=torch.manual_seed(vocab)) * 3).to(device, dtype)


def hidden_of(rows: int, width: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    return torch.randn(rows, width, generator=torch.manual_seed(1)).to(device, dtype)


class Draw:
    """Draws from one row of logits, by either kernel."""

    def __init__(self, device: str, kind: str, dtype: torch.dtype = FULL) -> None:
        self.device, self.dtype, self.rows = device, dtype, kind == "rows"
        self.block = ROW_BLOCK if self.rows else BLOCK

    def __call__(self, logits_V: Tensor, u_K: Tensor, temperature: float = 1.0) -> list[int]:
        logits_V, u_K, vocab = logits_V.to(self.device), u_K.to(self.device), len(logits_V)
        if self.rows:
            rows_KV = logits_V.expand(len(u_K), -1)
            return row_draw(rows_KV, u_K, temperature=temperature).tolist()
        # The logits are the bias of a head that multiplies zeros. Another id, the mask, follows
        # them and would be drawn if it were looked at.
        width = 16 if self.device == "cpu" else 64
        readout = nn.Linear(width, vocab + 1, dtype=self.dtype, device=self.device)
        nn.init.zeros_(readout.weight)
        readout.bias = nn.Parameter(torch.cat([logits_V, logits_V.new_full((1,), 1e30)]))
        zeros_KD = torch.zeros(len(u_K), width, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            return head_draw(zeros_KD, readout, u_K, vocab, temperature=temperature).tokens.tolist()


KINDS = [
    *(pytest.param(("cpu", kind), marks=interpreted) for kind in ("rows", "head")),
    *(pytest.param(("cuda", kind), marks=COMPILED) for kind in ("rows", "head")),
    pytest.param(("cuda", "head", BF16), marks=COMPILED),
]


@pytest.fixture(params=KINDS, ids=str)
def draw(request: pytest.FixtureRequest) -> Draw:
    return Draw(*request.param)


# One token; less than a block; one block and one token more; several; more than a tile.
@pytest.mark.parametrize(
    ("blocks", "more"), [(0, 1), (0, 33), (1, 0), (1, 1), (5, -3), (TILE + 2, 9)]
)
@pytest.mark.parametrize("temperature", [0.5, slow(1.0), slow(3.0)])
def test_tokens_have_their_exact_intervals(
    draw: Draw, blocks: int, more: int, temperature: float
) -> None:
    """u just inside either end of a token's interval of cumulative mass selects the token."""
    size, vocab = draw.block, blocks * draw.block + more
    logits = torch.randn(vocab, generator=torch.manual_seed(vocab))
    logits[(torch.arange(vocab) // size) % 2 == 1] = 0.5  # every second block is flat
    ends = {0, 1, 3, 4, size - 1, size, 2 * size - 1, 4 * size, TILE * size - 1, TILE * size}
    tokens = sorted(token for token in {*ends, vocab - 1} if token < vocab)
    logits[tokens] = 4.0
    p = (logits.double() / temperature).softmax(0)
    above = p.cumsum(0)
    # Far enough inside for the relative error of the masses below the token and of its own.
    slack = 2e-6 * above[tokens]
    low, high = (above - p)[tokens] + slack, above[tokens] - slack
    assert bool((low < high).all()), "the tokens are too rare for this test"
    for u in (low, high):
        assert draw(logits, u, temperature) == tokens


def test_law(draw: Draw) -> None:
    """200 draws over three blocks, on a GPU a million; false-alarm rate 1e-6, with a control."""
    draws, power = (200, 0.5) if draw.device == "cpu" else (1_000_000, 0.98)
    logits = 4 * torch.randn(2 * draw.block + 20, generator=torch.manual_seed(3))
    counts = np.bincount(draw(logits, uniforms(draws)), minlength=len(logits))
    law = logits.double().softmax(-1)
    assert_follows(counts, law.numpy())
    assert_differs(counts, (law**power / (law**power).sum()).numpy())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ends_of_the_unit_interval_stay_in_the_support(draw: Draw, temperature: float) -> None:
    """Blocks and tokens of probability zero at the start, in between and at the end."""
    logits = torch.full((5 * draw.block - 1,), -torch.inf)
    first, second, last = possible = [draw.block + 7, draw.block + 9, 3 * draw.block + 1]
    logits[possible] = torch.tensor([-40.0, 0.3, -30.0]) * temperature
    found = draw(logits, float64(0.0, 1e-300, 0.5, BELOW_ONE), temperature)
    assert found == [first, first, second, last]


def test_impossible_tokens_are_never_drawn(draw: Draw) -> None:
    """90% of the tokens, whole blocks, and the last tokens; also at the ends of [0, 1)."""
    g, vocab = torch.manual_seed(0), 5 * draw.block if draw.device == "cpu" else 50_257
    logits, gone = torch.randn(vocab, generator=g) * 8, torch.rand(vocab, generator=g) < 0.9
    gone[: draw.block + 3] = gone[-vocab // 3 :] = True
    possible = (~gone).nonzero()[:, 0]
    logits[gone], logits[possible[[0, -1]]] = -torch.inf, 25.0
    tokens = draw(logits, torch.cat([float64(0.0, BELOW_ONE), uniforms(30)]))
    assert not bool(gone[tokens].any())
    assert tokens[:2] == possible[[0, -1]].tolist()


def test_largest_u_selects_the_last_token(draw: Draw) -> None:
    """For any rounding: sums in a different order may end below u * total."""
    for vocab in (draw.block - 8, 3 * draw.block):
        for seed in range(6):
            logits = torch.randn(vocab, generator=torch.manual_seed(seed)) * 8
            logits[-1] = 20.0
            first = int((logits > -80).long().argmax())
            assert draw(logits, float64(BELOW_ONE, 0.0)) == [vocab - 1, first]


def test_boundary_belongs_to_the_next_token(draw: Draw) -> None:
    """Four equal masses, two per block, with impossible tokens in between: all sums are exact."""
    places = [1, 3, draw.block, draw.block + 5]
    logits = torch.full((2 * draw.block,), -torch.inf)
    logits[places] = 7.0
    assert draw(logits, float64(0.0, 0.25, 0.5, 0.75)) == places


def test_rare_tokens_and_rare_blocks_are_drawn(draw: Draw) -> None:
    """Probability 1e-12 next to a likely token and alone in a block; a block of exp(-200)."""
    logits = torch.full((3 * draw.block,), -torch.inf)
    places = [draw.block + 5, draw.block + 7, 2 * draw.block + 2]
    logits[places] = float64(1.0, 1e-12, 1e-12).log().float()
    found = draw(logits, 1 - float64(2.1e-12, 1.9e-12, 1.1e-12, 0.9e-12, 0.1e-12))
    assert found == [places[k] for k in (0, 1, 1, 2, 2)]
    logits[4] = -200.0  # underflows in float32
    assert draw(logits, float64(0.0, 1e-90, 1e-80)) == [4, 4, places[0]]


def test_extreme_temperatures(draw: Draw) -> None:
    logits = torch.linspace(-5, 5, 300)
    logits[17] = 5.1
    u = float64(0.0, 0.5, BELOW_ONE)
    with np.errstate(over="ignore"):
        assert draw(logits, u, 1e-6) == [17] * 3
    assert draw(logits, u, 1e6) == [0, 150, 299]  # nearly uniform


def assert_drawn(
    tokens: Tensor, logits: Tensor, u: Tensor, temperature: float, *, moved: int
) -> None:
    """All but `moved` tokens are those of the plain sampler, and all are within 1e-6 of theirs."""
    plain = sample_categorical(logits.double(), u, temperature=temperature)
    assert int((tokens != plain).sum()) <= moved
    cdf = F.pad((logits.double() / temperature).softmax(-1).cumsum(-1), (1, 0))
    below, above = (cdf.gather(1, tokens[:, None] + k)[:, 0] for k in (0, 1))
    assert bool(((below - 1e-6 <= u) & (u <= above + 1e-6)).all())


ROWS = [
    *(
        pytest.param("cpu", 5, vocab, dtype, marks=interpreted)  # rows at every offset of a line
        for vocab in (1, 5, ROW_BLOCK - 1, ROW_BLOCK + 1, 700, (TILE + 2) * ROW_BLOCK + 3)
        for dtype in (FULL, BF16, FP16)
    ),
    pytest.param("cpu", 2, 50_257, BF16, marks=interpreted),
    *(
        pytest.param("cuda", rows, vocab, dtype, marks=COMPILED)
        for rows, vocab in ((1, 1), (40_000, 5), (3000, 257), (3001, 5000), (2670, 50_257))
        for dtype in (FULL, BF16, FP16)
    ),
]


@pytest.mark.parametrize(("device", "rows", "vocab", "dtype"), ROWS)
@pytest.mark.parametrize("temperature", [0.7, slow(1.0)])
def test_draws_from_rows_match_the_plain_ones(
    device: str, rows: int, vocab: int, dtype: torch.dtype, temperature: float
) -> None:
    logits, u = logits_of(rows, vocab, dtype, device), uniforms(rows, device)
    # Errors of d in the cumulative masses move a fraction 2 V d of the draws to an adjacent token;
    # d is about 1e-7 at most.
    moved = 0 if device == "cpu" else -(-rows * vocab * 2 // 10**7)
    tokens = row_draw(logits, u, temperature=temperature)
    assert_drawn(tokens, logits, u, temperature, moved=moved)


# Rows, width, vocabulary: one row, partial tiles, both tile sizes of the first kernel; partial
# blocks of the vocabulary.
SMALL = [(1, 16, 33), (7, 20, 257), (40, 32, 700), (70, 64, 256)]
LARGE = [(1, 256, 33), (100, 512, 257), (1000, 768, 50257), (5001, 768, 50257), (3000, 256, 700)]
HEADS = [
    *(
        pytest.param("cpu", shape, dtype, marks=interpreted)
        for shape, dtype in (*((shape, FULL) for shape in SMALL), (SMALL[1], FP16))
    ),
    *(
        pytest.param("cpu", shape, FP16, marks=[interpreted, pytest.mark.slow])
        for shape in SMALL
        if shape != SMALL[1]
    ),
    *(
        pytest.param("cuda", shape, dtype, marks=COMPILED)
        for shape in LARGE
        for dtype in (FULL, BF16)
    ),
]


@pytest.mark.parametrize(("device", "shape", "dtype"), HEADS)
@pytest.mark.parametrize(("temperature", "bias"), [(0.7, True), slow(1.0, False)])
def test_draws_from_the_head_match_the_plain_ones(
    device: str, shape: tuple[int, int, int], dtype: torch.dtype, temperature: float, bias: bool
) -> None:
    rows, width, vocab = shape
    readout = random_head(width, vocab + 1, dtype, device, bias=bias)
    hidden, u = hidden_of(rows, width, dtype, device), uniforms(rows, device)
    found = head_draw(hidden, readout, u, vocab, temperature=temperature, scores=True)
    # The product of the same rounded inputs in float64. Logits in float32 are off by up to 2e-5,
    # which moves cumulative masses by up to 1e-6 and about 1% of the draws to an adjacent token.
    logits = readout.double()(hidden.double())[:, :vocab]
    moved = 0 if device == "cpu" else -(-rows * 2 // 100)
    assert_drawn(found.tokens, logits, u, temperature, moved=moved)
    assert found.entropy is not None
    assert found.confidence is not None
    entropy, confidence = prediction_entropy(logits.float()), logits.softmax(-1).amax(-1).float()
    torch.testing.assert_close(found.entropy.float(), entropy, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.confidence.float(), confidence, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_token_does_not_depend_on_other_rows(device: str) -> None:
    """Few and many rows use different tiles, with the same order of summation."""
    rows, width, vocab = (40, 20, 600) if device == "cpu" else (6000, 768, 50_257)
    dtype = FULL if device == "cpu" else BF16
    readout = random_head(width, vocab + 1, dtype, device)
    hidden, u = hidden_of(rows, width, dtype, device), uniforms(rows, device)
    together = head_draw(hidden, readout, u, vocab).tokens
    for part in (slice(0, 1), slice(7, 30), slice(rows // 3, rows // 2), slice(0, rows, 3)):
        assert torch.equal(head_draw(hidden[part], readout, u[part], vocab).tokens, together[part])


@pytest.mark.parametrize("device", DEVICES)
def test_impossible_tokens_are_never_drawn_from_the_head(device: str) -> None:
    readout = random_head(16, 600, FULL, device)
    readout.bias[: BLOCK + 3] = -torch.inf  # a whole block and more
    hidden, u = hidden_of(40, 16, FULL, device), uniforms(40, device)
    found = head_draw(hidden, readout, u, 600, scores=True)
    assert int(found.tokens.min()) >= BLOCK + 3
    assert found.entropy is not None
    assert bool(found.entropy.isfinite().all())
    for bad in (torch.nan, torch.inf, -torch.inf):
        readout.bias[400 if bad != -torch.inf else slice(None)] = bad
        with np.errstate(all="ignore"), pytest.raises(InputError, match="in 40 of 40 rows"):
            head_draw(hidden, readout, u, 600)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # from the interpreter's maximum
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [100, 600])
def test_bad_rows_of_the_head_do_not_affect_others(
    vocab: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, +inf or only -inf, with deferred checks: such rows get an arbitrary token."""
    checked: list[Tensor] = []
    monkeypatch.setattr("cwdfm.ops.head_draw.check_rows", checked.append)
    readout = random_head(16, vocab + 1, FULL, device)
    readout.weight[:, 3].fill_(1.0)
    hidden, u = hidden_of(8, 16, FULL, device), uniforms(8, device)
    expected = head_draw(hidden, readout, u, vocab).tokens
    hidden[1, 5], hidden[4, 3], hidden[6, 3] = torch.nan, torch.inf, -torch.inf
    with np.errstate(all="ignore"):
        tokens = head_draw(hidden, readout, u, vocab, scores=True).tokens
    assert checked[1].nonzero()[:, 0].tolist() == [1, 4, 6]
    assert torch.equal(tokens[~checked[1]], expected[~checked[1]])
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < vocab


@interpreted
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (5, 2), (3, 197), (40, 3), (2, 300)])
@pytest.mark.parametrize("temperature", [0.6, slow(1.0)])
def test_blocks_and_their_rows(rows: int, blocks: int, temperature: float) -> None:
    """Random blocks against the plain float64 lookup; each row is listed once, in its block."""
    g = torch.manual_seed(blocks)
    top = torch.randn(blocks, rows, generator=g) * 4
    top[torch.rand(blocks, rows, generator=g) < 0.3] = -torch.inf
    top[blocks // 2] = 0.0
    mass = torch.where(top == -torch.inf, 0.0, 1 + torch.rand(blocks, rows, generator=g) * 50)
    u = torch.rand(rows, generator=g, dtype=torch.float64)
    falls = choose_blocks(top, mass, None, None, u, temperature)
    exact = mass.double() * ((top - top.amax(0)).double() / temperature).exp()
    block, share = first_above(exact.T.contiguous(), u)
    assert torch.equal(falls.first, block * BLOCK)
    torch.testing.assert_close(falls.share, share, atol=1e-4, rtol=1e-5)
    assert not bool(falls.bad.any())
    assert falls.entropy is None
    assert torch.equal(falls.counts.long(), torch.bincount(block, minlength=blocks))
    for c, count in enumerate(falls.counts.tolist()):
        listed = falls.members[c, :count].sort().values.tolist()
        assert listed == (block == c).nonzero()[:, 0].tolist()


@interpreted
def test_summary_from_blocks_matches_the_whole() -> None:
    """In float64 from float32 blocks; at temperature 1, whatever the sampling temperature."""
    logits_KCW = torch.randn(6, 5, 8, generator=torch.manual_seed(0)) * 3
    logits_KCW[:, 2] = -torch.inf  # a block of probability zero
    logits_KCW[3, 1, 5] = -torch.inf
    logits_KCW[4] -= 1e4
    logits_KCW[5, 0, 0] = 60.0  # a nearly deterministic distribution
    logits_KCW = logits_KCW.double()
    top_KC = logits_KCW.amax(-1)
    gap_KCW = logits_KCW - top_KC.masked_fill(top_KC == -torch.inf, 0.0)[..., None]
    total_KC = gap_KCW.exp().sum(-1)
    slope_KC = (gap_KCW.exp() * gap_KCW.masked_fill(gap_KCW == -torch.inf, 0)).sum(-1)
    mass_KC = (gap_KCW / 0.7).exp().sum(-1)
    found = [x.T.float().contiguous() for x in (top_KC, mass_KC, total_KC, slope_KC)]
    top, mass, total, slope = found
    u = torch.full((6,), 0.5, dtype=torch.float64)
    falls = choose_blocks(top, mass, total, slope, u, 0.7)
    logits_KV = logits_KCW.flatten(1)
    torch.testing.assert_close(falls.entropy, prediction_entropy(logits_KV), atol=1e-12, rtol=1e-6)
    torch.testing.assert_close(falls.confidence, logits_KV.softmax(-1).amax(-1), atol=0, rtol=1e-6)


@interpreted
@pytest.mark.parametrize("dtype", [FULL, BF16], ids=str)
def test_huge_logits_and_small_temperatures_do_not_overflow(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    logits = torch.full((3, 300), -most, dtype=dtype)
    logits[0, 270], logits[1, [3, 290]], logits[2] = most, most, -most
    u = float64(0.4, 0.6, 0.5 + 1e-9)
    with np.errstate(over="ignore"):
        for temperature in (1e-6, 1.0):
            assert row_draw(logits, u, temperature=temperature).tolist() == [270, 290, 150]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [FULL, BF16, slow(FP16)], ids=str)
@pytest.mark.parametrize("vocab", [300, 2 * TILE * ROW_BLOCK + 300])
def test_rows_may_have_any_offset_and_stride(vocab: int, dtype: torch.dtype, device: str) -> None:
    """Next to signaling NaNs in the same lines; in columns; one row expanded."""
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    nan = (torch.tensor([torch.inf], dtype=dtype).view(bits) + 1).view(dtype).to(device)
    assert nan.isnan()
    rows = 4 if device == "cpu" else 200
    logits, u = logits_of(rows, vocab, dtype, device), uniforms(rows, device)
    expected = row_draw(logits, u)
    assert_drawn(expected, logits, u, 1.0, moved=0 if device == "cpu" else 1)
    size = LINE_BYTES // logits.element_size()
    for ahead in (0, 1, size - 1, size, size + 1):
        wide = nan.repeat(rows, vocab + 11 + ahead)
        inside = wide[:, ahead : ahead + vocab]
        inside.copy_(logits)
        # Blocks start elsewhere, so sums round differently: of many draws, a few may move.
        assert int((row_draw(inside, u) != expected).sum()) <= rows // 100
    assert torch.equal(row_draw(logits.T.contiguous().T, u), expected)
    assert torch.equal(row_draw(logits[1:], u[1:]), expected[1:])
    assert torch.equal(row_draw(logits[::2], u[::2]), expected[::2])
    assert torch.equal(row_draw(logits[3].expand(rows, -1), u)[3], expected[3])
    assert row_draw(logits[:0], u[:0]).shape == (0,)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 299])
def test_rows_without_a_distribution_are_an_error(bad: float, place: int, device: str) -> None:
    """The GPU stays usable."""
    logits, u = logits_of(3, 300, FULL, device), uniforms(3, device)
    logits[1, place if bad != -torch.inf else slice(None)] = bad
    with np.errstate(all="ignore"), pytest.raises(InputError, match="in 1 of 3 rows"):
        row_draw(logits, u)
    assert row_draw(logits[2:], u[2:]).shape == (1,)


@pytest.mark.parametrize("device", DEVICES)
def test_when_the_kernel_draws_from_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if enabled, and neither for float64 logits nor for nucleus sampling."""
    calls: list[str] = []

    def counted(*arguments: Any, **options: Any) -> Tensor:
        calls.append(dispatch.MODE)
        return row_draw(*arguments, **options)

    monkeypatch.setattr(categorical, "row_draw", counted)
    logits, u = logits_of(2, 10, FULL, device), uniforms(2, device)
    for mode in ("auto", "off", "on"):
        monkeypatch.setattr(dispatch, "MODE", mode)
        sample_categorical(logits.double(), u)
        sample_categorical(logits, u, top_p=0.9)
        sample_categorical(logits, u)
    assert calls == (["on"] if device == "cpu" else ["auto", "on"])


@pytest.mark.parametrize("device", DEVICES)
def test_float32_uniforms_do_not_reach_rare_tokens(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MODE", "on")
    logits = torch.full((5, 600), -torch.inf, device=device)
    logits[:, 5], logits[:, [7, 590]] = 0.0, float(np.log(1e-12))
    u = (1 - float64(2.1e-12, 1.9e-12, 1.1e-12, 0.9e-12, 0.1e-12)).to(device)
    assert sample_categorical(logits, u).tolist() == [5, 7, 7, 590, 590]
    assert sample_categorical(logits, u, dtype=torch.float32).tolist() == [5] * 5
