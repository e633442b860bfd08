"""Attention over short sequences with its rotation in one kernel, against the plain expression.

The kernels run in Triton's interpreter, which multiplies float16 but not bfloat16:
TRITON_INTERPRET=1 pytest this file.
"""

import os
from importlib.util import find_spec
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
from cwdfm.ops import dispatch
from cwdfm.ops import short_attention as module
from cwdfm.ops.rotary import rotary
from cwdfm.ops.short_attention import short_attention
from tests.ops.test_rotary import exactly, moved_dit, qkv_of, rotation_of, trained

interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)
HALF = torch.float16
# N, d: tiles that are filled by tokens, by pairs, by both and by neither; one token.
SIZES = [(1, 32), (5, 16), (16, 48), (32, 64), (33, 80), (64, 128)]
CPU = torch.device("cpu")


def mixed_exactly(qkv: Tensor, rotation: tuple[Tensor, Tensor], causal: bool) -> Tensor:
    """The plain expression in float64, [B, N, H, d]."""
    q, k, v = exactly(qkv, rotation)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def assert_close(mine: Tensor, exact: Tensor, roundings: float) -> None:
    """Heads of sequences [B, N, H, d], each up to some roundings of its length."""
    error = torch.linalg.vector_norm(mine.double() - exact, dim=(1, 3))
    size = torch.linalg.vector_norm(exact, dim=(1, 3))
    assert bool((error <= roundings * torch.finfo(mine.dtype).eps * size + 1e-6).all()), (
        float((error / size).max()) / torch.finfo(mine.dtype).eps
    )


def check_attention(qkv: Tensor, rotation: tuple[Tensor, Tensor], causal: bool) -> None:
    """Mixed values and the gradient of what they were mixed from, against float64."""
    qkv.requires_grad_()
    mixed = short_attention(qkv, rotation, causal=causal)
    assert mixed.dtype == qkv.dtype
    assert mixed.is_contiguous()
    leaf = qkv.detach().double().requires_grad_()
    exact = mixed_exactly(leaf, rotation, causal)
    assert_close(mixed, exact, 1.0)
    grad = torch.randn(mixed.shape, generator=torch.manual_seed(2)).to(mixed)
    (mine,) = torch.autograd.grad(mixed, qkv, grad)
    (other,) = torch.autograd.grad(exact, leaf, grad.double())
    assert mine.dtype == qkv.dtype
    assert mine.is_contiguous()
    for part in range(3):
        assert_close(mine[:, :, part], other[:, :, part], 1.5)


def check_sizes(length: int, width: int, dtype: torch.dtype, causal: bool, device: str) -> None:
    qkv = qkv_of((2, length, 3, width), dtype, device)
    check_attention(qkv, rotation_of(length, width, device), causal)


def check_far_apart(dtype: torch.dtype, causal: bool, device: str) -> None:
    """Scores whose exponentials float32 cannot hold; rotated by nothing, which rounds nothing."""
    qkv = qkv_of((2, 12, 3, 32), dtype, device)
    qkv[:, :, :2] = (40 * qkv[:, :, :2]).round()
    check_attention(qkv, rotary(torch.zeros(12, device=device), 32), causal)


def check_bounds(length: int, width: int, causal: bool, device: str) -> None:
    """A sequence neither reads nor writes what stands behind it."""
    from cwdfm.ops.triton_short_attention import attend, attend_backward

    qkv = qkv_of((3, length, 2, width), HALF, device)
    grad = torch.randn_like(qkv[:, :, 0])
    qkv[2], grad[2] = float("nan"), float("nan")
    rotation = rotation_of(length, width, device)
    mixed, d_qkv = torch.full_like(grad, 7.0), torch.full_like(qkv, 7.0)
    module._launch(attend, 512, qkv[:2], *rotation, mixed[:2], causal=causal)
    module._launch(attend_backward, 512, qkv[:2], *rotation, grad[:2], d_qkv[:2], causal=causal)
    for out in (mixed, d_qkv):
        assert bool(out[:2].isfinite().all())
        assert bool((out[2] == 7.0).all())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were launched; they are used wherever they can be."""
    names: list[str] = []
    launch = module._launch

    def counted(kernel: Any, *rest: Any, **options: Any) -> None:
        names.append(kernel.__name__)
        launch(kernel, *rest, **options)

    monkeypatch.setattr(module, "_launch", counted)
    monkeypatch.setattr(dispatch, "MODE", "on")
    return names


@interpreted
@pytest.mark.parametrize(("length", "width"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradient(length: int, width: int, causal: bool) -> None:
    check_sizes(length, width, HALF, causal, "cpu")


@interpreted
@pytest.mark.parametrize("causal", [False, True])
def test_scores_far_apart(causal: bool) -> None:
    check_far_apart(HALF, causal, "cpu")


@interpreted
@pytest.mark.parametrize(("length", "width"), [(5, 48), (16, 32)])
def test_bounds(length: int, width: int) -> None:
    for causal in (False, True):
        check_bounds(length, width, causal, "cpu")


@interpreted
def test_inputs_may_come_in_any_layout() -> None:
    qkv, rotation = qkv_of((2, 6, 3, 16), HALF), rotation_of(6, 16)
    grad = torch.randn(2, 6, 3, 16, generator=torch.manual_seed(2)).half()
    ops = torch.ops.cwdfm
    apart = qkv.permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4)
    turned = grad.transpose(1, 2).contiguous().transpose(1, 2)
    assert not apart.is_contiguous()
    assert not turned.is_contiguous()
    mixed = ops.short_attention_forward(qkv, *rotation, True)
    assert torch.equal(ops.short_attention_forward(apart, *rotation, True), mixed)
    mine = ops.short_attention_backward(turned, apart, *rotation, True)
    assert torch.equal(mine, ops.short_attention_backward(grad, qkv, *rotation, True))
    assert mine.is_contiguous()


@interpreted
def test_operators_are_what_they_tell_the_compiler() -> None:
    qkv, rotation = qkv_of((2, 5, 3, 16), HALF), rotation_of(5, 16)
    ops = torch.ops.cwdfm
    torch.library.opcheck(ops.short_attention_forward, (qkv, *rotation, True))
    torch.library.opcheck(ops.short_attention_backward, (qkv[:, :, 0], qkv, *rotation, False))


def attended(sight: AttentionPattern, length: int, width: int, dtype: torch.dtype) -> Tensor:
    qkv = qkv_of((2, length, 2, width), dtype)
    return attend(qkv, rotation_of(length, width), sight.attention_fn(0, length, CPU))


@interpreted
def test_who_takes_this_path(launches: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Full and causal attention over short sequences in half precision, in heads of whole tiles."""
    for sight in (FullAttention(), CausalAttention()):
        assert attended(sight, 64, 128, HALF).shape == (2, 64, 2, 128)
        assert launches == ["attend"]
        launches.clear()
        attended(sight, 8, 16, torch.float32)
        attended(sight, 8, 16, torch.bfloat16)  # on a CPU
        attended(sight, 65, 16, HALF)
        attended(sight, 8, 24, HALF)
        attended(sight, 8, 144, HALF)
    attended(BlockDiffusionAttention(4), 8, 16, HALF)
    attended(CachedAttention(KVCache(8), causal=True), 8, 16, HALF)
    for mode in ("auto", "off"):
        monkeypatch.setattr(dispatch, "MODE", mode)
        attended(FullAttention(), 8, 16, HALF)
    assert not launches


@interpreted
@pytest.mark.parametrize("sight", [FullAttention(), CausalAttention()], ids=str)
def test_it_mixes_as_elsewhere(sight: AttentionPattern, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attended(sight, 12, 32, HALF)
    monkeypatch.setattr(dispatch, "MODE", "on")
    mine = attended(sight, 12, 32, HALF)
    assert mine.shape == plain.shape
    assert_close(mine, plain.double(), 2.0)


def assert_alike(mine: list[Tensor], other: list[Tensor], tolerance: float) -> None:
    """Each up to `tolerance` of its length: elements that cancel have large errors of their own."""
    for a, b in zip(mine, other, strict=True):
        assert float((a - b).detach().norm()) <= tolerance * float(b.detach().norm())


@interpreted
@pytest.mark.parametrize("sight", [FullAttention(), CausalAttention()], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's, of its own doings
@pytest.mark.usefixtures("plain_norms")
def test_transformer_trains_in_one_graph(sight: AttentionPattern, launches: list[str]) -> None:
    """Eagerly and compiled, by the front end alone ("aot_eager"), against plain float32."""
    model, x = moved_dit(width=64), torch.randint(0, 11, (3, 9), generator=torch.manual_seed(2))
    plain = trained(model, model.trunk, x, sight)
    assert not launches
    model.attention_pattern = sight
    compiled = torch.compile(model.trunk, backend="aot_eager", fullgraph=True)
    there, back = ["attend"] * 2, ["attend_backward"] * 2
    for trunk in (model.trunk, compiled):
        with torch.autocast("cpu", HALF):
            assert_alike(trained(model, trunk, x), plain, 0.02)
            assert launches == there + back
            with torch.no_grad():
                assert_alike([trunk(x, torch.full((3,), 0.3))], plain[:1], 0.01)
            assert launches == there + back + there
        launches.clear()
