"""Rotary embeddings: the fused rotation of queries and keys against the plain one.

The kernel runs in Triton's interpreter: TRITON_INTERPRET=1 pytest this file.
"""

from typing import Any

import pytest
import torch

from cwdfm.model.attention import (
    AttentionPattern,
    BlockDiffusionAttention,
    CachedAttention,
    CausalAttention,
    FullAttention,
    KVCache,
)
from cwdfm.ops import attention as module
from cwdfm.ops import dispatch
from cwdfm.ops.attention import rotate, rotate_qkv
from tests.support.kernels import interpreted, moved_dit, trained
from tests.support.rotary import SHAPES, check_layouts, check_rotation, qkv_of, rotation_of


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tensors of every kernel launch; the kernel runs wherever it can."""
    moved: list[int] = []
    launch = module._launch_rotation

    def counted(sources: Any, *rest: Any, **options: Any) -> None:
        moved.append(len(sources))
        launch(sources, *rest, **options)

    monkeypatch.setattr(module, "_launch_rotation", counted)
    monkeypatch.setattr(dispatch, "MODE", "on")
    return moved


@interpreted
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_and_gradient_are_exact(
    shape: tuple[int, int, int, int], dtype: torch.dtype, launches: list[int]
) -> None:
    check_rotation(shape, dtype, "cpu")
    assert launches == [2, 3]  # forward without values, backward with them


@interpreted
def test_values_are_not_copied(launches: list[int]) -> None:
    qkv = qkv_of((2, 5, 2, 8), torch.float32)
    q, _, v = rotate_qkv(qkv, rotation_of(5, 8))
    assert launches == [2]
    assert v.untyped_storage().data_ptr() == qkv.untyped_storage().data_ptr()
    assert q.untyped_storage().data_ptr() != qkv.untyped_storage().data_ptr()


@interpreted
def test_gradients_may_come_in_any_layout() -> None:
    check_layouts("cpu")


@interpreted
def test_operators_pass_opcheck() -> None:
    qkv, rotation = qkv_of((2, 5, 3, 12), torch.float32), rotation_of(5, 12)
    torch.library.opcheck(torch.ops.cwdfm.rotate_forward, (qkv, *rotation))
    grads = qkv_of((2, 5, 3, 12), torch.float32).permute(2, 0, 3, 1, 4).transpose(2, 3).unbind(0)
    torch.library.opcheck(torch.ops.cwdfm.rotate_backward, (*grads, *rotation))


def test_plain_expression_runs_otherwise(launches: list[int]) -> None:
    """In float64, on a CPU by default, and everywhere if disabled."""
    rotation = rotation_of(5, 8)
    for mode, dtype in (("on", torch.float64), ("auto", torch.float32), ("off", torch.float32)):
        dispatch.MODE = mode
        qkv = qkv_of((2, 5, 2, 8), dtype)
        q, k, v = rotate_qkv(qkv, rotation)
        assert torch.equal(q, rotate(qkv[:, :, 0].transpose(1, 2), rotation))
        assert torch.equal(k, rotate(qkv[:, :, 1].transpose(1, 2), rotation))
        assert torch.equal(v, qkv[:, :, 2].transpose(1, 2))
    assert not launches


@interpreted
@pytest.mark.parametrize(
    "pattern", [FullAttention(), CausalAttention(), BlockDiffusionAttention(4)], ids=str
)
@pytest.mark.usefixtures("plain_norms")
def test_transformer_trains_as_with_plain_rotation(
    pattern: AttentionPattern, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = moved_dit(), torch.randint(0, 11, (3, 16), generator=torch.manual_seed(2))
    fused = trained(model, model.trunk, x, pattern)
    assert launches == [2, 2, 3, 3]
    monkeypatch.setattr(dispatch, "MODE", "off")
    for mine, other in zip(fused, trained(model, model.trunk, x, pattern), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    assert len(launches) == 4


@interpreted
def test_positions_behind_a_cache(launches: list[int]) -> None:
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
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
@pytest.mark.usefixtures("plain_norms")
def test_compiled_in_one_graph(launches: list[int]) -> None:
    """With the "aot_eager" backend, which calls the operators, with and without gradients."""
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
