"""On a CUDA device: the transformer's rotation, norms, short attention and GELU.

Run there with `pytest -m gpu tests/gpu/test_gpu_model.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cwdfm.model.attention import (
    SHORT,
    AttentionPattern,
    BlockDiffusionAttention,
    CausalAttention,
    FullAttention,
)
from cwdfm.model.block import linear_gelu
from cwdfm.model.transformer import DiTConfig
from cwdfm.ops import attention, dispatch
from tests.support import norms
from tests.support.gpu import COMPILED, Operators
from tests.support.kernels import assert_alike, moved_dit, perturbed, tokens, trained

pytestmark = COMPILED


def half() -> AbstractContextManager[object]:
    context: AbstractContextManager[object] = torch.autocast("cuda", torch.bfloat16)
    return context


def apart(mine: list[Tensor], other: list[Tensor]) -> float:
    """The relative distance of all tensors together."""
    return float((flat(mine) - flat(other)).norm() / flat(other).norm())


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach().float().flatten() for part in parts])


@pytest.mark.parametrize(
    "pattern",
    [
        FullAttention(),
        CausalAttention(),
        BlockDiffusionAttention(4),
        BlockDiffusionAttention(4, dense=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [32, 160])
def test_transformer_trains_as_with_plain_rotation(
    pattern: AttentionPattern, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, with heads of 32, which FlexAttention supports."""
    model, x = moved_dit(width=64).cuda(), tokens(length).cuda()
    fused = trained(model, model.trunk, x, pattern)
    monkeypatch.setattr(dispatch, "MODE", "off")
    assert_alike(fused, trained(model, model.trunk, x, pattern), 1e-3)


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("length", [32, 160])
def test_compiled_half_precision_trains_like_plain_float32(
    by_block: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short attention, rotation and their gradients in compiled code, in one graph each."""
    model, x = moved_dit(width=64).cuda(), tokens(length).cuda()
    monkeypatch.setattr(dispatch, "MODE", "off")
    plain = trained(model, model.trunk, x)
    monkeypatch.setattr(dispatch, "MODE", "auto")
    torch._dynamo.reset()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", partial(real, fullgraph=True))
    model.compile_trunk(by_block=by_block)
    with half():
        compiled = trained(model, model.trunk, x)
        with torch.no_grad():
            sampled = model.trunk(x, torch.full((3,), 0.3, device="cuda"))
    assert_alike(compiled, plain, 0.1)
    assert_alike([sampled], plain[:1], 0.04)


def attended(mix: Callable[..., Tensor], qkv: Tensor) -> list[Tensor]:
    leaf = qkv.detach().requires_grad_()
    mixed = mix(*leaf.unbind(0))
    return [mixed, *torch.autograd.grad(mixed.float().square().sum(), leaf)]


@pytest.mark.parametrize("pattern", [FullAttention(), CausalAttention()], ids=str)
@pytest.mark.parametrize("width", [64, 20])
@pytest.mark.parametrize("compiled", [False, True])
def test_short_attention(pattern: AttentionPattern, width: int, compiled: bool) -> None:
    """With the memory-efficient kernel where it supports the heads; correct either way."""
    qkv = torch.randn(3, 8, 4, 32, width, generator=torch.manual_seed(0)).cuda().bfloat16()
    mix = pattern.attention_fn(0, 32, qkv.device)
    with Operators() as ran:
        mix(*qkv)
    assert ("_scaled_dot_product_efficient_attention" in ran.names) == (width == 64)
    with sdpa_kernel(SDPBackend.MATH):
        causal = isinstance(pattern, CausalAttention)
        exact = attended(partial(F.scaled_dot_product_attention, is_causal=causal), qkv.float())
    torch._dynamo.reset()
    mine = attended(torch.compile(mix, fullgraph=True) if compiled else mix, qkv)
    assert_alike([x.float() for x in mine], exact, 0.02)


def test_long_attention_keeps_its_kernel() -> None:
    """PyTorch's choice for long sequences does not change after a short one."""

    def kernels(length: int) -> list[str]:
        q = torch.randn(2, 4, length, 64, device="cuda", dtype=torch.bfloat16)
        with Operators() as ran:
            FullAttention().attention_fn(0, length, q.device)(q, q, q)
        return [*ran.names]

    before = kernels(512)
    assert kernels(SHORT) != before
    assert kernels(512) == before


@pytest.mark.parametrize("compiled", [False, True])
def test_fused_gelu_matches_the_plain_one(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(64, 128, 768, device="cuda"), nn.Linear(768, 3072, device="cuda")
    with torch.no_grad(), half():
        if not compiled:
            with Operators() as ran:
                linear_gelu(x, layer)
            assert "_addmm_activation" in ran.names
        torch._dynamo.reset()
        raised = torch.compile(linear_gelu, fullgraph=True) if compiled else linear_gelu
        fused = raised(x, layer)
        monkeypatch.setattr(dispatch, "MODE", "off")
        plain = linear_gelu(x, layer)
    assert fused.dtype == torch.bfloat16
    # The plain version also rounds before GELU, the fused one uses a hardware tanh.
    torch.testing.assert_close(fused, plain, rtol=2**-6, atol=2e-3)


def test_half_precision_without_autocast() -> None:
    model, x = moved_dit(width=64).cuda().eval(), tokens(32).cuda()
    t = torch.full((3,), 0.3, device="cuda")
    with torch.no_grad():
        full = model.trunk(x, t)
        halved = model.to(torch.bfloat16).trunk(x, t)
    assert halved.dtype == torch.bfloat16
    assert_alike([halved.float()], [full], 0.04)


@pytest.mark.parametrize("pattern", [FullAttention(), CausalAttention()], ids=str)
@pytest.mark.parametrize("length", [9, 32])
@pytest.mark.parametrize("compiled", [False, True])
def test_transformer_trains_with_fused_short_attention(
    pattern: AttentionPattern, length: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager and compiled in one graph, against plain float32."""
    model, x = moved_dit(width=128).cuda(), tokens(length).cuda()
    model.attention_pattern = pattern
    monkeypatch.setattr(dispatch, "MODE", "off")
    plain = trained(model, model.trunk, x)
    monkeypatch.setattr(dispatch, "MODE", "auto")
    ran: list[str] = []
    launch = attention._launch_attention

    def counted(*arguments: Any, **options: Any) -> None:
        ran.append("attend" if arguments[3] is None else "attend_backward")
        launch(*arguments, **options)

    monkeypatch.setattr(attention, "_launch_attention", counted)
    torch._dynamo.reset()
    trunk = torch.compile(model.trunk, fullgraph=True) if compiled else model.trunk
    with half():
        mine = trained(model, trunk, x)
        assert ran == ["attend"] * 2 + ["attend_backward"] * 2
        monkeypatch.setattr(dispatch, "MODE", "off")
        usual = trained(model, model.trunk, x)
    # Half precision limits accuracy: gradients of the first layers mostly cancel.
    assert apart(mine, plain) < 1.5 * apart(usual, plain) + 0.01


def test_norms_and_their_gradients_are_bitwise_reproducible() -> None:
    x = norms.given((64, 100, 768), torch.float32, torch.bfloat16, device="cuda")

    def once() -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        with half():
            outputs = x.run(0.1)
        return (*outputs, *norms.gradients(x, outputs))

    for a, b in zip(once(), once(), strict=True):
        assert torch.equal(a, b)


def test_compiled_dropout_mask_is_the_same_in_the_backward_pass() -> None:
    """Ones added to zeros, with a gradient of ones, expose the dropout mask."""
    x = norms.given((4, 50, 768), timed=False, device="cuda")
    ones = torch.ones_like(x.h, requires_grad=True)
    plain = x._replace(h=torch.zeros_like(x.h), y=ones)
    torch._dynamo.reset()
    run = torch.compile(lambda: plain.run(0.3)[0], fullgraph=True)
    seen = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        seen.append(run())
        assert torch.equal(torch.autograd.grad(seen[-1].sum(), ones)[0], seen[-1])
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(run(), run())
    assert abs(float((seen[0] == 0).float().mean()) - 0.3) < 0.006  # five standard deviations


@pytest.mark.parametrize("config", norms.NETWORKS, ids=str)
@pytest.mark.parametrize("by_block", [False, True])
def test_compiled_training_with_dropout_is_reproducible(config: DiTConfig, by_block: bool) -> None:
    model, x = perturbed(replace(config, width=64, depth=3, dropout=0.1)).cuda(), tokens(32).cuda()
    torch._dynamo.reset()
    model.compile_trunk(by_block=by_block)

    def once(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        with half():
            return trained(model, model.trunk, x)

    first, again, other = once(1), once(1), once(2)
    assert torch.equal(first[0], again[0])
    assert_alike(again, first, 0.01)  # PyTorch's own gradients may be summed in any order
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("config", norms.NETWORKS, ids=str)
def test_transformer_trains_as_with_plain_norms(
    config: DiTConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, with the same kernels for rotation and attention on both sides."""
    model, x = perturbed(replace(config, width=64)).cuda(), tokens(160).cuda()
    fused = trained(model, model.trunk, x)
    monkeypatch.setattr("cwdfm.ops.adaptive_norm.fused_norm", lambda h: False)
    assert_alike(fused, trained(model, model.trunk, x), 1e-4)
