"""gelu of linear maps: fused passes against the plain expression.

The kernels run in Triton's interpreter: TRITON_INTERPRET=1 pytest this file.
"""

import os
from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._subclasses.fake_tensor import FakeTensorMode

from cwdfm import ops as kernel
from cwdfm.ops import fused_gelu
from cwdfm.ops import gelu as module
from cwdfm.ops.gelu import CHUNK, linear_gelu
from tests.ops.test_rotary import moved_dit, trained

interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)
FULL, HALF = torch.float32, torch.bfloat16
# What rounding may cost, of a result's length: in half precision, of product, gelu and its inputs.
NEAR = {FULL: 3e-6, HALF: 2**-7}
# Rows, and columns: chunks and blocks that are full, that are not, several of them.
SHAPES = [((1,), 8), ((2, CHUNK // 2), 64), ((3, CHUNK - 5), 130), ((CHUNK + 1,), 1100)]
WIDTH = 12


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every way back by the kernel, which is used wherever it can be."""
    seen: list[int] = []
    real = module._gradients

    def counted(x: Tensor) -> tuple[Tensor, Tensor]:
        if type(x) is Tensor:
            seen.append(x.numel() // x.shape[-1])
        return real(x)

    monkeypatch.setattr(module, "_gradients", counted)
    monkeypatch.setattr(kernel, "MODE", "on")
    return seen


def given(
    rows: tuple[int, ...], columns: int, dtype: torch.dtype = FULL, device: str = "cpu"
) -> tuple[Tensor, nn.Linear]:
    g = torch.manual_seed(0)
    layer = nn.Linear(WIDTH, columns)
    with torch.no_grad():
        layer.bias.copy_(torch.randn(columns, generator=g))
        layer.weight.copy_(torch.randn(columns, WIDTH, generator=g) / 2)
    x = torch.randn(*rows, WIDTH, generator=g)
    return x.to(device, dtype).requires_grad_(), layer.to(device, dtype)


def gradients(x: Tensor, layer: nn.Linear, y: Tensor) -> tuple[Tensor, ...]:
    """Of a random function of y, the same one in all dtypes."""
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(HALF).to(y)
    return torch.autograd.grad(y, (x, layer.weight, layer.bias), weights)


def assert_near(mine: Tensor, exact: Tensor, near: float) -> None:
    assert mine.shape == exact.shape
    error = float((mine.double() - exact).detach().norm())
    assert error <= near * float(exact.detach().norm()), (error, near)


def check_against_exact(
    rows: tuple[int, ...], columns: int, dtype: torch.dtype, device: str = "cpu"
) -> None:
    """Value and all gradients, against the plain expression in float64."""
    x, layer = given(rows, columns, dtype, device)
    double, exact_layer = x.detach().double().requires_grad_(), deepcopy(layer).double()
    y, exact = linear_gelu(x, layer), F.gelu(exact_layer(double), approximate="tanh")
    assert y.dtype == dtype
    assert_near(y, exact, NEAR[dtype])
    grads = gradients(x, layer, y), gradients(double, exact_layer, exact)
    for mine, other in zip(*grads, strict=True):
        assert mine.dtype == dtype
        assert_near(mine, other, NEAR[dtype])


@interpreted
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", [FULL, HALF], ids=str)
def test_value_and_gradients_are_exact(
    rows: tuple[int, ...], columns: int, dtype: torch.dtype, launches: list[int]
) -> None:
    check_against_exact(rows, columns, dtype)
    assert len(launches) == 1


@interpreted
def test_far_out_gelu_is_x_or_nothing(launches: list[int]) -> None:
    x = torch.tensor([[-1e4, -60.0, -9.0, 0.0, 9.0, 60.0, 1e4, torch.nan]], requires_grad=True)
    y = module._gelu(x, torch.zeros(8))
    (d_x,) = torch.autograd.grad(y.sum(), x)
    expected = F.gelu(x.double(), approximate="tanh")
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=1e-12, equal_nan=True)
    (exact,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(d_x, exact, rtol=1e-5, atol=1e-6, equal_nan=True)


@interpreted
def test_autocast_keeps_gradients_of_parameters_in_full(launches: list[int]) -> None:
    x, layer = given((5, 20), 40)
    with torch.autocast("cpu", HALF):
        y = linear_gelu(x, layer)
    assert y.dtype == HALF
    exact = F.gelu(layer(x), approximate="tanh")
    assert_near(y, exact, NEAR[HALF])
    for mine, other in zip(gradients(x, layer, y), gradients(x, layer, exact), strict=True):
        assert mine.dtype == FULL
        assert_near(mine, other, NEAR[HALF])
    assert launches == [100]


@interpreted
def test_parameters_may_be_frozen(launches: list[int]) -> None:
    x, layer = given((5,), 16)
    layer.bias.requires_grad_(False)
    linear_gelu(x, layer).sum().backward()
    assert layer.bias.grad is None
    assert layer.weight.grad is not None
    layer.weight.requires_grad_(False), layer.bias.requires_grad_()
    linear_gelu(x.detach(), layer).sum().backward()
    assert layer.bias.grad is not None


@interpreted
def test_operators_are_what_they_tell_the_compiler() -> None:
    x, bias = torch.randn(3, 5, 12, requires_grad=True), torch.randn(12, requires_grad=True)
    torch.library.opcheck(torch.ops.cwdfm.gelu, (x, bias))
    torch.library.opcheck(torch.ops.cwdfm.gelu_backward, (x.detach(), torch.randn(3, 5, 12)))
    by_columns = torch.randn(3, 12, 5).transpose(1, 2)
    mine, sums = torch.ops.cwdfm.gelu_backward(x.detach(), by_columns)
    assert torch.equal(mine, torch.ops.cwdfm.gelu_backward(x.detach(), by_columns.contiguous())[0])
    torch.testing.assert_close(sums.sum(0), mine.sum((0, 1)))


def test_elsewhere_the_plain_expression_runs(launches: list[int]) -> None:
    """In float64; on a CPU, unless asked for; if told so; without gradients."""
    for mode, dtype in (("on", torch.float64), ("auto", FULL), ("off", FULL)):
        kernel.MODE = mode
        x, layer = given((7,), 16, dtype)
        y = linear_gelu(x, layer)
        assert torch.equal(y, F.gelu(layer(x), approximate="tanh"))
        gradients(x, layer, y)
    kernel.MODE = "on"
    with torch.no_grad():
        assert torch.equal(linear_gelu(x, layer), y)
    assert not launches


@interpreted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's, of its own doings
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("plain_norms")
def test_transformer_trains_as_with_the_plain_gelu(
    compiled: bool, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled in one graph by the front end alone ("aot_eager"), which calls the operators."""
    model, x = moved_dit(), torch.randint(0, 11, (3, 16), generator=torch.manual_seed(2))
    torch._dynamo.reset()
    trunk = torch.compile(model.trunk, backend="aot_eager", fullgraph=True)
    fused = trained(model, trunk if compiled else model.trunk, x)
    assert launches == [48, 48]
    monkeypatch.setattr(kernel, "MODE", "off")
    for mine, other in zip(fused, trained(model, model.trunk, x), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@interpreted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("launches")
def test_the_product_is_not_asked_for_the_gradient_of_the_bias() -> None:
    """In the compiled way back the only sum is that over chunks."""
    sums: list[tuple[int, ...]] = []

    def looked_at(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nodes = (n for n in graph.graph.nodes if n.target is torch.ops.aten.sum.dim_IntList)
        sums.extend(tuple(node.args[0].meta["val"].shape) for node in nodes)
        return boxed_nop(graph, inputs)

    torch._dynamo.reset()
    x, layer = given((CHUNK * 3,), 16)
    backend = aot_autograd(fw_compiler=boxed_nop, bw_compiler=looked_at)
    y = torch.compile(linear_gelu, backend=backend, fullgraph=True)(x, layer)
    gradients(x, layer, y)
    assert sums == [(3, 16)]


def test_products_take_their_gelu_along_where_no_gradient_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And in half precision alone, on a GPU alone, unless told not to."""
    with FakeTensorMode():
        half = torch.empty(2, dtype=torch.bfloat16, device="cuda")
        full, here = torch.empty(2, device="cuda"), torch.empty(2, dtype=torch.bfloat16)
    with torch.no_grad():
        assert [fused_gelu(x) for x in (half, full, here)] == [True, False, False]
    assert not fused_gelu(half)
    monkeypatch.setattr(kernel, "MODE", "off")
    with torch.no_grad():
        assert not fused_gelu(half)


@pytest.mark.parametrize("autocast", [True, False])
def test_the_product_with_its_gelu_is_the_plain_one(
    autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU this operator is exact where a GPU's has the approximation: they differ by 5e-4."""
    torch.manual_seed(0)
    x, layer = torch.randn(2, 5, 16), nn.Linear(16, 64)
    if not autocast:
        x, layer = x.bfloat16(), layer.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = linear_gelu(x, layer)
        monkeypatch.setattr(module, "fused_gelu", lambda _: True)
        compiled = torch.compile(linear_gelu, backend="eager", fullgraph=True)
        for fused in (linear_gelu(x, layer), compiled(x, layer)):
            assert fused.dtype == torch.bfloat16
            torch.testing.assert_close(fused, plain, rtol=2**-7, atol=1e-3)
            assert not torch.equal(fused, plain)
