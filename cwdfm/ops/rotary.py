"""Rotary position embeddings (RoPE): rotate queries and keys by angles proportional to position.

    angle[n, i] = position_n * base^(-2i / d),     pairs (x_i, x_{i + d/2}) rotate by angle[n, i]

On a GPU one kernel reads the packed queries, keys and values and writes the rotated queries and
keys; values stay in place. The backward kernel reads the three gradients and writes the packed one.
Both are custom operators that torch.compile does not trace into, so the tables of cosines and sines
are computed once per call and not again in every layer.

Shapes: B batch, N length, H heads, d head width.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cwdfm.ops.dispatch import fused_rotary, on_tensor_device

ROTARY_BASE = 10_000.0
BLOCK_PAIRS = 1024  # per program in registers: 16 bytes per thread and load
HEADS_TOGETHER = 4  # heads per program, which share its cosines and sines


def rotary(position_N: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, d] of the rotations for head width d; both halves are equal."""
    exponent = torch.arange(0, width, 2, device=position_N.device, dtype=torch.float32) / width
    angle = torch.outer(position_N.float(), ROTARY_BASE**-exponent).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (i, i + d/2) of x [..., N, d] by the angles of their positions."""
    cos, sin = (r.to(x.dtype) for r in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotate_qkv(qkv_BN3Hd: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries, rotated keys and values, each [B, H, N, d]."""
    if fused_rotary(qkv_BN3Hd):
        q, k, v = _RotateQKV.apply(qkv_BN3Hd, *rotation)  # type: ignore[no-untyped-call]
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    q, k, v = qkv_BN3Hd.permute(2, 0, 3, 1, 4).unbind(0)
    return rotate(q, rotation), rotate(k, rotation), v


class _RotateQKV(torch.autograd.Function):
    """Queries, keys and values, each [B, N, H, d], with one packed gradient."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        q, k = _rotate_forward(qkv, cos, sin)
        return q, k, qkv[:, :, 2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _rotate_backward(*grads, *ctx.saved_tensors), None, None


@torch.library.custom_op("cwdfm::rotate_forward", mutates_args=())
@on_tensor_device
def _rotate_forward(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys [B, N, H, d] of qkv [B, N, 3, H, d]."""
    batch, length, _, heads, width = qkv.shape
    q, k = (qkv.new_empty(batch, length, heads, width) for _ in range(2))
    source_q, source_k, _ = _contiguous_heads(qkv).unbind(2)
    _launch((source_q, source_k), (q, k), cos, sin, inverse=False)
    return q, k


@_rotate_forward.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, _, heads, width = qkv.shape
    q, k = (qkv.new_empty(batch, length, heads, width) for _ in range(2))
    return q, k


@torch.library.custom_op("cwdfm::rotate_backward", mutates_args=())
@on_tensor_device
def _rotate_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient [B, N, 3, H, d] of qkv from those of its rotated parts, [B, N, H, d] each."""
    batch, length, heads, width = dq.shape
    packed = dq.new_empty(batch, length, 3, heads, width)
    parts = [_contiguous_heads(d) for d in (dq, dk, dv)]
    _launch(parts, packed.unbind(2), cos, sin, inverse=True)
    return packed


@_rotate_backward.register_fake
def _(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    batch, length, heads, width = dq.shape
    return dq.new_empty(batch, length, 3, heads, width)


def _contiguous_heads(x: Tensor) -> Tensor:
    """x with contiguous heads, as the kernel requires."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch(
    sources: Sequence[Tensor], targets: Sequence[Tensor], cos: Tensor, sin: Tensor, *, inverse: bool
) -> None:
    """Write queries and keys, rotated, and values, if given, from `sources` to `targets`."""
    from cwdfm.ops.triton_attention import rotate_parts

    copies = len(sources) == 3
    if not copies:  # placeholders: the kernel ignores its third part
        sources, targets = [*sources, sources[0]], [*targets, targets[0]]
    batch, length, heads, width = sources[0].shape
    half, group, rows = width // 2, math.gcd(heads, HEADS_TOGETHER), batch * length
    block_half = 1 << (half - 1).bit_length()
    block_rows = max(1, BLOCK_PAIRS // block_half)
    groups = heads // group
    rotate_parts[(-(-rows // block_rows) * groups,)](
        *sources,
        *targets,
        cos.contiguous(),
        sin.contiguous(),
        *(stride for source in sources for stride in source.stride()[:3]),
        targets[0].stride(1),
        rows,
        length,
        HALF=half,
        BLOCK_HALF=block_half,
        BLOCK_ROWS=block_rows,
        GROUP=group,
        GROUPS=groups,
        INVERSE=inverse,
        COPY=copies,
        num_warps=4,
    )
