"""On a CUDA device: the fused head against the plain one, in draws, whole samples and training;
draws from logits in memory.

Run there with `pytest -m gpu tests/gpu/test_gpu_head.py`.
"""

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import cwdfm
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops import categorical, dispatch, head_rows
from cwdfm.ops.categorical import row_draw, sample_categorical
from cwdfm.ops.head_draw import BLOCK, DrawnTokens, head_draw
from cwdfm.ops.head_loss import head_cross_entropy, head_log_prob
from cwdfm.ops.head_rows import _accumulates_in_product
from cwdfm.ops.host_copy import deferred_checks
from cwdfm.ops.precision import CASTS
from cwdfm.weight.entropy import prediction_entropy
from tests.support.stats import assert_differs, assert_follows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(
        not torch.cuda.is_available() or find_spec("triton") is None,
        reason="no CUDA device, or no Triton",
    ),
]
SCHEDULE = cwdfm.Polynomial(2.0)
BELOW_ONE = 1 - 2.0**-53


def head(width: int, num_tokens: int, dtype: torch.dtype, scale: float = 2.0) -> nn.Linear:
    """A head whose logits have standard deviation `scale` on unit normal vectors."""
    torch.manual_seed(0)
    readout = nn.Linear(width, num_tokens)
    nn.init.normal_(readout.weight, std=scale / width**0.5)
    return readout.to("cuda", dtype).requires_grad_(False)


def rows_of(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    g = torch.manual_seed(1)
    hidden = torch.randn(rows, width, generator=g).to("cuda", dtype)
    return hidden, torch.rand(rows, generator=g, dtype=torch.float64).cuda()


def exact_logits(hidden: Tensor, readout: nn.Linear, vocab: int) -> Tensor:
    """The product of the same rounded inputs in float32, without tensor cores."""
    assert not torch.backends.cuda.matmul.allow_tf32
    logits = hidden.float() @ readout.weight.float().T + readout.bias.float()
    return logits[:, :vocab]


# One row, partial tiles, both tile sizes of the first kernel; partial blocks of the vocabulary.
SHAPES = [(1, 256, 33), (100, 512, 257), (1000, 768, 50257), (5001, 768, 50257), (3000, 256, 700)]


@pytest.mark.parametrize(("rows", "width", "vocab"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draws_match_the_plain_ones(
    rows: int, width: int, vocab: int, dtype: torch.dtype, temperature: float
) -> None:
    readout = head(width, vocab + 1, dtype)
    hidden, u = rows_of(rows, width, dtype)
    drawn = head_draw(hidden, readout, u, vocab, temperature=temperature, scores=True)
    logits = exact_logits(hidden, readout, vocab)
    plain = sample_categorical(logits.double(), u, temperature=temperature)
    # Errors of d in the cumulative masses move a fraction 2 V d of the draws to an adjacent token.
    # Tensor cores truncate where float32 rounds: d is about 1e-8.
    assert int((drawn.tokens != plain).sum()) <= -(-rows * 5 // 1000)
    # Every draw agrees with the cumulative masses up to 1e-6.
    cdf = (logits.double() / temperature).softmax(-1).cumsum(-1)
    cdf = torch.nn.functional.pad(cdf, (1, 0))
    below, above = (cdf.gather(1, drawn.tokens[:, None] + k)[:, 0] for k in (0, 1))
    assert bool(((below - 1e-6 <= u) & (u <= above + 1e-6)).all())
    assert drawn.entropy is not None
    assert drawn.confidence is not None
    torch.testing.assert_close(
        drawn.entropy.float(), prediction_entropy(logits), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        drawn.confidence.float(), logits.softmax(-1).amax(-1), atol=1e-6, rtol=1e-4
    )


def test_token_does_not_depend_on_other_rows() -> None:
    """Few and many rows use different tiles, with the same order of summation."""
    readout = head(768, 50258, torch.bfloat16)
    hidden, u = rows_of(6000, 768, torch.bfloat16)
    together = head_draw(hidden, readout, u, 50257).tokens
    for part in (slice(0, 1), slice(37, 90), slice(1000, 2500)):
        assert torch.equal(head_draw(hidden[part], readout, u[part], 50257).tokens, together[part])


@pytest.mark.parametrize("vocab", [33, 2 * BLOCK + 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_law_is_exact(vocab: int, dtype: torch.dtype) -> None:
    """A million draws of one distribution; false-alarm rate 1e-6, with a control that must fail."""
    n = 1_000_000
    readout = head(64, vocab, dtype)
    hidden = rows_of(1, 64, dtype)[0]
    u = torch.rand(n, generator=torch.manual_seed(4), dtype=torch.float64).cuda()
    tokens = head_draw(hidden.expand(n, 64), readout, u, vocab).tokens
    counts = np.bincount(tokens.cpu().numpy(), minlength=vocab)
    law = exact_logits(hidden, readout, vocab)[0].double().softmax(-1).cpu().numpy()
    assert_follows(counts, law / law.sum())
    flat = law**0.98
    assert_differs(counts, flat / flat.sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nan_is_rejected_and_impossible_tokens_are_never_drawn(dtype: torch.dtype) -> None:
    readout = head(64, 600, dtype)
    readout.bias[: BLOCK + 3] = -torch.inf  # a whole block and more
    hidden, u = rows_of(3000, 64, dtype)
    drawn = head_draw(hidden, readout, u, 600, scores=True)
    assert int(drawn.tokens.min()) >= BLOCK + 3
    assert drawn.entropy is not None
    assert bool(drawn.entropy.isfinite().all())
    broken = hidden.clone()
    broken[7, 5] = torch.nan
    with pytest.raises(cwdfm.InputError, match="in 1 of 3000 rows"):
        head_draw(broken, readout, u, 600)
    for bad in (torch.nan, torch.inf):
        readout.bias[400] = bad
        with pytest.raises(cwdfm.InputError, match="in 3000 of 3000 rows"):
            head_draw(hidden, readout, u, 600)


def drawn(
    logits_V: Tensor, u_K: Tensor, dtype: torch.dtype, temperature: float = 1.0
) -> DrawnTokens:
    """Draws from one arbitrary row of logits, which are the bias of a head that
    multiplies zeros. Another id, the mask, follows them and would be drawn if it were looked at.
    """
    vocab = len(logits_V)
    readout = head(64, vocab + 1, dtype).requires_grad_(False)
    readout.weight.zero_()
    bias = torch.cat([logits_V.cuda().float(), torch.full((1,), 1e30, device="cuda")])
    readout.bias = nn.Parameter(bias, requires_grad=False)
    rows = torch.zeros(len(u_K), 64, dtype=dtype, device="cuda")
    return head_draw(rows, readout, u_K.cuda(), vocab, temperature=temperature, scores=True)


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [1, 33, BLOCK, 5 * BLOCK - 3, 50257])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_tokens_have_their_exact_intervals(
    vocab: int, temperature: float, dtype: torch.dtype
) -> None:
    """u just inside either end of a token's interval of cumulative mass selects the token."""
    logits = torch.randn(vocab, generator=torch.manual_seed(vocab))
    ends = {0, 1, BLOCK - 1, BLOCK, 4 * BLOCK, 99 * BLOCK - 1, 196 * BLOCK, vocab - 1}
    tokens = sorted(token for token in ends if token < vocab)
    logits[tokens] = 4.0
    p = (logits.double() / temperature).softmax(0)
    above = p.cumsum(0)
    slack = 2e-6 * above[tokens]
    low, high = (above - p)[tokens] + slack, above[tokens] - slack
    assert bool((low < high).all()), "the tokens are too rare for this test"
    for u in (low, high):
        assert drawn(logits, u, dtype, temperature).tokens.tolist() == tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_ends_of_the_unit_interval_stay_in_the_support(dtype: torch.dtype) -> None:
    """90% of the tokens, whole blocks, and the last tokens are impossible."""
    for seed in range(20):
        g = torch.manual_seed(seed)
        logits = torch.randn(50257, generator=g) * 8
        gone = torch.rand(50257, generator=g) < 0.9
        gone[: 3 * BLOCK + seed] = gone[-50257 // 3 :] = True
        logits[gone] = -torch.inf
        possible = (~gone).nonzero()[:, 0]
        logits[possible[[0, -1]]] = 25.0
        u = torch.rand(300, generator=g, dtype=torch.float64)
        u[:2] = float64(0.0, BELOW_ONE)
        tokens = drawn(logits, u, dtype).tokens.cpu()
        assert not bool(gone[tokens].any())
        assert tokens[:2].tolist() == possible[[0, -1]].tolist()


def test_rare_tokens_and_rare_blocks_are_drawn() -> None:
    """Probability 1e-12 next to a likely token and alone in a block; a block of exp(-200)."""
    logits = torch.full((50257,), -torch.inf)
    places = [100 * BLOCK + 5, 100 * BLOCK + 7, 150 * BLOCK]
    logits[places] = float64(1.0, 1e-12, 1e-12).log().float()
    below_one = float64(2.1e-12, 1.9e-12, 1.1e-12, 0.9e-12, 0.1e-12)
    found = drawn(logits, 1 - below_one, torch.bfloat16).tokens.tolist()
    assert found == [places[k] for k in (0, 1, 1, 2, 2)]
    logits[4] = -200.0
    found = drawn(logits, float64(0.0, 1e-90, 1e-80), torch.bfloat16).tokens.tolist()
    assert found == [4, 4, places[0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 2000, 4100])
def test_entropy_and_confidence_are_those_in_float64(rows: int, dtype: torch.dtype) -> None:
    readout = head(768, 50258, dtype)
    readout.bias[: 2 * BLOCK + 3] = -torch.inf
    hidden, u = rows_of(rows, 768, dtype)
    found = head_draw(hidden, readout, u, 50257, temperature=0.7, scores=True)
    logits = hidden.double() @ readout.weight.double().T + readout.bias.double()
    log_p = logits[:, :50257].log_softmax(-1)
    entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(-1)
    torch.testing.assert_close(found.entropy, entropy, atol=0, rtol=1e-5)
    torch.testing.assert_close(found.confidence, log_p.amax(-1).exp(), atol=0, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [30, 3000])
def test_bad_rows_do_not_affect_others(
    rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, +inf and only -inf among valid rows, with deferred checks."""
    readout = head(768, 50258, dtype)
    readout.weight[:, 3].fill_(1.0)
    hidden, u = rows_of(rows, 768, dtype)
    expected = head_draw(hidden, readout, u, 50257).tokens
    hidden[1, 5], hidden[4, 3], hidden[6, 3] = torch.nan, torch.inf, -torch.inf
    with pytest.raises(cwdfm.InputError, match=f"in 3 of {rows} rows"):
        head_draw(hidden, readout, u, 50257)
    monkeypatch.setattr("cwdfm.ops.head_draw.check_rows", lambda bad: None)
    tokens = head_draw(hidden, readout, u, 50257, scores=True).tokens
    good = torch.ones(rows, dtype=torch.bool)
    good[[1, 4, 6]] = False
    assert torch.equal(tokens[good], expected[good])
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 50257


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 65, 3000])
def test_many_rows_in_one_block(rows: int, dtype: torch.dtype) -> None:
    """Nearly all rows in one block, the rest anywhere: many tiles of one block."""
    readout = head(256, 50258, dtype)
    readout.bias[77 * BLOCK : 78 * BLOCK] += 12.0
    hidden, u = rows_of(rows, 256, dtype)
    tokens = head_draw(hidden, readout, u, 50257).tokens
    assert float((tokens // BLOCK == 77).double().mean()) > 0.9
    plain = sample_categorical(exact_logits(hidden, readout, 50257).double(), u)
    assert int((tokens != plain).sum()) <= -(-rows * 5 // 1000)


def test_a_draw_needs_few_launches() -> None:
    """Besides four kernels: clearing counters, counting bad rows, and the copy to the host."""
    arguments: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            arguments.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    readout = head(768, 50258, torch.float32)
    hidden, u = rows_of(500, 768, torch.bfloat16)
    with deferred_checks(), CASTS.enabled(), torch.autocast("cuda", torch.bfloat16):
        for _ in range(2):  # the first one casts the weight
            arguments.clear()
            with Seen():  # type: ignore[no-untyped-call]
                head_draw(hidden, readout, u, 50257, scores=True)
    on_the_host = ("empty", "empty_like", "detach", "_local_scalar_dense")
    launched = [name for name in arguments if name not in on_the_host]
    assert sorted(launched) == ["copy_", "sum", "zeros"]


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every fused draw that solvers make."""
    calls: list[int] = []

    def counted(hidden: Tensor, *rest: Any, **options: Any) -> DrawnTokens:
        calls.append(len(hidden))
        return head_draw(hidden, *rest, **options)

    monkeypatch.setattr("cwdfm.solver.proposal.head_draw", counted)
    return calls


def small_dit(num_tokens: int) -> DiT:
    torch.manual_seed(0)
    config = DiTConfig(num_tokens, width=64, depth=2, heads=2, conditioning=16, dropout=0.0)
    model = DiT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.cuda()


@pytest.mark.parametrize("source", [cwdfm.MaskSource(300), cwdfm.UniformSource(300)], ids=str)
@pytest.mark.parametrize(
    "solver",
    [
        cwdfm.Euler(),
        cwdfm.Euler(weight=cwdfm.Neighbor(1, 1.0), temperature=0.8),
        cwdfm.Euler(weight=cwdfm.Entropy(1.0) + cwdfm.Confidence(0.5), corrector=cwdfm.Corrector()),
    ],
    ids=str,
)
def test_whole_samples_match_the_plain_ones(
    source: cwdfm.Source,
    solver: cwdfm.Solver,
    monkeypatch: pytest.MonkeyPatch,
    fused_calls: list[int],
) -> None:
    """A float32 model with 128 tokens: draws within rounding of a boundary are rare."""
    model = small_dit(source.num_tokens)

    def draw() -> Tensor:
        return cwdfm.sample(model, source, SCHEDULE, solver, shape=(8, 16), steps=12, seed=5).tokens

    monkeypatch.setattr(dispatch, "MODE", "on")
    fused = draw()
    steps = len(fused_calls)
    monkeypatch.setattr(dispatch, "MODE", "off")
    assert torch.equal(fused, draw())
    assert len(fused_calls) == steps > 0


def test_auto_fuses_only_under_autocast(
    monkeypatch: pytest.MonkeyPatch, fused_calls: list[int]
) -> None:
    source = cwdfm.MaskSource(300)
    model = small_dit(source.num_tokens)
    monkeypatch.setattr(dispatch, "MODE", "auto")
    cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(2, 8), steps=3)
    assert not fused_calls
    with torch.autocast("cuda", torch.bfloat16):
        out = cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(2, 8), steps=3)
    assert fused_calls
    assert int(out.tokens.max()) < 300


LOSSES = [
    cwdfm.CrossEntropy(),
    cwdfm.CrossEntropy("masked"),
    cwdfm.NELBO(),
    cwdfm.Bregman(),
    cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(2, 0.7)),
    cwdfm.ScaledCrossEntropy(cwdfm.Entropy(1.0)),
]


@pytest.mark.parametrize("source", [cwdfm.MaskSource(5000), cwdfm.UniformSource(5000)], ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("half", [False, True])
def test_training_matches_the_plain_one(
    source: cwdfm.Source, loss: cwdfm.Loss, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradients in chunks of 64 rows, from the same trunk in the same precision."""
    limits = {"cuda": 100 * 5000, "cpu": 1}
    monkeypatch.setattr("cwdfm.ops.head_rows.MAX_ELEMENTS", limits)
    model = small_dit(source.num_tokens)
    x_1 = torch.randint(0, 5000, (6, 50), generator=torch.manual_seed(0)).cuda()
    t = torch.linspace(0.05, 0.9, 6).cuda()
    batch = cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t, seed=2)
    parameters = list(model.parameters())
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        read = partial(loss.from_head, batch=batch, schedule=SCHEDULE)
        fused = model(batch.x_t, batch.t, read)
        logits = model(batch.x_t, batch.t)
    mine = torch.autograd.grad(fused, parameters)
    plain = loss(logits, batch, SCHEDULE)
    other = torch.autograd.grad(plain, parameters)
    tolerance = 0.02 if half else 1e-3
    torch.testing.assert_close(fused, plain, rtol=tolerance / 10, atol=1e-5)
    total = torch.cat([g.flatten() for g in other]).norm()
    difference = torch.cat([(a - b).flatten() for a, b in zip(mine, other, strict=True)]).norm()
    assert float(difference) < tolerance * float(total)


def trainable(rows: int, width: int, vocab: int, dtype: torch.dtype) -> list[Tensor]:
    """Hidden vectors, weight and bias (including the mask id) as leaves."""
    readout, hidden = head(width, vocab + 1, dtype), rows_of(rows, width, dtype)[0]
    return [x.detach().requires_grad_() for x in (hidden, readout.weight, readout.bias)]


def cross_entropy_of(leaves: list[Tensor], tokens: Tensor, weights: Tensor) -> Tensor:
    readout = nn.Linear(1, 1)
    readout.weight, readout.bias = (nn.Parameter(x) for x in leaves[1:])
    value = head_cross_entropy(leaves[0], readout, tokens, weights, len(leaves[1]) - 1)
    leaves[1:] = readout.parameters()
    return value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "width", "vocab"), [(1, 256, 33), (300, 256, 8192), (3001, 768, 50257)]
)
def test_cross_entropy_and_its_gradients_in_one_pass(
    rows: int, width: int, vocab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against autograd in float32, in chunks of at most 1,024 rows; twice through one graph."""
    monkeypatch.setattr("cwdfm.ops.head_rows.MAX_ELEMENTS", {"cuda": 1024 * vocab, "cpu": 1})
    leaves = trainable(rows, width, vocab, dtype)
    g = torch.manual_seed(2)
    tokens = torch.randint(0, vocab, (rows,), generator=g).cuda()
    weights = torch.rand(rows, generator=g).cuda() * 3
    weights[1::7] = 0.0
    exact_leaves = [x.detach().float().requires_grad_() for x in leaves]
    logits = nn.functional.linear(*exact_leaves)[:, :vocab]
    exact = weights @ nn.functional.cross_entropy(logits, tokens, reduction="none")
    ours = cross_entropy_of(leaves, tokens, weights)
    tolerance = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(ours, exact, rtol=tolerance, atol=1e-4)
    others = torch.autograd.grad(0.3 * exact, exact_leaves)
    for _ in range(2):
        mine = torch.autograd.grad(0.3 * ours, leaves, retain_graph=True)
        for a, b in zip(mine, others, strict=True):
            assert a.dtype == dtype
            assert float((a.float() - b).norm()) < tolerance * float(b.norm())
            assert float(a.float().norm()) > 0
    assert bool((mine[0][1::7] == 0).all())
    assert bool((mine[1][vocab:] == 0).all())
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy_of(leaves, tokens, weights), ours.detach())


def test_the_upstream_factor_is_not_rounded_to_half_precision() -> None:
    """1/3 in bfloat16 is off by 0.2%, equally for all entries of a gradient."""
    leaves = trainable(100, 256, 700, torch.bfloat16)
    tokens, weights = torch.arange(100).cuda(), torch.ones(100).cuda()
    value = cross_entropy_of(leaves, tokens, weights)
    (whole,) = torch.autograd.grad(value, leaves[0], retain_graph=True)
    (third,) = torch.autograd.grad(value / 3, leaves[0])
    assert torch.equal(third, (whole.float() * torch.tensor(1 / 3)).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_accumulate_in_float32(dtype: torch.dtype) -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    found = _accumulates_in_product(torch.device("cuda", 0), torch.float32, dtype)
    assert found == (version >= (2, 10))


@pytest.mark.filterwarnings("ignore")  # performance hints of the compiler
@pytest.mark.parametrize("by_block", [False, True])
def test_compiled_trunk_trains_like_the_plain_one(by_block: bool) -> None:
    """The number of masked rows changes between steps, but not in the compiled part."""
    source, loss = cwdfm.MaskSource(300), cwdfm.CrossEntropy("masked")
    plain, compiled = small_dit(source.num_tokens), small_dit(source.num_tokens)
    compiled.compile_trunk(by_block=by_block)
    x_1 = torch.randint(0, 300, (4, 32), generator=torch.manual_seed(0)).cuda()
    for step in range(3):
        t = torch.full((4,), 0.2 + 0.2 * step, device="cuda")
        batch = cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t, seed=2, step=step)
        read = partial(loss.from_head, batch=batch, schedule=SCHEDULE)
        values = [model(batch.x_t, batch.t, read) for model in (plain, compiled)]
        torch.testing.assert_close(values[1], values[0], rtol=1e-4, atol=1e-5)
        for value in values:
            value.backward()
    for a, b in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5)


def test_memory_stays_far_below_the_logits() -> None:
    """Draws and training at K = 16,384, V = 50,257: all logits would be 3.3 GB in float32."""
    readout = head(256, 50258, torch.bfloat16)
    hidden, u = rows_of(16_384, 256, torch.bfloat16)
    logits_bytes = 4 * 16_384 * 50_257

    def peak() -> int:
        return torch.cuda.max_memory_allocated() - before

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    head_draw(hidden, readout, u, 50257, scores=True)
    assert peak() < logits_bytes / 4
    readout.requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    tokens = torch.zeros(16_384, 1, dtype=torch.int64, device="cuda")
    leaf = hidden.clone().requires_grad_()
    head_log_prob(leaf, readout, tokens, 50257).sum().backward()
    assert peak() < logits_bytes / 3
    readout.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    ones = torch.ones(16_384, device="cuda")
    head_cross_entropy(leaf, readout, tokens[:, 0], ones, 50257).backward()
    assert peak() < logits_bytes / 3


def logits_of(rows: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    g = torch.Generator("cuda").manual_seed(vocab)
    logits = torch.randn(rows, vocab, generator=g, device="cuda") * 2
    return logits.to(dtype), torch.rand(rows, generator=g, device="cuda", dtype=torch.float64)


ROW_SHAPES = [(1, 1), (40_000, 5), (3000, 255), (3000, 257), (3001, 5000), (2670, 50257)]


@pytest.mark.parametrize(("rows", "vocab"), ROW_SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_draws_from_rows_match_the_plain_ones(
    rows: int, vocab: int, dtype: torch.dtype, temperature: float
) -> None:
    logits, u = logits_of(rows, vocab, dtype)
    tokens = row_draw(logits, u, temperature=temperature)
    plain = sample_categorical(logits.double(), u, temperature=temperature)
    # Errors of d in the cumulative masses move a fraction 2 V d of the draws to an adjacent token;
    # d is about 1e-7 at most.
    assert int((tokens != plain).sum()) <= -(-rows * vocab * 2 // 10**7)
    # Every draw agrees with the cumulative masses up to 1e-6.
    p = (logits.double() / temperature).softmax(-1)
    cdf = p.cumsum(-1)
    above, p = (x.gather(1, tokens[:, None])[:, 0] for x in (cdf, p))
    assert bool(((above - p - 1e-6 <= u) & (u <= above + 1e-6)).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_law_of_rows_is_exact(dtype: torch.dtype) -> None:
    """A million draws of one row of 600; false-alarm rate 1e-6, with a control that must fail."""
    n = 1_000_000
    logits = logits_of(1, 600, dtype)[0]
    u = torch.rand(n, generator=torch.manual_seed(4), dtype=torch.float64).cuda()
    law = logits[0].double().softmax(-1).cpu().numpy()
    for kind in (torch.float64, torch.float32):
        tokens = sample_categorical(logits.expand(n, -1), u, dtype=kind)
        counts = np.bincount(tokens.cpu().numpy(), minlength=600)
        assert_follows(counts, law / law.sum())
        flat = law**0.98
        assert_differs(counts, flat / flat.sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [300, 50257])
def test_impossible_tokens_of_rows_are_never_drawn(vocab: int, dtype: torch.dtype) -> None:
    """90% of the tokens, whole blocks, and the last tokens; at the ends of [0, 1)."""
    logits, u = logits_of(6000, vocab, dtype)
    gone = torch.rand(logits.shape, device="cuda") < 0.9
    gone[:, -vocab // 3 :] = True
    gone[:, 7] = False
    logits[gone] = -torch.inf
    u[::3], u[1::3] = 0.0, 1 - 2.0**-53
    tokens = row_draw(logits, u)
    assert not bool(gone.gather(1, tokens[:, None]).any())
    first = (~gone).long().argmax(1)
    last = vocab - 1 - (~gone).flip(1).long().argmax(1)
    assert torch.equal(tokens[::3], first[::3])
    assert torch.equal(tokens[1::3], last[1::3])


def test_rare_tokens_of_rows_are_reached_only_in_float64() -> None:
    """Two tokens of probability 1e-12: next to a likely one, and alone in a block."""
    logits = torch.full((1, 600), -torch.inf, device="cuda")
    logits[0, 5] = 0.0
    logits[0, [7, 590]] = float(np.log(1e-12))
    below_one = torch.tensor([2.1e-12, 1.9e-12, 1.1e-12, 0.9e-12, 0.1e-12], dtype=torch.float64)
    u, rows = (1 - below_one).cuda(), logits.expand(5, -1)
    assert sample_categorical(rows, u).tolist() == [5, 7, 7, 590, 590]
    assert sample_categorical(rows, u, dtype=torch.float32).tolist() == [5] * 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [300, 9000])
def test_rows_may_have_any_offset_and_stride(vocab: int, dtype: torch.dtype) -> None:
    """Next to NaN, in columns, alone: a token depends only on its row and u."""
    logits, u = logits_of(200, vocab, dtype)
    tokens = row_draw(logits, u)
    for ahead in (1, 4, 8, 15):
        wide = torch.full((200, vocab + 20), torch.nan, dtype=dtype, device="cuda")
        wide[:, ahead : ahead + vocab] = logits
        # Blocks start elsewhere, so sums round differently, and a few draws in a thousand may move.
        moved = row_draw(wide[:, ahead : ahead + vocab], u) != tokens
        assert int(moved.sum()) <= 2
    assert torch.equal(row_draw(logits.T.contiguous().T, u), tokens)
    for part in (slice(0, 1), slice(37, 90)):
        assert torch.equal(row_draw(logits[part].clone(), u[part]), tokens[part])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_without_a_distribution_are_rejected(bad: float) -> None:
    """Immediately, outside `deferred_checks`; the GPU stays usable."""
    logits = torch.zeros(9, 5000, device="cuda")
    u = torch.full((9,), 0.5, dtype=torch.float64, device="cuda")
    assert sample_categorical(logits, u).tolist() == [2500] * 9
    logits[3, 4000 if bad != -torch.inf else slice(None)] = bad
    with pytest.raises(cwdfm.InputError, match="in 1 of 9 rows"):
        sample_categorical(logits, u)
    assert sample_categorical(logits[:3], u[:3]).tolist() == [2500] * 3


def test_rows_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy of the logits in mode "auto"; nucleus sampling and "off" use the plain sampler."""
    calls: list[int] = []

    def counted(logits: Tensor, *rest: Any, **options: Any) -> Tensor:
        calls.append(len(logits))
        return row_draw(logits, *rest, **options)

    monkeypatch.setattr(categorical, "row_draw", counted)
    logits, u = logits_of(2000, 50257, torch.bfloat16)
    monkeypatch.setattr(dispatch, "MODE", "auto")
    sample_categorical(logits, u)  # loads the kernel
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    sample_categorical(logits, u)
    assert torch.cuda.max_memory_allocated() - before < logits.numel() / 10
    sample_categorical(logits, u, top_p=0.9)
    monkeypatch.setattr(dispatch, "MODE", "off")
    sample_categorical(logits, u)
    assert calls == [2000, 2000]


# Data tokens, columns: text; a row that fills its blocks; a tail of two blocks; no tail.
SOFTMAX_SHAPES = [(50257, 50304), (50257, 50264), (49152, 49152), (30522, 30528), (16384, 16400)]


@pytest.mark.parametrize(("vocab", "columns"), SOFTMAX_SHAPES)
@pytest.mark.parametrize("held", [True, False])
def test_both_kernels_overwrite_rows_by_their_gradient(
    vocab: int, columns: int, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows per program, to 2^-8 of every element, bitwise reproducible."""
    if not held:
        monkeypatch.setattr(head_rows, "HELD_COLUMNS", ())
    rows = 1500
    g = torch.manual_seed(0)
    logits = (torch.randn(rows, columns, generator=g) * 3).to("cuda", torch.bfloat16)
    tokens, grad = (torch.rand(2, rows, 1, generator=g) * vocab).cuda()
    tokens, grad = tokens.long(), grad / vocab - 0.5
    full = logits[:, :vocab].float()
    exact = full.softmax(-1).mul_(-grad).scatter_add_(1, tokens, grad)
    before = logits.clone()
    log_z = head_rows.softmax_rows(logits, vocab, targets=(tokens, grad))
    torch.testing.assert_close(log_z, full.logsumexp(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[:, :vocab].float(), exact, rtol=2**-8, atol=1e-9)
    assert bool((logits[:, vocab:] == 0).all())
    again = head_rows.softmax_rows(before, vocab, targets=(tokens, grad))
    assert torch.equal(again, log_z)
    assert torch.equal(before, logits)
