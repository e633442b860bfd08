"""Checks of short attention against float64, shared by CPU and GPU tests."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.ops import attention
from cwdfm.ops.attention import rotary, short_attention
from tests.support.rotary import exactly, qkv_of, rotation_of

HALF = torch.float16


def mixed_exactly(qkv: Tensor, rotation: tuple[Tensor, Tensor], causal: bool) -> Tensor:
    """The plain expression in float64, [B, N, H, d]."""
    q, k, v = exactly(qkv, rotation)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def assert_close(mine: Tensor, exact: Tensor, roundings: float) -> None:
    """Compare heads [B, N, H, d], each up to some roundings relative to its norm."""
    error = torch.linalg.vector_norm(mine.double() - exact, dim=(1, 3))
    size = torch.linalg.vector_norm(exact, dim=(1, 3))
    assert bool((error <= roundings * torch.finfo(mine.dtype).eps * size + 1e-6).all()), (
        float((error / size).max()) / torch.finfo(mine.dtype).eps
    )


def check_attention(qkv: Tensor, rotation: tuple[Tensor, Tensor], causal: bool) -> None:
    """Attention output and gradient of qkv, against float64."""
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
    """Scores whose exponentials overflow float32; without rotation, which would round them."""
    qkv = qkv_of((2, 12, 3, 32), dtype, device)
    qkv[:, :, :2] = (40 * qkv[:, :, :2]).round()
    check_attention(qkv, rotary(torch.zeros(12, device=device), 32), causal)


def check_bounds(length: int, width: int, causal: bool, device: str) -> None:
    """A sequence neither reads nor writes beyond its end."""
    qkv = qkv_of((3, length, 2, width), HALF, device)
    grad = torch.randn_like(qkv[:, :, 0])
    qkv[2], grad[2] = float("nan"), float("nan")
    rotation = rotation_of(length, width, device)
    mixed, d_qkv = torch.full_like(grad, 7.0), torch.full_like(qkv, 7.0)
    attention._launch_attention(qkv[:2], *rotation, None, mixed[:2], causal=causal)
    attention._launch_attention(qkv[:2], *rotation, grad[:2], d_qkv[:2], causal=causal)
    for out in (mixed, d_qkv):
        assert bool(out[:2].isfinite().all())
        assert bool((out[2] == 7.0).all())
