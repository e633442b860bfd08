"""Rotary position embeddings (RoPE), and attention over short sequences fused with them.

    angle[n, i] = position_n * base^(-2i / d),     pairs (x_i, x_{i + d/2}) rotate by angle[n, i]
    out = softmax(q k^T / sqrt(d)) v,              q and k rotated by their positions

On a GPU one kernel reads the packed queries, keys and values and writes the rotated queries and
keys; values are not copied. The backward kernel reads the three gradients and writes the packed
one.

Flash attention kernels are designed for long sequences. With up to 64 tokens, one program holds all
queries, keys and values of a head: it reads the packed qkv, rotates, attends, and writes the output
in the layout of the next product. The backward kernel recomputes the softmax from the same inputs
and writes the packed gradient. Both move the minimum number of bytes.

The kernels are custom operators that torch.compile does not trace into, so the tables of cosines
and sines are computed once per call instead of in every layer.

Shapes: B batch, N length, H heads, d head width.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cwdfm.ops.dispatch import fused_rotary, next_power_of_2

ROTARY_BASE = 10_000.0
BLOCK_PAIRS = 1024  # per program in registers: 16 bytes per thread and load
HEADS_TOGETHER = 4  # heads per program, which share its cosines and sines
# Short attention: pairs per warp in the forward and in the backward kernel, which is one and two
# warps for 32 tokens and head width 64. With 94 registers per thread and 12 KB of shared memory, 17
# forward programs fit on a multiprocessor of an H200; with 120 registers and 14 KB, 8 backward
# programs: enough to overlap reads with computation. For 2,048 sequences of 12 heads, each
# multiprocessor runs 186 programs of 1,170 and 2,200 warp instructions, issued in 0.03 and 0.06 ms;
# memory access takes 0.1 and 0.17 ms.
WARP_PAIRS, WARP_PAIRS_BACKWARD, MAX_WARPS = 1024, 512, 4

Rotation = tuple[Tensor, Tensor]  # cosines and sines [N, d]


def rotary(position_N: Tensor, width: int) -> Rotation:
    """Cosines and sines [N, d] of the rotation angles for head width d; both halves are equal."""
    exponent = torch.arange(0, width, 2, device=position_N.device, dtype=torch.float32) / width
    angle = torch.outer(position_N.float(), ROTARY_BASE**-exponent).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the pairs (i, i + d/2) of x [..., d] by angles that broadcast to its shape."""
    cos, sin = (r.to(x.dtype).chunk(2, dim=-1)[0] for r in rotation)
    first, second = x.chunk(2, dim=-1)
    rotated = torch.addcmul(first * cos, second, -sin), torch.addcmul(second * cos, first, sin)
    return torch.cat(rotated, dim=-1)


def rotate_qkv(qkv_BN3Hd: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries, rotated keys and values, each [B, H, N, d]."""
    if fused_rotary(qkv_BN3Hd):
        q, k, v = _RotateQKV.apply(qkv_BN3Hd, *rotation)  # type: ignore[no-untyped-call]
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    # Queries and keys together, in the layout of the input: half the time of one after the other.
    cos, sin = (r[:, None, None] for r in rotation)
    q, k = rotate(qkv_BN3Hd[:, :, :2], (cos, sin)).transpose(1, 3).unbind(2)
    return q, k, qkv_BN3Hd[:, :, 2].transpose(1, 2)


def rotate_tokens(x_BMHd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate an even number of heads with the kernel, by cosines and sines [B, M, d] per token."""
    flat = x_BMHd.flatten(0, 1)[None]  # all tokens as one sequence
    out = torch.empty_like(flat, memory_format=torch.contiguous_format)
    sources, targets = (x.chunk(2, dim=2) for x in (_contiguous_heads(flat), out))
    _launch_rotation(sources, targets, cos.flatten(0, 1), sin.flatten(0, 1), inverse=False)
    return out.view(x_BMHd.shape)


class _RotateQKV(torch.autograd.Function):
    """Split qkv into rotated queries, rotated keys and values, each [B, N, H, d].

    The backward pass returns one packed gradient.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        q, k = _rotate_forward(qkv, cos, sin)
        return q, k, qkv[:, :, 2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _rotate_backward(*grads, *ctx.saved_tensors), None, None


@torch.library.custom_op("cwdfm::rotate_forward", mutates_args=())
def _rotate_forward(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys [B, N, H, d] of qkv [B, N, 3, H, d]."""
    q, k = _like_values(qkv), _like_values(qkv)
    source_q, source_k, _ = _contiguous_heads(qkv).unbind(2)
    _launch_rotation((source_q, source_k), (q, k), cos, sin, inverse=False)
    return q, k


@_rotate_forward.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return _like_values(qkv), _like_values(qkv)


@torch.library.custom_op("cwdfm::rotate_backward", mutates_args=())
def _rotate_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient [B, N, 3, H, d] of qkv from those of its rotated parts [B, N, H, d]."""
    packed = _packed(dq)
    parts = [_contiguous_heads(d) for d in (dq, dk, dv)]
    _launch_rotation(parts, packed.unbind(2), cos, sin, inverse=True)
    return packed


@_rotate_backward.register_fake
def _(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _packed(dq)


def _like_values(qkv: Tensor) -> Tensor:
    batch, length, _, heads, width = qkv.shape
    return qkv.new_empty(batch, length, heads, width)


def _packed(q: Tensor) -> Tensor:
    batch, length, heads, width = q.shape
    return q.new_empty(batch, length, 3, heads, width)


def _contiguous_heads(x: Tensor) -> Tensor:
    """x with contiguous heads, as the kernel requires."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch_rotation(
    sources: Sequence[Tensor], targets: Sequence[Tensor], cos: Tensor, sin: Tensor, *, inverse: bool
) -> None:
    """Rotate queries and keys from `sources` to `targets`, and copy values if there are any."""
    from cwdfm.ops.triton_attention import rotate_parts

    batch, length, heads, width = sources[0].shape
    half, group, rows = width // 2, math.gcd(heads, HEADS_TOGETHER), batch * length
    block_half = next_power_of_2(half)
    block_rows = max(1, BLOCK_PAIRS // block_half)
    groups = heads // group
    missing = (None,) * (3 - len(sources))
    strides = [stride for source in sources for stride in source.stride()[:3]]
    with torch.cuda.device_of(cos):
        rotate_parts[(-(-rows // block_rows) * groups,)](
            *sources, *missing, *targets, *missing, cos.contiguous(), sin.contiguous(),
            *strides, *[0, 0, 0] * len(missing), targets[0].stride(1), rows, length,
            HALF=half, BLOCK_HALF=block_half, BLOCK_ROWS=block_rows, GROUP=group, GROUPS=groups,
            INVERSE=inverse, num_warps=4,
        )  # fmt: skip


def short_attention(qkv_BN3Hd: Tensor, rotation: Rotation, *, causal: bool) -> Tensor:
    """Attention output [B, N, H, d]; requires `dispatch.fused_short_attention(qkv)`."""
    out: Tensor = _ShortAttention.apply(qkv_BN3Hd, *rotation, causal)  # type: ignore[no-untyped-call]
    return out


class _ShortAttention(torch.autograd.Function):
    """Saves only the inputs; the backward pass recomputes the softmax."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
        ctx.save_for_backward(qkv, cos, sin)
        ctx.causal = causal
        out: Tensor = _attend_forward(qkv, cos, sin, causal)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _attend_backward(*grads, *ctx.saved_tensors, ctx.causal), None, None, None


@torch.library.custom_op("cwdfm::short_attention_forward", mutates_args=())
def _attend_forward(qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    """Attention output [B, N, H, d] of qkv [B, N, 3, H, d]."""
    out = _like_values(qkv)
    _launch_attention(qkv, cos, sin, None, out, causal=causal)
    return out


@_attend_forward.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    return _like_values(qkv)


@torch.library.custom_op("cwdfm::short_attention_backward", mutates_args=())
def _attend_backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    """The gradient [B, N, 3, H, d] of qkv from that of the output, [B, N, H, d]."""
    d_qkv = qkv.new_empty(qkv.shape)
    _launch_attention(qkv, cos, sin, grad.contiguous(), d_qkv, causal=causal)
    return d_qkv


@_attend_backward.register_fake
def _(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _launch_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, grad: Tensor | None, out: Tensor, *, causal: bool
) -> None:
    """Launch attention, or its gradient with `grad`: one program per head and sequence."""
    from cwdfm.ops.triton_attention import attend

    batch, length, _, heads, width = qkv.shape
    # Tensor core products need at least 16 rows and columns.
    block, block_half = (max(16, next_power_of_2(size)) for size in (length, width // 2))
    warp_pairs = WARP_PAIRS if grad is None else WARP_PAIRS_BACKWARD
    with torch.cuda.device_of(cos):
        attend[(batch * heads,)](
            qkv.contiguous(), cos.contiguous(), sin.contiguous(), grad, out, length,
            HEADS=heads, HALF=width // 2, BLOCK=block, BLOCK_HALF=block_half, FULL=length == block,
            CAUSAL=causal, num_warps=min(MAX_WARPS, max(1, block * block_half // warp_pairs)),
        )  # fmt: skip
