"""Cross-entropy of the head with gradients in one pass, against autograd in float64.

Each test of numbers runs on plain torch and on the Triton kernel, in its interpreter on a CPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.ops import dispatch, head_rows
from cwdfm.ops import head_loss as module
from cwdfm.ops.head_loss import head_cross_entropy, head_log_prob
from tests.support.cases import slow
from tests.support.kernels import interpreted

# Rounding error relative to the gradient's norm: of products in half precision, and of a gradient
# that is rounded to it once.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# Data tokens, ids, bias: fewer ids than a multiple of the tile (with a mask), more, and equal.
HEADS = [(130, 131, True), (64, 70, True), (128, 128, False)]


@pytest.fixture(params=["off", *(pytest.param(p, marks=interpreted) for p in ("on", "held"))])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Without Triton and with both of its kernels; several chunks and, in kernels, several blocks
    of tokens and several rows a program.
    """
    monkeypatch.setattr(dispatch, "MODE", "off" if request.param == "off" else "on")
    monkeypatch.setattr(head_rows, "MAX_ELEMENTS", {"cpu": 5 * 130})
    monkeypatch.setattr(head_rows, "THREADS", 2)
    monkeypatch.setattr(head_rows, "HELD_DEPTH", 1)
    monkeypatch.setattr(head_rows, "HELD_COLUMNS", range(10**6) if request.param == "held" else ())
    return str(request.param)


@pytest.fixture
def one_pass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the gradients in one pass, or with `head_log_prob`."""
    monkeypatch.setattr(Case, "one_pass", request.param)


WAYS = [
    ("off", True),
    ("off", False),
    pytest.param("on", True, marks=interpreted),
    pytest.param("on", False, marks=interpreted),
]
HELD = pytest.param("held", True, marks=interpreted)
MORE = [
    pytest.param("held", one_pass, marks=[interpreted, pytest.mark.slow])
    for one_pass in (True, False)
]
each_way = pytest.mark.parametrize(("path", "one_pass"), [*WAYS, *MORE], indirect=True)


class Case:
    """Rows in `dtype`, and the same values in float64."""

    one_pass = True

    def __init__(
        self, dtype: torch.dtype, vocab: int = 130, ids: int = 131, bias: bool = True,
        rows: int = 13, width: int = 12, device: str = "cpu",
    ) -> None:  # fmt: skip
        g = torch.manual_seed(0)
        self.vocab = vocab
        self.hidden = torch.randn(rows, width, generator=g).to(device, dtype).requires_grad_()
        self.readout = nn.Linear(width, ids, bias=bias).to(device, dtype)
        with torch.no_grad():
            for parameter in self.readout.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=g) * (12 / width) ** 0.5)
        self.tokens = torch.randint(0, vocab, (rows,), generator=g).to(device)
        self.weights = torch.rand(rows, generator=g).to(device) * 3
        self.weights[::7] = 0.0

    @property
    def leaves(self) -> list[Tensor]:
        return [self.hidden, *self.readout.parameters()]

    def value(self) -> Tensor:
        if self.one_pass:
            targets = (self.tokens, self.weights)
            return head_cross_entropy(self.hidden, self.readout, *targets, self.vocab)
        tokens_K1 = self.tokens[:, None]
        log_p_K = head_log_prob(self.hidden, self.readout, tokens_K1, self.vocab)[:, 0]
        return torch.where(self.weights == 0, 0.0, -self.weights * log_p_K).sum()

    def exact(self, factor: float = 1.0) -> tuple[Tensor, list[Tensor]]:
        """The value, and the gradients of `factor` times it, by autograd in float64."""
        leaves = [x.detach().double().requires_grad_() for x in self.leaves]
        logits = F.linear(*leaves)[:, : self.vocab]
        terms = F.cross_entropy(logits, self.tokens.clamp(max=self.vocab - 1), reduction="none")
        inside = self.tokens < self.vocab
        value = (self.weights.double() * terms)[inside].sum()
        return value.detach(), list(torch.autograd.grad(factor * value, leaves))


def assert_near(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype] * (10 if ours.is_cuda else 1)  # longer sums
    distance = float((ours.detach().double() - exact).norm())
    assert distance <= tolerance * float(exact.norm()), distance


@pytest.mark.parametrize(
    ("dtype", "vocab", "ids", "bias"),
    [
        *((dtype, *HEADS[0]) for dtype in TOLERANCE if dtype != torch.float16),
        slow(torch.float16, *HEADS[0]),
        (torch.float32, *HEADS[1]),
        slow(torch.float32, *HEADS[2]),
    ],
)
@pytest.mark.parametrize(("path", "one_pass"), [*WAYS, HELD, MORE[1]], indirect=True)
@pytest.mark.usefixtures("path", "one_pass")
def test_value_and_gradients(dtype: torch.dtype, vocab: int, ids: int, bias: bool) -> None:
    check_value_and_gradients(Case(dtype, vocab, ids, bias), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "width", "vocab"), [(1, 256, 33), (300, 256, 8192), (3001, 768, 50257)]
)
def test_value_and_gradients_of_large_heads(
    rows: int, width: int, vocab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of at most 1,024 rows."""
    monkeypatch.setattr(head_rows, "MAX_ELEMENTS", {"cuda": 1024 * vocab, "cpu": 1})
    case = Case(dtype, vocab, vocab + 1, rows=rows, width=width, device="cuda")
    case.weights[0] = 0.0 if rows > 1 else 1.0
    check_value_and_gradients(case, dtype)


def check_value_and_gradients(case: Case, dtype: torch.dtype) -> None:
    """With weights of 0, without gradients, and with a factor that bfloat16 would round by 0.2%."""
    value, gradients = case.exact(factor=0.3)
    ours = case.value()
    assert ours.shape == ()
    assert ours.dtype == torch.promote_types(dtype, torch.float32)
    assert_near(ours, value, dtype)
    with torch.no_grad():
        torch.testing.assert_close(case.value(), ours.detach())
    mine = torch.autograd.grad(0.3 * ours, case.leaves, retain_graph=True)
    if case.one_pass and dtype != torch.float64:
        (whole,) = torch.autograd.grad(ours, case.hidden)
        assert torch.equal(mine[0], (whole.float() * 0.3).to(dtype))
    for leaf, gradient, exact in zip(case.leaves, mine, gradients, strict=True):
        assert gradient.dtype == leaf.dtype
        assert gradient.is_contiguous()
        assert_near(gradient, exact, dtype)
    assert bool((mine[0][case.weights == 0] == 0).all())
    assert all(bool((x[case.vocab :] == 0).all()) for x in mine[1:])  # ids after the data tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("path")
def test_head_log_prob_agrees(dtype: torch.dtype) -> None:
    """`head_log_prob` of several tokens per row, with gradients known only in the backward pass."""
    case = Case(dtype)
    outside = torch.full_like(case.tokens, 130)
    tokens_KJ = torch.stack([case.tokens, case.tokens.flip(0), case.tokens, outside], dim=1)
    log_p_KJ = head_log_prob(case.hidden, case.readout, tokens_KJ, 130)
    assert bool((log_p_KJ[:, 3] == -torch.inf).all())
    log_p_KJ = log_p_KJ[:, :3]
    general = torch.autograd.grad(-(case.weights * log_p_KJ.sum(1)).sum(), case.leaves)
    flipped = Case(dtype)
    flipped.tokens = case.tokens.flip(0)
    sums = [2 * a + b for a, b in zip(case.exact()[1], flipped.exact()[1], strict=True)]
    for mine, exact in zip(general, sums, strict=True):
        assert_near(mine, exact, dtype)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("known", [False, True])
def test_columns_after_the_data_tokens_are_ignored_and_zeroed(known: bool) -> None:
    logits_kV = torch.randn(5, 192, generator=torch.manual_seed(0))
    tokens_kJ, grad_kJ = torch.arange(10).view(5, 2), torch.randn(5, 2)
    tokens_kJ[2] = 7  # the same token twice
    data = logits_kV[:, :130].double().requires_grad_()
    log_p_kJ = data.log_softmax(-1).gather(1, tokens_kJ)
    (exact,) = torch.autograd.grad((grad_kJ * log_p_kJ).sum(), data)
    log_z_k = data.detach().logsumexp(-1).float()
    given = log_z_k if known else None
    torch.testing.assert_close(head_rows.softmax_rows(logits_kV.clone(), 130, given), log_z_k)
    head_rows.softmax_rows(logits_kV, 130, given, targets=(tokens_kJ, grad_kJ))
    torch.testing.assert_close(logits_kV[:, :130], exact.float(), rtol=1e-4, atol=1e-6)
    assert bool((logits_kV[:, 130:] == 0).all())


def test_rows_are_held_in_registers_where_it_pays() -> None:
    def holds(columns: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        return head_rows._fits_registers(torch.empty(2, columns, dtype=dtype, device="meta"))

    assert all(holds(columns) for columns in (30528, 50264, 50304))
    assert not any(holds(columns) for columns in (192, 50257, 128256))
    assert not holds(50304, torch.float16)
    assert not holds(50304, torch.float32)


@each_way
@pytest.mark.usefixtures("path", "one_pass")
def test_ids_outside_the_vocabulary() -> None:
    """log p = -inf: 0 where the weight is 0, else infinite, without gradient in both cases."""
    case = Case(torch.float32)
    case.tokens[::7] = 130  # of weight 0
    value, gradients = case.exact()
    assert_near(case.value(), value, torch.float32)
    case.tokens[3] = 130
    assert float(case.weights[3]) > 0
    value, gradients = case.exact()
    ours = case.value()
    assert ours.item() == torch.inf
    for mine, exact in zip(torch.autograd.grad(ours, case.leaves), gradients, strict=True):
        assert_near(mine, exact, torch.float32)


@each_way
@pytest.mark.usefixtures("path", "one_pass")
def test_impossible_token_is_scaled_by_its_weight() -> None:
    case = Case(torch.float32)
    with torch.no_grad():
        case.readout.bias[5] = -torch.inf
    case.tokens[case.tokens == 5] = 6
    case.tokens[0] = 5
    assert float(case.weights[0]) == 0
    ours = case.value()
    assert bool(ours.isfinite())
    assert all(bool(x.isfinite().all()) for x in torch.autograd.grad(ours, case.leaves))
    case.weights[0] = 1.0
    assert case.value().item() == torch.inf


@each_way
@pytest.mark.usefixtures("path", "one_pass")
def test_nan_logits_give_nan() -> None:
    case = Case(torch.float32)
    with torch.no_grad():
        case.readout.weight[77, 3] = torch.nan
    assert bool(case.value().isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_way
@pytest.mark.usefixtures("path", "one_pass")
def test_no_rows_give_zero(dtype: torch.dtype) -> None:
    case = Case(dtype, rows=0)
    value = case.value()
    assert value.item() == 0
    for gradient, leaf in zip(torch.autograd.grad(value, case.leaves), case.leaves, strict=True):
        assert gradient.shape == leaf.shape
        assert bool((gradient == 0).all())


@pytest.mark.usefixtures("path")
def test_backward_passes_accumulate() -> None:
    """Two graphs, and one graph twice: the first pass does not consume the saved gradients."""
    case = Case(torch.float32)
    _, gradients = case.exact(factor=1 + 2 + 0.5)
    case.value().backward()
    again = case.value()
    (2 * again).backward(retain_graph=True)
    (0.5 * again).backward()
    for leaf, exact in zip(case.leaves, gradients, strict=True):
        assert leaf.grad is not None
        assert_near(leaf.grad, exact, torch.float32)
    with pytest.raises(RuntimeError, match="second time"):
        again.backward()


def test_second_derivatives_are_not_supported() -> None:
    case = Case(torch.float32)
    (gradient,) = torch.autograd.grad(case.value() ** 2, case.hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@each_way
@pytest.mark.usefixtures("path", "one_pass")
def test_autocast() -> None:
    """Products in half precision, gradients of float32 leaves in float32."""
    case = Case(torch.float32)
    value, gradients = case.exact()
    with torch.autocast("cpu", torch.bfloat16):
        ours = case.value()
    assert ours.dtype == torch.float32
    assert_near(ours, value, torch.bfloat16)
    for mine, exact in zip(torch.autograd.grad(ours, case.leaves), gradients, strict=True):
        assert mine.dtype == torch.float32
        assert_near(mine, exact, torch.bfloat16)
    assert case.value().item() != ours.item()  # it was half precision


def test_gradients_are_computed_only_if_required(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(torch.float32)
    value, _ = case.exact()
    made: list[int] = []
    real = head_rows.GradientSums

    def counted(*arguments: Any) -> head_rows.GradientSums:
        made.append(1)
        return real(*arguments)

    monkeypatch.setattr(module, "GradientSums", counted)
    with torch.no_grad():
        assert_near(case.value(), value, torch.float32)
    for leaf in case.leaves:
        leaf.requires_grad_(False)
    assert_near(case.value(), value, torch.float32)
    assert not made
    case.readout.bias.requires_grad_()
    case.value().backward()
    assert made == [1]
    assert case.readout.bias.grad is not None
    assert case.hidden.grad is None


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 1000, 4097])
@pytest.mark.parametrize("most", [1, 5, 64, 100, 640, 10**6])
def test_chunks_are_even_bounded_and_complete(
    rows: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_rows, "MAX_ELEMENTS", {"cpu": most * 10})
    x, y = torch.arange(rows), torch.arange(rows) * 2
    pairs = list(head_rows.chunks(10, x, y))
    assert all(torch.equal(2 * a, b) for a, b in pairs)
    sizes = [len(a) for a, _ in pairs]
    assert torch.equal(torch.cat([a for a, _ in pairs] or [x]), x)
    assert max(sizes, default=0) <= most
    unit = 64 if most > 64 else 1
    assert all(size % unit == 0 for size in sizes[:-1])
    fewest = -(-rows // (most // unit * unit))
    assert len(sizes) <= fewest
    if sizes:
        assert max(sizes) < -(-rows // fewest) + unit


Addmm = Callable[..., Tensor]


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear the cached capabilities of the device."""
    head_rows._accumulates_in_product.cache_clear()
    yield
    head_rows._accumulates_in_product.cache_clear()


def adding(total: Tensor, a: Tensor, b: Tensor, *, out_dtype: torch.dtype, out: Tensor) -> Tensor:
    """CUDA's behavior from torch 2.10 on."""
    return out.copy_(total + a.to(out_dtype) @ b.to(out_dtype))


def overwriting(total: Tensor, a: Tensor, b: Tensor, **rest: Any) -> Tensor:
    return adding(torch.zeros_like(total), a, b, **rest)


def raising(*arguments: object, **rest: object) -> Tensor:
    raise RuntimeError("self and mat2 must have the same dtype")  # torch 2.8 and 2.9


def without_overload(*arguments: object, **rest: object) -> Tensor:
    raise TypeError("addmm() got an unexpected keyword argument 'out_dtype'")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("addmm", "in_product"),
    [(adding, True), (overwriting, False), (raising, False), (without_overload, False)],
)
def test_sums_are_correct_for_any_capability_of_the_product(
    addmm: Addmm, in_product: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "addmm", addmm)
    g = torch.manual_seed(0)
    a, b = (torch.randn(shape, generator=g).bfloat16() for shape in ((40, 300), (300, 20)))
    start = torch.randn(40, 20, generator=g)
    total = start.clone()
    head_rows.add_product(total, a, b)
    exact = start.double() + a.double() @ b.double()
    assert_near(total, exact, torch.bfloat16)
    # Only accumulation inside the product avoids rounding to half precision.
    assert (float((total - exact).norm()) < 1e-5 * float(exact.norm())) == in_product
