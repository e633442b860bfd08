"""The fused head on a CPU, with kernels in Triton's interpreter, against plain arithmetic.

The interpreter's tests run where Triton can be imported: TRITON_INTERPRET=1 pytest this file.
"""

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cwdfm
from cwdfm.model.positions import Positions
from cwdfm.model.predict import evaluating, fusible_hidden
from cwdfm.model.transformer import DiT
from cwdfm.ops import dispatch, head_rows
from cwdfm.ops.categorical import first_above, sample_categorical
from cwdfm.ops.head_draw import BLOCK, DrawnTokens, choose_blocks, head_draw
from cwdfm.ops.head_loss import head_cross_entropy, head_log_prob
from cwdfm.ops.precision import CASTS, CastCache
from cwdfm.ops.reveal import reveal
from cwdfm.path import algorithm1
from cwdfm.weight.entropy import prediction_entropy
from tests.support.kernels import interpreted, small_dit
from tests.support.stats import assert_differs, assert_follows

SCHEDULE = cwdfm.Polynomial(2.0)
BELOW_ONE = 1 - 2.0**-53
SOURCES = [cwdfm.MaskSource(11), cwdfm.UniformSource(11)]
WEIGHT = cwdfm.Neighbor(2, 0.7)
LOSSES = [
    cwdfm.CrossEntropy(),
    cwdfm.CrossEntropy("masked"),
    cwdfm.NELBO(),
    cwdfm.NELBO("all"),
    cwdfm.Bregman(),
    cwdfm.ScaledCrossEntropy(WEIGHT),
    cwdfm.ScaledCrossEntropy(WEIGHT, "zero"),
    cwdfm.ScaledCrossEntropy(WEIGHT, "extended"),
    cwdfm.ScaledCrossEntropy(cwdfm.Entropy(1.5), "joint"),
]
CASES_OF_LOSS = [(source, loss) for source in SOURCES for loss in LOSSES]
CASES_OF_LOSS.append((SOURCES[0], cwdfm.Bregman("masked")))


def small_batch(source: cwdfm.Source, *, prompted: bool = False) -> cwdfm.PathSample:
    g = torch.manual_seed(1)
    x_1 = torch.randint(0, 11, (6, 12), generator=g)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    fixed[:, 0] = prompted
    t = torch.rand(6, generator=g) * 0.9
    return cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t, seed=2, fixed=fixed)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_log_prob_and_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against log_softmax and autograd, in chunks of 4 rows, including ids past the vocabulary."""
    monkeypatch.setattr(head_rows, "MAX_ELEMENTS", {"cpu": 4 * 9})
    g = torch.manual_seed(0)
    hidden = torch.randn(23, 5, generator=g, dtype=torch.float64, requires_grad=True)
    readout = nn.Linear(5, 10, dtype=torch.float64)
    tokens = torch.randint(0, 10, (23, 3), generator=g)  # id 9 is the mask
    weight = torch.randn(23, 3, generator=g, dtype=torch.float64)
    ours = head_log_prob(hidden, readout, tokens, 9)
    plain = readout(hidden)[:, :9].log_softmax(-1)
    plain = torch.cat([plain, torch.full((23, 1), -torch.inf)], dim=1).gather(1, tokens)
    torch.testing.assert_close(ours, plain)
    inside = tokens < 9
    assert 0 < int(inside.sum()) < inside.numel()
    inputs = (hidden, readout.weight, readout.bias)
    for mine, other in zip(
        torch.autograd.grad((weight * ours)[inside].sum(), inputs),
        torch.autograd.grad((weight * plain)[inside].sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
    assert torch.autograd.gradcheck(
        lambda h, w, b: head_log_prob(h, stand_in(w, b), tokens.clamp(max=8), 9), inputs
    )


def stand_in(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(1, 1)
    del layer.weight, layer.bias
    layer.weight, layer.bias = weight, bias  # type: ignore[assignment]
    return layer


def test_log_prob_without_bias_and_without_rows() -> None:
    readout = nn.Linear(4, 6, bias=False)
    hidden = torch.randn(5, 4, requires_grad=True)
    tokens = torch.arange(5)[:, None]
    expected = readout(hidden).log_softmax(-1).gather(1, tokens)
    torch.testing.assert_close(head_log_prob(hidden, readout, tokens, 6), expected)
    nothing = head_log_prob(hidden[:0], readout, tokens[:0], 6)
    assert nothing.shape == (0, 1)
    (gradient,) = torch.autograd.grad(nothing.sum(), readout.weight)
    assert bool((gradient == 0).all())


def test_half_precision_sums_gradients_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast: as close to the float32 gradient as the plain path."""
    monkeypatch.setattr(head_rows, "MAX_ELEMENTS", {"cpu": 64 * 50})
    torch.manual_seed(0)
    readout, hidden = nn.Linear(16, 51), torch.randn(1000, 16)
    tokens = torch.randint(0, 50, (1000, 1))
    with torch.autocast("cpu", torch.bfloat16):
        ours = head_log_prob(hidden, readout, tokens, 50)
    assert ours.dtype == torch.float32
    exact = readout(hidden)[:, :50].log_softmax(-1).gather(1, tokens)
    torch.testing.assert_close(ours, exact, atol=0.03, rtol=0.03)
    (mine,) = torch.autograd.grad(ours.mean(), readout.weight)
    (true,) = torch.autograd.grad(exact.mean(), readout.weight)
    assert mine.dtype == torch.float32
    assert float((mine - true).norm() / true.norm()) < 0.02


@pytest.mark.parametrize(("source", "loss"), CASES_OF_LOSS, ids=str)
@pytest.mark.parametrize("prompted", [False, True])
def test_losses_from_the_head_match_the_plain_ones(
    source: cwdfm.Source, loss: cwdfm.Loss, prompted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value and all gradients, float64, in chunks of 5 rows."""
    monkeypatch.setattr(head_rows, "MAX_ELEMENTS", {"cpu": 5 * 11})
    model, batch = small_dit(source.num_tokens), small_batch(source, prompted=prompted)
    plain = loss(model(batch.x_t, batch.t), batch, SCHEDULE)
    read = partial(loss.from_head, batch=batch, schedule=SCHEDULE)
    ours = model(batch.x_t, batch.t, read)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-9)
    for mine, other in zip(gradients(model, ours), gradients(model, plain), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("loss", [cwdfm.NELBO(weight=WEIGHT), cwdfm.Bregman("masked", WEIGHT)])
def test_context_weighted_bound_from_the_head_matches_the_plain_one(loss: cwdfm.Loss) -> None:
    source = SOURCES[0]
    model, plain_batch = small_dit(source.num_tokens), small_batch(source)
    path = cwdfm.ContextPath(source, SCHEDULE, WEIGHT)
    batch = path.sample(plain_batch.x_1, plain_batch.t, seed=2)
    plain = loss(model(batch.x_t, batch.t), batch, SCHEDULE)
    ours = model(batch.x_t, batch.t, partial(loss.from_head, batch=batch, schedule=SCHEDULE))
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-9)
    for mine, other in zip(gradients(model, ours), gradients(model, plain), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-9)


def test_head_computes_needed_rows_once_where_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which function of the head each loss calls, and with how many rows."""
    source = SOURCES[0]
    model, batch = small_dit(source.num_tokens), small_batch(source)
    arguments: list[tuple[str, int]] = []

    for function in (head_log_prob, head_cross_entropy):

        def counted(hidden: Tensor, *rest: Any, function: Any = function) -> Any:
            arguments.append((function.__name__, len(hidden)))
            return function(hidden, *rest)

        monkeypatch.setattr(f"cwdfm.loss.prediction.{function.__name__}", counted)
    masked, all_of_them = int((~batch.revealed).sum()), batch.x_t.numel()
    assert masked < all_of_them
    for loss, pass_, rows in (
        (cwdfm.CrossEntropy("masked"), "head_cross_entropy", masked),
        (cwdfm.CrossEntropy(), "head_cross_entropy", all_of_them),
        (cwdfm.NELBO(), "head_cross_entropy", masked),
        (cwdfm.ScaledCrossEntropy(WEIGHT), "head_cross_entropy", all_of_them),
        (cwdfm.Bregman("masked"), "head_cross_entropy", masked),
        (cwdfm.Bregman(), "head_log_prob", all_of_them),  # two probabilities from one pass
    ):
        read = partial(loss.from_head, batch=batch, schedule=SCHEDULE)
        model(batch.x_t, batch.t, read)
        assert arguments == [(pass_, rows)], loss
        arguments.clear()


def test_terms_from_the_head_match_the_plain_ones_and_are_differentiable() -> None:
    source = SOURCES[0]
    model, batch = small_dit(source.num_tokens), small_batch(source, prompted=True)
    loss, factor_BN = cwdfm.NELBO(), torch.rand(batch.x_t.shape, dtype=torch.float64)
    plain = loss(model(batch.x_t, batch.t), batch, SCHEDULE, per_token=True)
    read = partial(loss.from_head, batch=batch, schedule=SCHEDULE, per_token=True)
    ours = model(batch.x_t, batch.t, read)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-9)
    mine = gradients(model, (factor_BN * ours).sum())
    for a, b in zip(mine, gradients(model, (factor_BN * plain).sum()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-9)


def test_nothing_masked_gives_zero_and_finite_gradients() -> None:
    source = SOURCES[0]
    model, batch = small_dit(source.num_tokens), small_batch(source)
    batch = replace(batch, x_t=batch.x_1, revealed=torch.ones_like(batch.revealed))
    loss = cwdfm.NELBO()
    value = model(batch.x_t, batch.t, partial(loss.from_head, batch=batch, schedule=SCHEDULE))
    assert value.item() == 0
    assert all(bool(torch.isfinite(g).all()) for g in gradients(model, value))


def test_nan_logits_give_a_nan_loss() -> None:
    source = SOURCES[1]
    model, batch = small_dit(source.num_tokens), small_batch(source)
    with torch.no_grad():
        model.readout.weight[3, 3] = torch.nan
    loss = cwdfm.CrossEntropy()
    value = model(batch.x_t, batch.t, partial(loss.from_head, batch=batch, schedule=SCHEDULE))
    assert bool(value.isnan())


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # raised inside the compiler
@pytest.mark.parametrize("by_block", [False, True])
def test_compiled_trunk_trains_like_the_plain_one(by_block: bool) -> None:
    """With the "aot_eager" backend, because code generation is not under test."""
    source = SOURCES[1]
    model, batch = small_dit(source.num_tokens), small_batch(source)
    read = partial(cwdfm.CrossEntropy().from_head, batch=batch, schedule=SCHEDULE)
    plain = model(batch.x_t, batch.t, read)
    before = gradients(model, plain)
    real = torch.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(real, backend="aot_eager"))
        model.compile_trunk(by_block=by_block)
    for _ in range(2):
        loss = model(batch.x_t, batch.t, read)
        torch.testing.assert_close(loss, plain)
        for mine, other in zip(gradients(model, loss), before, strict=True):
            torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    "weight",
    [
        cwdfm.Entropy(2.0),
        cwdfm.EntropyInverse(),
        cwdfm.Confidence(3.0),
        cwdfm.Neighbor(1, 1.0) + cwdfm.Entropy(1.0) + cwdfm.Confidence(0.5),
    ],
    ids=str,
)
def test_scores_from_the_summary_match_those_from_logits(weight: cwdfm.Weight) -> None:
    logits = torch.randn(4, 6, 9, generator=torch.manual_seed(0), dtype=torch.float64)
    assert weight.needs_only_summary
    score = weight.summary_score(prediction_entropy(logits), logits.softmax(-1).amax(-1))
    torch.testing.assert_close(score, weight.prediction_score(logits))


def test_other_weights_need_their_logits() -> None:
    for weight in (cwdfm.Margin(1.0), cwdfm.Margin(1.0) + cwdfm.Entropy(1.0)):
        assert not weight.needs_only_summary
    assert (cwdfm.Neighbor(1, 1.0) + cwdfm.Distance(1.0)).needs_only_summary
    with pytest.raises(TypeError, match="the logits themselves"):
        cwdfm.Margin(1.0).summary_score(torch.zeros(1), torch.ones(1))


# From here on: Triton kernels in the interpreter. It does not support bfloat16 products, so float16
# serves as half precision.


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MODE", "on")


def head(
    width: int, num_tokens: int, dtype: torch.dtype = torch.float32, *, bias: bool = True
) -> nn.Linear:
    torch.manual_seed(0)
    readout = nn.Linear(width, num_tokens, bias=bias)
    nn.init.normal_(readout.weight, std=2 / width**0.5)
    return readout.to(dtype).requires_grad_(False)


CASES = [(1, 16, 33), (7, 20, 257), (40, 32, 700), (70, 64, 256)]


@interpreted
@pytest.mark.parametrize(("rows", "width", "vocab"), CASES)
@pytest.mark.parametrize(
    ("dtype", "temperature", "bias"),
    [(torch.float32, 1.0, False), (torch.float32, 0.7, True), (torch.float16, 1.0, True)],
)
def test_fused_draws_match_the_plain_ones(
    rows: int, width: int, vocab: int, dtype: torch.dtype, temperature: float, bias: bool
) -> None:
    readout = head(width, vocab + 1, dtype, bias=bias)
    g = torch.manual_seed(1)
    hidden = torch.randn(rows, width, generator=g).to(dtype)
    u = torch.rand(rows, generator=g, dtype=torch.float64)
    drawn = head_draw(hidden, readout, u, vocab, temperature=temperature, scores=True)
    logits = readout.float()(hidden.float())[:, :vocab]
    assert torch.equal(drawn.tokens, sample_categorical(logits, u, temperature=temperature))
    assert drawn.entropy is not None
    assert drawn.confidence is not None
    torch.testing.assert_close(
        drawn.entropy.float(), prediction_entropy(logits), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        drawn.confidence.float(), logits.softmax(-1).amax(-1), atol=1e-5, rtol=1e-5
    )


@interpreted
def test_fused_law_is_exact() -> None:
    """400 draws over three blocks; false-alarm rate 1e-6, with a control."""
    vocab, n = 2 * BLOCK + 20, 400
    readout = head(16, vocab)
    hidden = 2 * torch.randn(1, 16, generator=torch.manual_seed(3)).expand(n, 16)
    u = torch.rand(n, generator=torch.manual_seed(4), dtype=torch.float64)
    tokens = head_draw(hidden, readout, u, vocab).tokens
    counts = np.bincount(tokens.numpy(), minlength=vocab)
    law = readout(hidden[0]).double().softmax(-1).numpy()
    assert_follows(counts, law / law.sum())
    flat = law**0.5
    assert_differs(counts, flat / flat.sum())


def drawn(logits_V: Tensor, u_K: Tensor, temperature: float = 1.0) -> DrawnTokens:
    """Draws from one arbitrary row of logits, which are the bias of a head that
    multiplies zeros. Another id, the mask, follows them and would be drawn if it were looked at.
    """
    vocab = len(logits_V)
    readout = head(1, vocab + 1)
    readout.weight.zero_()
    readout.bias.copy_(torch.cat([logits_V, torch.full((1,), 1e30)]))
    rows = torch.zeros(len(u_K), 1)
    return head_draw(rows, readout, u_K, vocab, temperature=temperature, scores=True)


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# One block, partial and full; two, five (not a power of two) and nine blocks.
@interpreted
@pytest.mark.parametrize("vocab", [1, 33, BLOCK, BLOCK + 1, 5 * BLOCK - 3, 8 * BLOCK + 9])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_fused_tokens_have_their_exact_intervals(vocab: int, temperature: float) -> None:
    """u just inside either end of a token's interval of cumulative mass selects the token."""
    logits = torch.randn(vocab, generator=torch.manual_seed(vocab)) * 1.5
    ends = {0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 4 * BLOCK, 8 * BLOCK - 1, vocab - 1}
    tokens = sorted(token for token in ends if token < vocab)
    logits[tokens] = logits[tokens].abs()
    p = (logits.double() / temperature).softmax(0)
    above = p.cumsum(0)
    slack = 2e-6 * above[tokens]
    low, high = (above - p)[tokens] + slack, above[tokens] - slack
    assert bool((low < high).all()), "the tokens are too rare for this test"
    for u in (low, high):
        assert drawn(logits, u, temperature).tokens.tolist() == tokens


@interpreted
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_fused_draws_stay_in_the_support(temperature: float) -> None:
    """Blocks and tokens of probability zero at the start, in between and at the end."""
    logits = torch.full((5 * BLOCK - 1,), -torch.inf)
    first, second, last = possible = [BLOCK + 7, BLOCK + 9, 3 * BLOCK + 1]
    logits[possible] = torch.tensor([-40.0, 0.3, -30.0]) * temperature
    u = float64(0.0, 1e-300, 0.5, BELOW_ONE)
    found = drawn(logits, u, temperature)
    assert found.tokens.tolist() == [first, first, second, last]
    assert found.entropy is not None
    assert found.confidence is not None
    exact = prediction_entropy(logits.double())
    torch.testing.assert_close(found.entropy, exact.expand(4), atol=1e-12, rtol=1e-5)
    assert bool((found.confidence <= 1).all())


@interpreted
@pytest.mark.parametrize("vocab", [BLOCK - 8, 3 * BLOCK])
def test_largest_u_selects_the_last_fused_token(vocab: int) -> None:
    """For any rounding: sums in a different order may end below u * total."""
    for seed in range(6):
        logits = torch.randn(vocab, generator=torch.manual_seed(seed)) * 8
        logits[-1] = 20.0
        found = drawn(logits, float64(BELOW_ONE, 0.0)).tokens.tolist()
        assert found == [vocab - 1, int((logits > -80).long().argmax())]


@interpreted
def test_boundary_belongs_to_the_next_fused_token() -> None:
    """Four equal masses, two per block, with impossible tokens in between: all sums are exact."""
    places = [1, 3, BLOCK, BLOCK + 5]
    logits = torch.full((2 * BLOCK,), -torch.inf)
    logits[places] = 7.0
    assert drawn(logits, float64(0.0, 0.25, 0.5, 0.75)).tokens.tolist() == places


@interpreted
def test_rare_tokens_and_rare_blocks_are_drawn() -> None:
    """Probability 1e-12 next to a likely token and alone in a block; a block of exp(-200)."""
    logits = torch.full((3 * BLOCK,), -torch.inf)
    logits[[BLOCK + 5, BLOCK + 7, 2 * BLOCK + 2]] = float64(1.0, 1e-12, 1e-12).log().float()
    below_one = float64(2.1e-12, 1.9e-12, 1.1e-12, 0.9e-12, 0.1e-12)
    found = drawn(logits, 1 - below_one).tokens - BLOCK
    assert found.tolist() == [5, 7, 7, BLOCK + 2, BLOCK + 2]
    logits[4] = -200.0
    assert drawn(logits, float64(0.0, 1e-90, 1e-80)).tokens.tolist() == [4, 4, BLOCK + 5]


@interpreted
def test_extreme_temperatures_of_fused_draws() -> None:
    logits = torch.linspace(-5, 5, 300)
    logits[17] = 5.1
    u = float64(0.0, 0.5, BELOW_ONE)
    with np.errstate(over="ignore"):
        assert drawn(logits, u, 1e-6).tokens.tolist() == [17] * 3
    assert drawn(logits, u, 1e6).tokens.tolist() == [0, 150, 299]


@interpreted
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (5, 2), (3, 197), (40, 3), (2, 300)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
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
    assert falls.entropy is not None
    assert falls.confidence is not None
    torch.testing.assert_close(falls.entropy, prediction_entropy(logits_KV), atol=1e-12, rtol=1e-6)
    torch.testing.assert_close(falls.confidence, logits_KV.softmax(-1).amax(-1), atol=0, rtol=1e-6)


@interpreted
def test_fused_token_does_not_depend_on_other_rows() -> None:
    readout = head(20, 600)
    hidden, u = torch.randn(40, 20), torch.rand(40, dtype=torch.float64)
    together = head_draw(hidden, readout, u, 600).tokens
    for part in (slice(0, 1), slice(7, 30), slice(0, 40, 3)):
        alone = head_draw(hidden[part], readout, u[part], 600).tokens
        assert torch.equal(alone, together[part])


@interpreted
def test_fused_draws_reject_nan_and_accept_impossible_tokens() -> None:
    readout = head(16, 600)
    readout.bias[: BLOCK + 3] = -torch.inf  # a whole block and more
    u = torch.rand(40, generator=torch.manual_seed(0), dtype=torch.float64)
    hidden = torch.randn(40, 16)
    found = head_draw(hidden, readout, u, 600, scores=True)
    assert int(found.tokens.min()) >= BLOCK + 3
    assert found.entropy is not None
    assert bool(found.entropy.isfinite().all())
    for bad in (torch.nan, torch.inf):
        readout.bias[400] = bad
        with np.errstate(all="ignore"), pytest.raises(cwdfm.InputError, match="in 40 of 40 rows"):
            head_draw(hidden, readout, u, 600)
    readout.bias.fill_(-torch.inf)
    with np.errstate(all="ignore"), pytest.raises(cwdfm.InputError, match="all -inf"):
        head_draw(hidden, readout, u, 600)


@interpreted
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # from the interpreter's maximum
@pytest.mark.parametrize("vocab", [100, 600])
def test_bad_rows_do_not_affect_others(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN, +inf or only -inf, with deferred checks: such rows get an arbitrary token."""
    doubted: list[Tensor] = []
    monkeypatch.setattr("cwdfm.ops.head_draw.check_rows", doubted.append)
    readout = head(16, vocab + 1)
    readout.weight[:, 3].fill_(1.0)
    hidden, u = torch.randn(8, 16), torch.rand(8, dtype=torch.float64)
    expected = head_draw(hidden, readout, u, vocab).tokens
    hidden[1, 5], hidden[4, 3], hidden[6, 3] = torch.nan, torch.inf, -torch.inf
    with np.errstate(all="ignore"):
        tokens = head_draw(hidden, readout, u, vocab, scores=True).tokens
    bad = torch.zeros(8, dtype=torch.bool)
    bad[[1, 4, 6]] = True
    assert torch.equal(doubted[1], bad)
    assert torch.equal(tokens[~bad], expected[~bad])
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < vocab


def test_weights_are_cast_once_while_a_model_is_evaluated() -> None:
    """Unless they change, in place or by replacement; outside, they are cast each time."""
    casts, model = CastCache(), nn.Linear(4, 3)
    weight, half = model.weight, torch.float16
    assert casts.get(weight, torch.float32).data_ptr() == weight.data_ptr()
    assert casts.get(weight, half) is not casts.get(weight, half)
    with casts.enabled():
        first = casts.get(weight, half)
        assert torch.equal(first, weight.half())
        assert not first.requires_grad
        assert casts.get(weight, half) is first
        assert casts.get(weight, torch.bfloat16).dtype == torch.bfloat16
        with casts.enabled():
            assert casts.get(weight, half) is first
        assert casts.get(weight, half) is first
        with torch.no_grad():
            weight.add_(1.0)
        assert torch.equal(casts.get(weight, half), weight.half())
        weight.data = torch.zeros(3, 4)
        assert torch.equal(casts.get(weight, half), weight.half())
        other = nn.Parameter(torch.ones(3, 4))
        assert torch.equal(casts.get(other, half), other.half())
    weight.data.fill_(7.0)  # which no version counter records
    with casts.enabled():
        assert torch.equal(casts.get(weight, half), weight.half())
    with evaluating(model):
        assert CASTS.get(weight, half) is CASTS.get(weight, half)
    assert CASTS.get(weight, half) is not CASTS.get(weight, half)


@interpreted
@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(
    ("source", "weight"),
    [
        (SOURCES[0], None),
        (SOURCES[1], cwdfm.Neighbor(1, 1.0)),
        (SOURCES[0], cwdfm.Entropy(1.0)),
        (SOURCES[1], cwdfm.Margin(1.0)),
    ],
    ids=str,
)
def test_whole_samples_match_the_plain_ones(
    source: cwdfm.Source, weight: cwdfm.Weight | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, solver = small_dit(source.num_tokens, torch.float32), cwdfm.Euler(weight=weight)

    def draw() -> Tensor:
        return cwdfm.sample(model, source, SCHEDULE, solver, shape=(3, 8), steps=4, seed=5).tokens

    fused = draw()
    monkeypatch.setattr(dispatch, "MODE", "off")
    assert torch.equal(fused, draw())


Kind = TypeVar("Kind", bound=DiT)


def with_head(kind: type[Kind], source: cwdfm.Source) -> Kind:
    """A model with the weights of a small one and a different head."""
    plain = small_dit(source.num_tokens, torch.float32)
    model = kind(plain.config)
    model.load_state_dict(plain.state_dict())
    return model


@interpreted
@pytest.mark.usefixtures("forced")
def test_a_readout_that_differs_from_the_head_is_not_used() -> None:
    class Capped(DiT):
        def head(self, hidden: Tensor) -> Tensor:
            return 3 * torch.tanh(super().head(hidden) / 3)

    source, x = SOURCES[1], torch.randint(0, 11, (2, 8))
    arguments = (source, x, torch.rand(2), Positions.of(torch.ones_like(x, dtype=torch.bool)))
    assert fusible_hidden(with_head(DiT, source), *arguments) is not None
    assert fusible_hidden(with_head(Capped, source), *arguments) is None


@interpreted
@pytest.mark.usefixtures("forced")
def test_readout_is_compared_with_the_head_again_after_training() -> None:
    class Scaled(DiT):
        scale = 1.0

        def head(self, hidden: Tensor) -> Tensor:
            return self.scale * super().head(hidden)

    source, x = SOURCES[1], torch.randint(0, 11, (2, 8))
    model = with_head(Scaled, source)
    arguments = (source, x, torch.rand(2), Positions.of(torch.ones_like(x, dtype=torch.bool)))
    assert fusible_hidden(model, *arguments) is not None
    model.scale = 3.0
    with torch.no_grad():
        model.readout.weight.add_(0.1)
    assert fusible_hidden(model, *arguments) is None


@interpreted
@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_training_kernels_in_the_interpreter(dtype: torch.dtype) -> None:
    readout = nn.Linear(8, 5001).to(dtype)
    hidden = torch.randn(9, 8).to(dtype).requires_grad_()
    tokens = torch.randint(0, 5001, (9, 2))  # id 5000 is outside the vocabulary
    tokens[0] = 5000
    inside = tokens < 5000
    exact_readout = nn.Linear(8, 5001)
    exact_readout.load_state_dict(readout.state_dict())
    exact = exact_readout(hidden.float())[:, :5000].log_softmax(-1)
    exact = exact.gather(1, tokens.clamp(max=4999))
    ours = head_log_prob(hidden, readout, tokens, 5000)
    tolerance = 1e-4 if dtype == torch.float32 else 0.01
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    close(ours[inside], exact[inside])
    assert bool((ours[~inside] == -torch.inf).all())
    weight = torch.rand(9, 2)
    (mine,) = torch.autograd.grad((weight * ours)[inside].sum(), hidden)
    (other,) = torch.autograd.grad((weight * exact)[inside].sum(), hidden)
    close(mine.float(), other.float())


@interpreted
@pytest.mark.parametrize(
    "weight",
    [cwdfm.Neighbor(1, 1.0), cwdfm.Neighbor(2, -0.7), cwdfm.Neighbor(3, 0.5, "cut")],
    ids=str,
)
def test_kernel_of_algorithm_1_matches_the_cpu_loop(weight: cwdfm.Neighbor) -> None:
    g = torch.manual_seed(0)
    start = torch.rand(5, 19, generator=g) < 0.2
    count = (torch.rand(5, generator=g) * ((~start).sum(1) + 1)).long()
    count[0], count[1] = 0, (~start[1]).sum()
    u = torch.rand(5, 19, generator=g, dtype=torch.float64)
    tables = algorithm1._tables(weight, 19, torch.device("cpu"))
    found = reveal(start, count, u, *tables, ascending=weight.scale >= 0)
    assert torch.equal(found, algorithm1.reveal_in_order(weight, start, count, u))
    assert torch.equal((found & ~start).sum(1), count)
