"""Rotary positions: the fused rotation of queries, keys and values against the plain one.

The kernel runs in Triton's interpreter: TRITON_INTERPRET=1 pytest this file.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from cwdfm.model.attention import (
    AttentionPattern,
    BlockDiffusionAttention,
    CachedAttention,
    CausalAttention,
    FullAttention,
    KVCache,
)
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops import dispatch
from cwdfm.ops import rotary as module
from cwdfm.ops.rotary import rotary, rotate, rotate_qkv

interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)
# B, N, H, d: the paper's heads; widths that fill no power of two; rows that fill no tile.
SHAPES = [(2, 5, 12, 64), (1, 40, 3, 12), (3, 7, 2, 6), (2, 33, 1, 2)]


def qkv_of(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    batch, length, heads, width = shape
    x = torch.randn(batch, length, 3, heads, width, generator=torch.manual_seed(0))
    return x.to(device, dtype)


def rotation_of(length: int, width: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """For places in no order, some of them twice."""
    place = torch.randint(0, 2 * length, (length,), generator=torch.manual_seed(1))
    return rotary(place.to(device), width)


def exactly(qkv: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The plain expression in float64, each [B, H, N, d]."""
    cos, sin = rotation
    q, k, v = qkv.double().permute(2, 0, 3, 1, 4).unbind(0)
    double = (cos.double(), sin.double())
    return rotate(q, double), rotate(k, double), v


def assert_rounded(mine: Tensor, exact: Tensor) -> None:
    """Equal up to one rounding to mine's dtype, and float32's on the way."""
    rtol = torch.finfo(mine.dtype).eps
    torch.testing.assert_close(mine.double(), exact, rtol=rtol, atol=2e-6)


def check_rotation(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> None:
    """Queries, keys and values, and the gradient, against float64."""
    qkv = qkv_of(shape, dtype, device).requires_grad_()
    rotation = rotation_of(shape[1], shape[3], device)
    parts, exact = rotate_qkv(qkv, rotation), exactly(qkv, rotation)
    for mine, other in zip(parts, exact, strict=True):
        assert mine.dtype == dtype
        assert_rounded(mine, other)
    grads = [torch.randn_like(part) for part in parts]
    (mine,) = torch.autograd.grad(parts, qkv, grads)
    double = [grad.double() for grad in grads]
    # In float64: casting back to the leaf would round what is to be the referee.
    leaf = qkv.detach().double().requires_grad_()
    (other,) = torch.autograd.grad(exactly(leaf, rotation), leaf, double)
    assert mine.is_contiguous()
    assert_rounded(mine, other)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parts every launch of the kernel moved; the kernel is used wherever it can be."""
    moved: list[int] = []
    launch = module._launch

    def counted(sources: Any, *rest: Any, **options: Any) -> None:
        moved.append(len(sources))
        launch(sources, *rest, **options)

    monkeypatch.setattr(module, "_launch", counted)
    monkeypatch.setattr(dispatch, "MODE", "on")
    return moved


@interpreted
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_and_gradient_are_exact(
    shape: tuple[int, int, int, int], dtype: torch.dtype, launches: list[int]
) -> None:
    check_rotation(shape, dtype, "cpu")
    assert launches == [2, 3]  # there, without the values; and back, with them


@interpreted
def test_values_stay_where_they_are(launches: list[int]) -> None:
    qkv = qkv_of((2, 5, 2, 8), torch.float32)
    q, _, v = rotate_qkv(qkv, rotation_of(5, 8))
    assert launches == [2]
    assert v.untyped_storage().data_ptr() == qkv.untyped_storage().data_ptr()
    assert q.untyped_storage().data_ptr() != qkv.untyped_storage().data_ptr()


def check_layouts(device: str) -> None:
    """Gradients by heads, by tokens, out of a larger tensor, expanded from one number."""
    batch, length, heads, width = shape = (2, 9, 3, 8)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=g).to(device)

    g = torch.manual_seed(3)
    by_heads = random(batch, heads, length, width).transpose(1, 2)
    packed = random(batch, length, 3, heads, width)[:, :, 1]
    strided = random(batch, length, heads, 2 * width)[..., ::2]
    constant = torch.ones((), device=device).expand(shape)
    rotation = rotation_of(length, width, device)
    for grads in ((by_heads, packed, strided), (constant, strided, by_heads)):
        mine = torch.ops.cwdfm.rotate_backward(*grads, *rotation)
        other = torch.ops.cwdfm.rotate_backward(*(g.contiguous() for g in grads), *rotation)
        assert torch.equal(mine, other)
        assert torch.equal(mine[:, :, 2], grads[2])


@interpreted
def test_gradients_may_come_in_any_layout() -> None:
    check_layouts("cpu")


@interpreted
def test_operators_are_what_they_tell_the_compiler() -> None:
    qkv, rotation = qkv_of((2, 5, 3, 12), torch.float32), rotation_of(5, 12)
    torch.library.opcheck(torch.ops.cwdfm.rotate_forward, (qkv, *rotation))
    grads = qkv_of((2, 5, 3, 12), torch.float32).permute(2, 0, 3, 1, 4).transpose(2, 3).unbind(0)
    torch.library.opcheck(torch.ops.cwdfm.rotate_backward, (*grads, *rotation))


def test_elsewhere_the_plain_expression_runs(launches: list[int]) -> None:
    """In float64; on a CPU, unless asked for; and nowhere, if told so."""
    rotation = rotation_of(5, 8)
    for mode, dtype in (("on", torch.float64), ("auto", torch.float32), ("off", torch.float32)):
        dispatch.MODE = mode
        qkv = qkv_of((2, 5, 2, 8), dtype)
        q, k, v = rotate_qkv(qkv, rotation)
        assert torch.equal(q, rotate(qkv[:, :, 0].transpose(1, 2), rotation))
        assert torch.equal(k, rotate(qkv[:, :, 1].transpose(1, 2), rotation))
        assert torch.equal(v, qkv[:, :, 2].transpose(1, 2))
    assert not launches


def moved_dit(attention: str = "full", width: int = 24) -> DiT:
    """A transformer in which every part takes effect, without randomness."""
    torch.manual_seed(0)
    config = DiTConfig(
        11,
        width=width,
        depth=2,
        heads=2,
        conditioning=8,
        dropout=0.0,
        attention=attention,  # type: ignore[arg-type]
        block=4,
    )
    model = DiT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def trained(
    model: DiT, trunk: Callable[..., Tensor], x: Tensor, *rest: AttentionPattern
) -> list[Tensor]:
    """Hidden vectors and the gradients of a function of them."""
    hidden = trunk(x, torch.full((len(x),), 0.3, device=x.device), *rest)
    weights = [p for name, p in model.named_parameters() if "readout" not in name]
    target = torch.linspace(-1, 1, hidden.numel(), device=x.device).view_as(hidden)
    return [hidden, *torch.autograd.grad((hidden * target).sum(), weights)]


@interpreted
@pytest.mark.parametrize(
    "sight", [FullAttention(), CausalAttention(), BlockDiffusionAttention(4)], ids=str
)
@pytest.mark.usefixtures("plain_norms")
def test_transformer_trains_as_with_the_plain_rotation(
    sight: AttentionPattern, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = moved_dit(), torch.randint(0, 11, (3, 16), generator=torch.manual_seed(2))
    fused = trained(model, model.trunk, x, sight)
    assert launches == [2, 2, 3, 3]
    monkeypatch.setattr(dispatch, "MODE", "off")
    for mine, other in zip(fused, trained(model, model.trunk, x, sight), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    assert len(launches) == 4


@interpreted
def test_tokens_behind_a_cache_stand_where_they_are(launches: list[int]) -> None:
    model, t = moved_dit("causal").eval(), torch.zeros(2)
    x = torch.randint(0, 11, (2, 9), generator=torch.manual_seed(2))
    with torch.no_grad():
        at_once = model.trunk(x, t)
        cache, pieces = KVCache(9), []
        for start, end in ((0, 4), (4, 5), (5, 9)):
            pieces.append(model.trunk(x[:, start:end], t, CachedAttention(cache, causal=True)))
            cache.length = end
    torch.testing.assert_close(torch.cat(pieces, 1), at_once, rtol=1e-4, atol=1e-5)
    assert set(launches) == {2}


@interpreted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's, of its own doings
@pytest.mark.usefixtures("plain_norms")
def test_compiled_in_one_graph(launches: list[int]) -> None:
    """The front end alone ("aot_eager"), which calls the operators; gradients on and off."""
    model, x = moved_dit(), torch.randint(0, 11, (3, 8), generator=torch.manual_seed(2))
    compiled = torch.compile(model.trunk, backend="aot_eager", fullgraph=True)
    plain = trained(model, model.trunk, x)
    launches.clear()
    for mine, other in zip(trained(model, compiled, x), plain, strict=True):
        torch.testing.assert_close(mine, other)
    assert launches == [2, 2, 3, 3]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, torch.full((3,), 0.3)), plain[0])
    assert launches == [2, 2, 3, 3, 2, 2]
