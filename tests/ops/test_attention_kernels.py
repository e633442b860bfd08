"""Rotary embeddings, and short attention fused with them: the kernels against float64.

On a CPU the kernels run in Triton's interpreter, which multiplies float16 but not bfloat16:
TRITON_INTERPRET=1 pytest this file.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.model.attention import (
    AttentionPattern,
    BlockDiffusionAttention,
    CachedAttention,
    CausalAttention,
    FullAttention,
    KVCache,
    attend,
)
from cwdfm.ops import attention, dispatch
from cwdfm.ops.attention import Rotation, rotary, rotate, rotate_qkv, short_attention
from tests.support.cases import slow
from tests.support.gpu import COMPILED, DEVICES
from tests.support.kernels import assert_alike, interpreted, moved_dit, tokens, trained

FULL, HALF, BF16 = torch.float32, torch.float16, torch.bfloat16
OPS = torch.ops.cwdfm
PATTERNS = [FullAttention(), CausalAttention()]
IN_ONE_GRAPH: Any = {"backend": "aot_eager", "fullgraph": True}
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of launched kernels, which run wherever they can."""
    names: list[str] = []
    rotation, short = attention._launch_rotation, attention._launch_attention

    def rotated(sources: Any, *rest: Any, **options: Any) -> None:
        names.append(f"rotate {len(sources)}")
        rotation(sources, *rest, **options)

    def attended(*arguments: Any, **options: Any) -> None:
        names.append("attend" if arguments[3] is None else "attend backward")
        short(*arguments, **options)

    monkeypatch.setattr(attention, "_launch_rotation", rotated)
    monkeypatch.setattr(attention, "_launch_attention", attended)
    monkeypatch.setattr(dispatch, "MODE", "on")
    return names


def qkv_of(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    batch, length, heads, width = shape
    x = torch.randn(batch, length, 3, heads, width, generator=torch.manual_seed(0))
    return x.to(device, dtype)


def rotation_of(length: int, width: int, device: str = "cpu") -> Rotation:
    """For positions in random order, some repeated."""
    place = torch.randint(0, 2 * length, (length,), generator=torch.manual_seed(1))
    return rotary(place.to(device), width)


def exactly(qkv: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys, and values, in float64, each [B, H, N, d]."""
    cos, sin = (r.double() for r in rotation)
    q, k, v = qkv.double().permute(2, 0, 3, 1, 4).unbind(0)
    return rotate(q, (cos, sin)), rotate(k, (cos, sin)), v


def assert_rounded(mine: Tensor, exact: Tensor) -> None:
    """Equal up to float32 arithmetic and one rounding to the dtype of `mine`."""
    rtol = torch.finfo(mine.dtype).eps
    torch.testing.assert_close(mine.double(), exact, rtol=rtol, atol=2e-6)


# B, N, H, d: the paper's heads; widths that are not powers of two; partial tiles.
SHAPES = [(2, 5, 12, 64), (1, 40, 3, 12), (3, 7, 2, 6), (2, 33, 1, 2)]
ROTATIONS = [
    *(pytest.param("cpu", s, d, marks=interpreted) for s in SHAPES for d in (FULL, BF16)),
    *(
        pytest.param("cuda", shape, dtype, marks=COMPILED)
        for shape in (*SHAPES, (8, 1024, 12, 64), (3, 100, 5, 48))
        for dtype in (FULL, BF16, HALF)
    ),
]


@pytest.mark.parametrize(("device", "shape", "dtype"), ROTATIONS, ids=str)
def test_rotation_and_gradient_are_exact(
    device: str, shape: tuple[int, int, int, int], dtype: torch.dtype, launches: list[str]
) -> None:
    qkv = qkv_of(shape, dtype, device).requires_grad_()
    rotation = rotation_of(shape[1], shape[3], device)
    parts = rotate_qkv(qkv, rotation)
    for mine, other in zip(parts, exactly(qkv, rotation), strict=True):
        assert mine.dtype == dtype
        assert_rounded(mine, other)
    assert parts[2].untyped_storage().data_ptr() == qkv.untyped_storage().data_ptr()  # not copied
    grads = [torch.randn_like(part) for part in parts]
    (mine,) = torch.autograd.grad(parts, qkv, grads)
    # In float64: casting back to the leaf would round the reference.
    leaf = qkv.detach().double().requires_grad_()
    double = [grad.double() for grad in grads]
    (other,) = torch.autograd.grad(exactly(leaf, rotation), leaf, double)
    assert mine.is_contiguous()
    assert_rounded(mine, other)
    assert launches == ["rotate 2", "rotate 3"]  # forward without values, backward with them


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_rotations_may_come_in_any_layout(device: str) -> None:
    """By heads, by tokens, sliced from a larger tensor, expanded from a scalar."""
    batch, length, heads, width = shape = (2, 9, 3, 8)
    g = torch.manual_seed(3)
    by_heads = torch.randn(batch, heads, length, width, generator=g).to(device).transpose(1, 2)
    packed = torch.randn(batch, length, 3, heads, width, generator=g).to(device)[:, :, 1]
    strided = torch.randn(batch, length, heads, 2 * width, generator=g).to(device)[..., ::2]
    constant = torch.ones((), device=device).expand(shape)
    rotation = rotation_of(length, width, device)
    for grads in ((by_heads, packed, strided), (constant, strided, by_heads)):
        mine = OPS.rotate_backward(*grads, *rotation)
        assert torch.equal(mine, OPS.rotate_backward(*(g.contiguous() for g in grads), *rotation))
        assert torch.equal(mine[:, :, 2], grads[2])


@interpreted
def test_operators_pass_opcheck() -> None:
    qkv, rotation = qkv_of((2, 5, 3, 12), FULL), rotation_of(5, 12)
    torch.library.opcheck(OPS.rotate_forward, (qkv, *rotation))
    grads = qkv.permute(2, 0, 3, 1, 4).transpose(2, 3).unbind(0)
    torch.library.opcheck(OPS.rotate_backward, (*grads, *rotation))
    qkv, rotation = qkv_of((2, 5, 3, 16), HALF), rotation_of(5, 16)
    torch.library.opcheck(OPS.short_attention_forward, (qkv, *rotation, True))
    torch.library.opcheck(OPS.short_attention_backward, (qkv[:, :, 0], qkv, *rotation, False))


def test_plain_rotation_runs_otherwise(launches: list[str]) -> None:
    """In float64, on a CPU by default, and everywhere if disabled."""
    rotation = rotation_of(5, 8)
    for mode, dtype in (("on", torch.float64), ("auto", FULL), ("off", FULL)):
        dispatch.MODE = mode
        qkv = qkv_of((2, 5, 2, 8), dtype)
        q, k, v = rotate_qkv(qkv, rotation)
        assert torch.equal(q, rotate(qkv[:, :, 0].transpose(1, 2), rotation))
        assert torch.equal(k, rotate(qkv[:, :, 1].transpose(1, 2), rotation))
        assert torch.equal(v, qkv[:, :, 2].transpose(1, 2))
    assert not launches


@interpreted
@compiles
@pytest.mark.parametrize(
    "pattern", [FullAttention(), slow(CausalAttention()), slow(BlockDiffusionAttention(4))], ids=str
)
@pytest.mark.parametrize("compiled", [False, slow(True)])
@pytest.mark.usefixtures("plain_norms")
def test_transformer_trains_as_with_plain_rotation(
    compiled: bool, pattern: AttentionPattern, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager, and compiled in one graph with the "aot_eager" backend, which calls the operators."""
    model, x = moved_dit(depth=1), tokens(16)
    model.attention_pattern = pattern
    trunk = torch.compile(model.trunk, **IN_ONE_GRAPH) if compiled else model.trunk
    fused = trained(model, trunk, x)
    assert launches == ["rotate 2", "rotate 3"]
    monkeypatch.setattr(dispatch, "MODE", "off")
    assert_alike(fused, trained(model, model.trunk, x), 1e-4)
    assert len(launches) == 2


@interpreted
@pytest.mark.usefixtures("plain_norms")
def test_positions_behind_a_cache(launches: list[str]) -> None:
    model, t, x = moved_dit("causal").eval(), torch.zeros(3), tokens(9)
    with torch.no_grad():
        at_once = model.trunk(x, t)
        cache, pieces = KVCache(9), []
        for start, end in ((0, 4), (4, 5), (5, 9)):
            pieces.append(model.trunk(x[:, start:end], t, CachedAttention(cache, causal=True)))
            cache.start = end
    torch.testing.assert_close(torch.cat(pieces, 1), at_once, rtol=1e-4, atol=1e-5)
    assert set(launches) == {"rotate 2"}


def assert_close(mine: Tensor, exact: Tensor, roundings: float) -> None:
    """Compare heads [B, N, H, d], each up to some roundings relative to its norm."""
    error = torch.linalg.vector_norm(mine.double() - exact, dim=(1, 3))
    size = torch.linalg.vector_norm(exact, dim=(1, 3))
    eps = torch.finfo(mine.dtype).eps
    assert bool((error <= roundings * eps * size + 1e-6).all()), float((error / size).max()) / eps


def check_attention(qkv: Tensor, rotation: Rotation, causal: bool) -> None:
    """Attention output and gradient of qkv, against float64."""
    qkv.requires_grad_()
    mixed = short_attention(qkv, rotation, causal=causal)
    leaf = qkv.detach().double().requires_grad_()
    exact = F.scaled_dot_product_attention(*exactly(leaf, rotation), is_causal=causal)
    assert_close(mixed, exact.transpose(1, 2), 1.0)
    grad = torch.randn(mixed.shape, generator=torch.manual_seed(2)).to(mixed)
    (mine,) = torch.autograd.grad(mixed, qkv, grad)
    (other,) = torch.autograd.grad(exact.transpose(1, 2), leaf, grad.double())
    for part in range(3):
        assert_close(mine[:, :, part], other[:, :, part], 1.5)
    for out in (mixed, mine):
        assert out.dtype == qkv.dtype
        assert out.is_contiguous()


# N, d: tiles filled by tokens, by pairs, by both, by neither; a single token.
SIZES = [(1, 32), (5, 16), (16, 48), (32, 64), (33, 80), (64, 128)]
ATTENTIONS = [
    *(pytest.param("cpu", *size, HALF, marks=interpreted) for size in SIZES),
    *(
        pytest.param("cuda", length, width, dtype, marks=COMPILED)
        for length in (1, 5, 16, 32, 33, 64)
        for width, dtype in ((16, BF16), (48, BF16), (64, BF16), (64, HALF), (128, BF16))
    ),
]


@pytest.mark.parametrize(("device", "length", "width", "dtype"), ATTENTIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_short_attention_and_gradient(
    device: str, length: int, width: int, dtype: torch.dtype, causal: bool
) -> None:
    qkv = qkv_of((2, length, 3, width), dtype, device)
    check_attention(qkv, rotation_of(length, width, device), causal)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
def test_scores_far_apart(causal: bool, device: str) -> None:
    """Scores whose exponentials overflow float32; without rotation, which would round them."""
    qkv = qkv_of((2, 12, 3, 32), HALF, device)
    qkv[:, :, :2] = (40 * qkv[:, :, :2]).round()
    check_attention(qkv, rotary(torch.zeros(12, device=device), 32), causal)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("length", "width"), [(5, 48), (16, 32), (33, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_bounds(length: int, width: int, causal: bool, device: str) -> None:
    """A sequence neither reads nor writes beyond its end."""
    qkv = qkv_of((3, length, 2, width), HALF, device)
    grad = torch.randn_like(qkv[:, :, 0])
    qkv[2], grad[2] = float("nan"), float("nan")
    rotation = rotation_of(length, width, device)
    for given, out in ((None, torch.full_like(grad, 7.0)), (grad[:2], torch.full_like(qkv, 7.0))):
        attention._launch_attention(qkv[:2], *rotation, given, out[:2], causal=causal)
        assert bool(out[:2].isfinite().all())
        assert bool((out[2] == 7.0).all())


@interpreted
def test_inputs_of_short_attention_may_come_in_any_layout() -> None:
    qkv, rotation = qkv_of((2, 6, 3, 16), HALF), rotation_of(6, 16)
    grad = torch.randn(2, 6, 3, 16, generator=torch.manual_seed(2)).half()
    apart = qkv.permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4)
    turned = grad.transpose(1, 2).contiguous().transpose(1, 2)
    assert not apart.is_contiguous()
    assert not turned.is_contiguous()
    mixed = OPS.short_attention_forward(qkv, *rotation, True)
    assert torch.equal(OPS.short_attention_forward(apart, *rotation, True), mixed)
    mine = OPS.short_attention_backward(turned, apart, *rotation, True)
    assert torch.equal(mine, OPS.short_attention_backward(grad, qkv, *rotation, True))


@pytest.mark.gpu
def test_short_attention_does_not_depend_on_the_batch() -> None:
    qkv = qkv_of((2048, 32, 12, 64), BF16, "cuda").requires_grad_()
    rotation = rotation_of(32, 64, "cuda")
    mixed = short_attention(qkv, rotation, causal=False)
    (grad,) = torch.autograd.grad(mixed, qkv, mixed.detach())
    for rows in (slice(1), slice(1000, 1003), slice(2047, 2048)):
        few = qkv[rows].detach().requires_grad_()
        again = short_attention(few, rotation, causal=False)
        assert torch.equal(again, mixed[rows])
        assert torch.equal(torch.autograd.grad(again, few, again.detach())[0], grad[rows])


def attended(pattern: AttentionPattern, length: int, width: int, dtype: torch.dtype) -> Tensor:
    qkv, device = qkv_of((2, length, 2, width), dtype), torch.device("cpu")
    return attend(qkv, rotation_of(length, width), pattern.attention_fn(0, length, device))


@interpreted
@pytest.mark.usefixtures("plain_rotations")
def test_conditions_for_short_attention(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full and causal attention over short sequences in half precision, in heads of whole tiles."""
    for pattern in PATTERNS:
        mine = attended(pattern, 64, 128, HALF)
        assert launches == ["attend"]
        launches.clear()
        monkeypatch.setattr(dispatch, "MODE", "off")
        assert_close(mine, attended(pattern, 64, 128, HALF).double(), 2.0)
        monkeypatch.setattr(dispatch, "MODE", "on")
        for length, width, dtype in ((8, 16, FULL), (8, 16, BF16), (65, 16, HALF), (8, 24, HALF)):
            attended(pattern, length, width, dtype)  # bfloat16 works on a GPU only
        attended(pattern, 8, 144, HALF)
    attended(BlockDiffusionAttention(4), 8, 16, HALF)
    attended(CachedAttention(KVCache(8), causal=True), 8, 16, HALF)
    monkeypatch.setattr(dispatch, "MODE", "auto")
    attended(FullAttention(), 8, 16, HALF)
    assert not launches


@interpreted
@compiles
@pytest.mark.parametrize("pattern", [CausalAttention(), slow(FullAttention())], ids=str)
@pytest.mark.parametrize("compiled", [False, slow(True)])
@pytest.mark.usefixtures("plain_norms", "plain_rotations")
def test_transformer_trains_with_short_attention(
    compiled: bool, pattern: AttentionPattern, launches: list[str]
) -> None:
    """Eager and compiled with the "aot_eager" backend, against plain float32."""
    model, x = moved_dit(width=64, depth=1), tokens(9)
    model.attention_pattern = pattern
    plain = trained(model, model.trunk, x)
    assert not launches
    trunk = torch.compile(model.trunk, **IN_ONE_GRAPH) if compiled else model.trunk
    there, back = ["attend"], ["attend backward"]
    with torch.autocast("cpu", HALF):
        assert_alike(trained(model, trunk, x), plain, 0.02)
        assert launches == there + back
        with torch.no_grad():
            assert_alike([trunk(x, torch.full((3,), 0.3))], plain[:1], 0.01)
        assert launches == there + back + there
