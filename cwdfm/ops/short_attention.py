"""Attention over short sequences, fused with rotary embeddings.

    out = softmax(q k^T / sqrt(d)) v,     q and k rotated by their positions

Flash attention kernels are designed for long sequences. With up to 64 tokens, one program holds all
queries, keys and values of a head: it reads the packed qkv, rotates, attends, and writes the output
in the layout of the next product. The backward kernel recomputes the softmax from the same reads
and writes the packed gradient. Both move the minimum number of bytes. Both are custom operators
that torch.compile does not trace into.

Shapes: B batch, N length, H heads, d head width.
"""

from typing import Any

import torch
from torch import Tensor

from cwdfm.ops.dispatch import on_tensor_device

# Pairs per warp in the forward and in the backward kernel. For 32 tokens and heads of 64 that is
# one warp and two. With 94 registers per thread and 12 KB of shared memory, 17 forward programs fit
# on a multiprocessor of an H200; with 120 registers and 14 KB, 8 backward programs: enough to
# overlap reads with computation. For 2,048 sequences of 12 heads a multiprocessor runs 186 programs
# of 1,170 and 2,200 warp instructions, issued in 0.03 and 0.06 ms; memory takes 0.1 and 0.17 ms.
WARP_PAIRS = 1024
WARP_PAIRS_BACKWARD = 512
MAX_WARPS = 4


def short_attention(qkv_BN3Hd: Tensor, rotation: tuple[Tensor, Tensor], *, causal: bool) -> Tensor:
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
        return _attend_backwardward(*grads, *ctx.saved_tensors, ctx.causal), None, None, None


@torch.library.custom_op("cwdfm::short_attention_forward", mutates_args=())
@on_tensor_device
def _attend_forward(qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    """Attention output [B, N, H, d] of qkv [B, N, 3, H, d]."""
    from cwdfm.ops.triton_attention import attend

    out = _like_values(qkv)
    _launch(attend, WARP_PAIRS, qkv, cos, sin, out, causal=causal)
    return out


@_attend_forward.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    return _like_values(qkv)


@torch.library.custom_op("cwdfm::short_attention_backward", mutates_args=())
@on_tensor_device
def _attend_backwardward(
    grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool
) -> Tensor:
    """The gradient [B, N, 3, H, d] of qkv from that of the output, [B, N, H, d]."""
    from cwdfm.ops.triton_attention import attend_backward

    d_qkv = qkv.new_empty(qkv.shape)
    _launch(
        attend_backward, WARP_PAIRS_BACKWARD, qkv, cos, sin, grad.contiguous(), d_qkv, causal=causal
    )
    return d_qkv


@_attend_backwardward.register_fake
def _(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _like_values(qkv: Tensor) -> Tensor:
    batch, length, _, heads, width = qkv.shape
    return qkv.new_empty(batch, length, heads, width)


def _launch(
    kernel: Any,
    warp_pairs: int,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *rest: Tensor,
    causal: bool,
) -> None:
    """Launch a kernel with one program for each head of each sequence."""
    batch, length, _, heads, width = qkv.shape
    # Tensor core products need at least 16 rows and columns.
    block, block_half = (max(16, 1 << (size - 1).bit_length()) for size in (length, width // 2))
    kernel[(batch * heads,)](
        qkv.contiguous(),
        cos.contiguous(),
        sin.contiguous(),
        *rest,
        length,
        HEADS=heads,
        HALF=width // 2,
        BLOCK=block,
        BLOCK_HALF=block_half,
        FULL=length == block,
        CAUSAL=causal,
        num_warps=min(MAX_WARPS, max(1, block * block_half // warp_pairs)),
    )
