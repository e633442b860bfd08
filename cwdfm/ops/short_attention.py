"""Attention over short sequences, rotation of positions included.

    mixed = softmax(q k^T / sqrt(d)) v,     q and k rotated by their places' angles

Kernels that are made for long sequences spend their time on what short ones do not need. Of up to
64 tokens one program has all queries, keys and values of a head at once: it reads them where the
product left them, rotates, attends, and writes the result as the next product reads it. The way
back makes the softmax again from the same reads and writes the one gradient of the product. Both
then move no more bytes than they must; both are operators that torch.compile does not look into.

Shapes: B batch, N length, H heads, d head width.
"""

from typing import Any

import torch
from torch import Tensor

from cwdfm.ops.dispatch import on_tensor_device

# Pairs of a tile that a warp works on, there and back. Of 32 tokens in heads of 64 that is one warp
# and two. Then 94 registers a thread and 12 KB of shared memory let 17 programs run at once on a
# multiprocessor of an H200, and 120 and 14 KB let 8: enough to read while others compute. For 2,048
# sequences of 12 heads a multiprocessor has 186 programs of 1,170 and 2,200 instructions of a warp,
# which it issues in 0.03 and 0.06 ms; the bytes take 0.1 and 0.17.
WARP_PAIRS = 1024
WARP_PAIRS_BACK = 512
MOST_WARPS = 4


def short_attention(qkv_BN3Hd: Tensor, rotation: tuple[Tensor, Tensor], *, causal: bool) -> Tensor:
    """Mixed values [B, N, H, d]; where `cwdfm.ops.fused_short_attention` says so."""
    mixed: Tensor = _ShortAttention.apply(qkv_BN3Hd, *rotation, causal)  # type: ignore[no-untyped-call]
    return mixed


class _ShortAttention(torch.autograd.Function):
    """Keeps what came in alone: the softmax is made again on the way back."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
        ctx.save_for_backward(qkv, cos, sin)
        ctx.causal = causal
        mixed: Tensor = _attend_forward(qkv, cos, sin, causal)
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _attend_backward(*grads, *ctx.saved_tensors, ctx.causal), None, None, None


@torch.library.custom_op("cwdfm::short_attention_forward", mutates_args=())
@on_tensor_device
def _attend_forward(qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    """Mixed values [B, N, H, d] of qkv [B, N, 3, H, d]."""
    from cwdfm.ops.triton_short_attention import attend

    mixed = _like_values(qkv)
    _launch(attend, WARP_PAIRS, qkv, cos, sin, mixed, causal=causal)
    return mixed


@_attend_forward.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    return _like_values(qkv)


@torch.library.custom_op("cwdfm::short_attention_backward", mutates_args=())
@on_tensor_device
def _attend_backward(grad: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, causal: bool) -> Tensor:
    """The gradient [B, N, 3, H, d] of qkv from that of mixed values, [B, N, H, d]."""
    from cwdfm.ops.triton_short_attention import attend_back

    d_qkv = qkv.new_empty(qkv.shape)
    _launch(attend_back, WARP_PAIRS_BACK, qkv, cos, sin, grad.contiguous(), d_qkv, causal=causal)
    return d_qkv


@_attend_backward.register_fake
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
    """Run a kernel, a program for each head of each sequence."""
    batch, length, _, heads, width = qkv.shape
    # Products of tensor cores have 16 rows and columns at least.
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
        FILLED=length == block,
        CAUSAL=causal,
        num_warps=min(MOST_WARPS, max(1, block * block_half // warp_pairs)),
    )
