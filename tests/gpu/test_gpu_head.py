"""On a CUDA device: the fused head against the plain one, in draws, whole samples and training;
draws from logits in memory.

Run there with `pytest -m gpu tests/gpu/test_gpu_head.py`.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cwdfm
from cwdfm.model.transformer import DiT
from cwdfm.ops import dispatch, head_rows
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.head_draw import BLOCK, DrawnTokens, head_draw
from cwdfm.ops.head_loss import head_cross_entropy, head_log_prob
from cwdfm.ops.head_rows import _accumulates_in_product
from cwdfm.ops.host_copy import deferred_checks
from cwdfm.ops.precision import CASTS
from tests.support.gpu import COMPILED, Operators
from tests.support.kernels import random_head, small_dit

pytestmark = COMPILED
SCHEDULE = cwdfm.Polynomial(2.0)


def rows_of(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    g = torch.manual_seed(1)
    hidden = torch.randn(rows, width, generator=g).to("cuda", dtype)
    return hidden, torch.rand(rows, generator=g, dtype=torch.float64).cuda()


def exact_logits(hidden: Tensor, readout: nn.Linear, vocab: int) -> Tensor:
    """The product of the same rounded inputs in float32, without tensor cores."""
    assert not torch.backends.cuda.matmul.allow_tf32
    logits = hidden.float() @ readout.weight.float().T + readout.bias.float()
    return logits[:, :vocab]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 2000, 4100])
def test_entropy_and_confidence_are_those_in_float64(rows: int, dtype: torch.dtype) -> None:
    readout = random_head(768, 50258, dtype, "cuda")
    readout.bias[: 2 * BLOCK + 3] = -torch.inf
    hidden, u = rows_of(rows, 768, dtype)
    found = head_draw(hidden, readout, u, 50257, temperature=0.7, scores=True)
    logits = hidden.double() @ readout.weight.double().T + readout.bias.double()
    log_p = logits[:, :50257].log_softmax(-1)
    entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(-1)
    torch.testing.assert_close(found.entropy, entropy, atol=0, rtol=1e-5)
    torch.testing.assert_close(found.confidence, log_p.amax(-1).exp(), atol=0, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 65, 3000])
def test_many_rows_in_one_block(rows: int, dtype: torch.dtype) -> None:
    """Nearly all rows in one block, the rest anywhere: many tiles of one block."""
    readout = random_head(256, 50258, dtype, "cuda")
    readout.bias[77 * BLOCK : 78 * BLOCK] += 12.0
    hidden, u = rows_of(rows, 256, dtype)
    tokens = head_draw(hidden, readout, u, 50257).tokens
    assert float((tokens // BLOCK == 77).double().mean()) > 0.9
    plain = sample_categorical(exact_logits(hidden, readout, 50257).double(), u)
    assert int((tokens != plain).sum()) <= -(-rows * 5 // 1000)


def test_a_draw_needs_few_launches() -> None:
    """Besides four kernels: clearing counters, counting bad rows, and the copy to the host."""
    readout = random_head(768, 50258, torch.float32, "cuda")
    hidden, u = rows_of(500, 768, torch.bfloat16)
    with deferred_checks(), CASTS.enabled(), torch.autocast("cuda", torch.bfloat16):
        for _ in range(2):  # the first one casts the weight
            with Operators() as ran:
                head_draw(hidden, readout, u, 50257, scores=True)
    on_the_host = ("empty", "empty_like", "detach", "_local_scalar_dense")
    launched = [name for name in ran.names if name not in on_the_host]
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


def small_model(source: cwdfm.Source) -> DiT:
    return small_dit(source.num_tokens, torch.float32, width=64).cuda()


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
    model = small_model(source)

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
    model = small_model(source)
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
    model = small_model(source)
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_accumulate_in_float32(dtype: torch.dtype) -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    found = _accumulates_in_product(torch.device("cuda", 0), torch.float32, dtype)
    assert found == (version >= (2, 10))


@pytest.mark.parametrize("by_block", [False, True])
def test_compiled_trunk_trains_like_the_plain_one(by_block: bool) -> None:
    """The number of masked rows changes between steps, but not in the compiled part."""
    source, loss = cwdfm.MaskSource(300), cwdfm.CrossEntropy("masked")
    plain, compiled = small_model(source), small_model(source)
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
    readout = random_head(256, 50258, torch.bfloat16, "cuda")
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


def test_rows_are_not_copied() -> None:
    logits = torch.randn(2000, 50257, device="cuda", dtype=torch.bfloat16)
    u = torch.rand(2000, device="cuda", dtype=torch.float64)
    sample_categorical(logits, u)  # loads the kernel
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    sample_categorical(logits, u)
    assert torch.cuda.max_memory_allocated() - before < logits.numel() / 10


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
