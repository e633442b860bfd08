"""gelu of a linear map, by its approximation with tanh, in as few passes as there can be.

    x = product + bias,     y = gelu(x),     d_x = d_y gelu'(x),     d_bias = sum of d_x over rows

Without gradients cuBLAS applies bias and gelu to the product before it is stored. With them x must
be stored, and the bias is still added for nothing. But its gradient, if left to the product, is
another pass over d_x, the widest of all tensors here: the kernel that makes d_x sums it as well.
They are sums of chunks' sums, in an order that the shape alone decides: the same bits every time.

Shapes: M rows, D columns.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.ops import fused_bias_gelu, fused_gelu, product_dtype
from cwdfm.ops.launch import on_its_gpu

FORWARD_BLOCK, FORWARD_WARPS = 2048, 4
# Rows and columns that a program has at once, eight columns a thread in half precision: 16 bytes a
# load. With at most 64 registers a thread there is room for 1,024 threads on a multiprocessor.
ROWS, COLUMNS, WARP_COLUMNS, REGISTERS = 2, 1024, 256, 64
CHUNK = 64  # rows that a program sums over: 64 sequences of 1,024 keep 1,024 programs busy a block


def linear_gelu(x: Tensor, layer: nn.Linear) -> Tensor:
    """gelu(layer(x))."""
    if fused_gelu(x):
        x, weight, bias = (v.to(product_dtype(x)) for v in (x, layer.weight, layer.bias))
        flat = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
        return flat.view(*x.shape[:-1], flat.shape[-1])
    if not fused_bias_gelu(x):
        return F.gelu(layer(x), approximate="tanh")
    # To the product the bias is a constant: its gradient comes from behind it.
    y: Tensor = _gelu(F.linear(x, layer.weight, layer.bias.detach()), layer.bias)
    return y


@torch.library.custom_op("cwdfm::gelu", mutates_args=())
@on_its_gpu
def _gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x), where x is known to be a sum with `bias`."""
    from cwdfm.ops import triton_gelu

    x = x.contiguous()
    y = torch.empty_like(x)
    triton_gelu.gelu[(-(-x.numel() // FORWARD_BLOCK),)](
        x, y, x.numel(), BLOCK=FORWARD_BLOCK, num_warps=FORWARD_WARPS
    )
    return y


@_gelu.register_fake
def _(x: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("cwdfm::gelu_backward", mutates_args=())
@on_its_gpu
def _gelu_backward(x: Tensor, d_y: Tensor) -> tuple[Tensor, Tensor]:
    """d_x, and its sums over every chunk of rows [chunks, D], in float32."""
    from cwdfm.ops import triton_gelu

    d_x, sums = _gradients(x)
    width = x.shape[-1]
    block = min(COLUMNS, 1 << (width - 1).bit_length())
    triton_gelu.gelu_backward[(len(sums), -(-width // block))](
        x.contiguous(),
        d_y.contiguous(),
        d_x,
        sums,
        x.numel() // width,
        width,
        BLOCK_ROWS=ROWS,
        BLOCK_WIDTH=block,
        CHUNK=CHUNK,
        num_warps=max(1, block // WARP_COLUMNS),
        maxnreg=REGISTERS,
    )
    return d_x, sums


@_gelu_backward.register_fake
def _(x: Tensor, d_y: Tensor) -> tuple[Tensor, Tensor]:
    return _gradients(x)


def _gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    sums = x.new_empty(-(-rows // CHUNK), x.shape[-1], dtype=torch.float32)
    return x.new_empty(x.shape), sums


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    x, bias = inputs
    ctx.save_for_backward(x)
    ctx.dtype = bias.dtype


def _backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor]:
    (x,) = ctx.saved_tensors
    d_x, sums = _gelu_backward(x, d_y)
    return d_x, sums.sum(0).to(ctx.dtype)


_gelu.register_autograd(_backward, setup_context=_save)
