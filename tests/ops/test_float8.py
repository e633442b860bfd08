"""Products in float8 against float64, and their gradients against the emulated function."""

import pytest
import torch
from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.model.float8 import LAYERS, Float8Linear, freeze_in_float8, train_in_float8
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops import adaptive_norm, dispatch
from cwdfm.ops.adaptive_norm import add_norm_cast
from cwdfm.ops.float8 import (
    FLOAT8,
    LARGEST,
    Float8Input,
    InputDtypes,
    Rows,
    linear,
    product,
    to_rows,
)
from tests.support.gpu import DEVICES
from tests.support.kernels import perturbed
from tests.support.norms import FULL, HALF, SHAPES, Given, given

CPU = torch.device("cpu")
UNIT = 2.0**-4  # largest relative rounding error of a number with four significant bits
SMALLEST_NORMAL = 2.0**-6  # below it the spacing of the format is constant


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let float8 run on a CPU."""
    monkeypatch.setattr(dispatch, "MODE", "on")


def random(*shape: int, seed: int = 0, device: str = "cpu") -> Tensor:
    """Numbers of very different sizes."""
    g = torch.Generator().manual_seed(seed)
    wide = torch.randn(shape, generator=g) * torch.randn(shape, generator=g).exp()
    return wide.to(device)


def error_of(rows: Rows) -> Tensor:
    """The largest possible rounding error of each entry of a matrix in float8."""
    near = rows.values.float().abs().clamp(min=SMALLEST_NORMAL) * UNIT
    return near * rows.scale


def value_of(rows: Rows) -> Tensor:
    return rows.values.double() * rows.scale.double()


@pytest.mark.parametrize("device", DEVICES)
def test_entries_are_rounded_to_four_bits_of_their_row(device: str) -> None:
    x = random(40, 96, device=device) * torch.logspace(-12, 12, 40, device=device)[:, None]
    rows = to_rows(x)
    assert rows.values.dtype == FLOAT8
    assert bool(((value_of(rows) - x.double()).abs() <= error_of(rows) * 1.001).all())
    assert torch.equal(rows.values.float().abs().amax(1), torch.full((40,), LARGEST, device=device))
    assert torch.equal(to_rows(torch.zeros(2, 16)).values.float(), torch.zeros(2, 16))
    for bad in (torch.nan, torch.inf):
        broken = x.clone()
        broken[3, 5] = bad
        found = value_of(to_rows(broken)).isfinite().all(1)
        assert found.tolist() == [i != 3 for i in range(40)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biased", [True, False])
def test_product_is_that_of_the_rounded_factors(device: str, biased: bool) -> None:
    a, b = to_rows(random(33, 64, device=device)), to_rows(random(48, 64, seed=1, device=device))
    bias = random(48, seed=2, device=device) if biased else None
    dtype = HALF if device == "cuda" else FULL
    out = product(a, b, bias, dtype)
    exact = value_of(a) @ value_of(b).T + (0 if bias is None else bias.to(dtype).double())
    near = 0.01 if device == "cuda" else 1e-5  # bfloat16 and Hopper's accumulators, or float32
    assert float((out.double() - exact).norm()) <= near * float(exact.norm())


def test_product_is_that_of_the_operator_used_on_gpus() -> None:
    a, b = to_rows(random(33, 64)), to_rows(random(48, 64, seed=1))
    scales = (a.scale, b.scale.t())
    try:
        theirs = torch._scaled_mm(a.values, b.values.t(), *scales, out_dtype=FULL)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this build of PyTorch has no product in float8 on a CPU: {error}")
    torch.testing.assert_close(product(a, b, None, FULL), theirs)


def test_gradients_are_products_of_rounded_factors() -> None:
    """d_x in float8; d_weight and d_bias exactly those of a linear layer."""
    x, weight, bias = random(24, 32), random(48, 32, seed=1), random(48, seed=2)
    leaves = [v.requires_grad_() for v in (x, weight, bias)]
    target = random(24, 48, seed=3)
    mine = torch.autograd.grad((linear(x, None, weight, bias) * target).sum(), leaves)
    plain = torch.autograd.grad((nn.functional.linear(x, weight, bias) * target).sum(), leaves)
    torch.testing.assert_close(mine[1:], plain[1:])
    exact = value_of(to_rows(target)) @ value_of(to_rows(weight.detach().t().contiguous())).T
    torch.testing.assert_close(mine[0].double(), exact, rtol=1e-5, atol=1e-4)


def test_gradients_are_those_of_finite_differences() -> None:
    """Over steps that are long compared with the rounding, on average over 64 directions.

    Rounding errors are uniform up to 2^-4 of an entry, 2.6% of it on average; those of the step and
    of both factors of the gradient add up to about 5%.
    """
    x, weight = random(16, 64), random(32, 64, seed=1)
    target = random(16, 32, seed=2)

    def value(x: Tensor, weight: Tensor) -> Tensor:
        return (linear(x, None, weight, None) * target).sum()

    leaves = [x.requires_grad_(), weight.requires_grad_()]
    gradients = torch.autograd.grad(value(x, weight), leaves)
    for number, gradient in enumerate(gradients):
        g = torch.Generator().manual_seed(number)
        slopes, quotients = [], []
        for _ in range(64):
            step = 4 * torch.randn(leaves[number].shape, generator=g)
            ends = []
            for sign in (1, -1):
                moved = [v.detach() for v in leaves]
                moved[number] = moved[number] + sign * step
                ends.append(float(value(*moved)))
            slopes.append(float((gradient * step).sum()))
            quotients.append((ends[0] - ends[1]) / 2)
        slope, quotient = torch.tensor(slopes), torch.tensor(quotients)
        assert float((slope - quotient).norm()) <= 0.08 * float(slope.norm())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]])
@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_norm_writes_float8(device: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """The same outputs and gradients as without float8, and the norm rounded to four bits.

    Triton's interpreter halves numbers that round up to a power of two; they are left out.
    """

    def run(x: Given, dtypes: InputDtypes) -> tuple[Tensor, Tensor | Float8Input]:
        branch = adaptive_norm.Residual(x.y, x.gate) if x.y is not None else None
        return add_norm_cast(x.h, branch, x.norm, x.shift, x.scale, 0.0, dtypes)

    x = given(shape, FULL, dtype, device=device)
    h, plain = run(x, "original")
    h_both, both = run(x, "both")
    with torch.no_grad():
        h_only, only = run(x, "float8")
        _, exact = run(x.to(torch.float64), "original")
    assert isinstance(plain, Tensor)
    assert isinstance(exact, Tensor)
    assert isinstance(both, Float8Input)
    assert isinstance(only, Float8Input)
    assert both.x is not None
    assert only.x is None
    assert torch.equal(h, h_both)
    assert torch.equal(h, h_only)
    assert torch.equal(plain, both.x)
    for rows in (both.rows, only.rows):
        near = error_of(rows) * 1.01 + 1e-5
        significant = (exact.flatten(0, 1) / rows.scale).abs().frexp().mantissa
        tested = significant < (1 - UNIT / 2) if device == "cpu" else significant < 1
        assert float(tested.double().mean()) > 0.9
        assert bool(((value_of(rows) - exact.flatten(0, 1)).abs() <= near)[tested].all())
        assert bool((rows.values.float().abs().amax(1) == LARGEST).all())
    target = torch.linspace(-1, 1, plain.numel()).view_as(plain)
    for a, b in zip(
        *(torch.autograd.grad((v * target).sum(), x.leaves()) for v in (plain, both.x)), strict=True
    ):
        assert torch.equal(a, b)


def network(width: int = 32) -> DiT:
    sizes = {"width": width, "depth": 2, "heads": 2, "conditioning": 8, "dropout": 0.0}
    return perturbed(DiTConfig(11, **sizes), scale=0.1)  # type: ignore[arg-type]


def test_network_is_close_to_that_in_float32() -> None:
    """Relative error of the hidden vectors below 10%: four bits in each of eight products."""
    x, t = torch.arange(22).view(2, 11) % 11, torch.tensor([0.2, 0.7])
    plain, training, frozen = network(), network(), network()
    train_in_float8(training, CPU)
    freeze_in_float8(frozen, CPU)
    assert [name for name, _ in training.named_parameters()] == [
        name for name, _ in plain.named_parameters()
    ]
    kinds = {type(getattr(block, name)) for block in training.blocks for name in LAYERS}
    assert kinds == {Float8Linear}
    with torch.no_grad():
        exact = plain.trunk(x, t)
        hidden = training.trunk(x, t), frozen.trunk(x, t)
    torch.testing.assert_close(*hidden)  # weights cast now or before
    error = float((hidden[0] - exact).norm() / exact.norm())
    assert 1e-3 < error < 0.1, error


def test_requirements_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"multiple of 16.*24"):
        train_in_float8(network(24), CPU)
    frozen = network()
    freeze_in_float8(frozen, CPU)
    with pytest.raises(InputError, match="gradients"):
        frozen.blocks[0].down(torch.ones(1, 128, requires_grad=True))  # type: ignore[operator]
    monkeypatch.setattr(dispatch, "MODE", "auto")
    for change in (train_in_float8, freeze_in_float8):
        with pytest.raises(InputError, match=r"8\.9.*cpu.*bfloat16"):
            change(network(), CPU)
