"""Fused attention and rotation of short sequences, against the plain expression.

The kernels run in Triton's interpreter, which multiplies float16 but not bfloat16:
TRITON_INTERPRET=1 pytest this file.
"""

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
    attend,
)
from cwdfm.ops import attention as module
from cwdfm.ops import dispatch
from tests.support.kernels import interpreted, moved_dit, trained
from tests.support.rotary import qkv_of, rotation_of
from tests.support.short_attention import (
    HALF,
    assert_close,
    check_bounds,
    check_far_apart,
    check_sizes,
)

# N, d: tiles filled by tokens, by pairs, by both, by neither; a single token.
SIZES = [(1, 32), (5, 16), (16, 48), (32, 64), (33, 80), (64, 128)]
CPU = torch.device("cpu")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of launched kernels, which run wherever they can."""
    names: list[str] = []
    launch = module._launch_attention

    def counted(*arguments: Any, **options: Any) -> None:
        names.append("attend" if arguments[3] is None else "attend_backward")
        launch(*arguments, **options)

    monkeypatch.setattr(module, "_launch_attention", counted)
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
def test_operators_pass_opcheck() -> None:
    qkv, rotation = qkv_of((2, 5, 3, 16), HALF), rotation_of(5, 16)
    ops = torch.ops.cwdfm
    torch.library.opcheck(ops.short_attention_forward, (qkv, *rotation, True))
    torch.library.opcheck(ops.short_attention_backward, (qkv[:, :, 0], qkv, *rotation, False))


def attended(pattern: AttentionPattern, length: int, width: int, dtype: torch.dtype) -> Tensor:
    qkv = qkv_of((2, length, 2, width), dtype)
    return attend(qkv, rotation_of(length, width), pattern.attention_fn(0, length, CPU))


@interpreted
def test_conditions_for_the_kernel(launches: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Full and causal attention over short sequences in half precision, in heads of whole tiles."""
    for pattern in (FullAttention(), CausalAttention()):
        assert attended(pattern, 64, 128, HALF).shape == (2, 64, 2, 128)
        assert launches == ["attend"]
        launches.clear()
        attended(pattern, 8, 16, torch.float32)
        attended(pattern, 8, 16, torch.bfloat16)  # on a CPU
        attended(pattern, 65, 16, HALF)
        attended(pattern, 8, 24, HALF)
        attended(pattern, 8, 144, HALF)
    attended(BlockDiffusionAttention(4), 8, 16, HALF)
    attended(CachedAttention(KVCache(8), causal=True), 8, 16, HALF)
    for mode in ("auto", "off"):
        monkeypatch.setattr(dispatch, "MODE", mode)
        attended(FullAttention(), 8, 16, HALF)
    assert not launches


@interpreted
@pytest.mark.parametrize("pattern", [FullAttention(), CausalAttention()], ids=str)
def test_attention_matches_the_plain_one(
    pattern: AttentionPattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = attended(pattern, 12, 32, HALF)
    monkeypatch.setattr(dispatch, "MODE", "on")
    mine = attended(pattern, 12, 32, HALF)
    assert mine.shape == plain.shape
    assert_close(mine, plain.double(), 2.0)


def assert_alike(mine: list[Tensor], other: list[Tensor], tolerance: float) -> None:
    """Compare norms: elements that cancel may have large relative errors."""
    for a, b in zip(mine, other, strict=True):
        assert float((a - b).detach().norm()) <= tolerance * float(b.detach().norm())


@interpreted
@pytest.mark.parametrize("pattern", [FullAttention(), CausalAttention()], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
@pytest.mark.usefixtures("plain_norms")
def test_transformer_trains_in_one_graph(pattern: AttentionPattern, launches: list[str]) -> None:
    """Eager and compiled with the "aot_eager" backend, against plain float32."""
    model, x = moved_dit(width=64), torch.randint(0, 11, (3, 9), generator=torch.manual_seed(2))
    plain = trained(model, model.trunk, x, pattern)
    assert not launches
    model.attention_pattern = pattern
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
