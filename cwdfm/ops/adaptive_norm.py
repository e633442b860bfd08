"""Residual addition and adaptive layer norm in one pass.

    h' = h + gate * dropout(y),     x = norm(h') * (1 + scale) + shift

On a GPU one kernel reads h and y and writes h' and x, the latter in the dtype of the next matrix
product. The backward pass is also one kernel: it reads h', y and the gradients of h' and x, and
writes the gradients of h and y and the sums over positions that the other gradients need,

    S = sum_n dx * xhat:    d_scale = weight * S,    d_weight = sum_b (1 + scale) * S.

The sums are accumulated per chunk, in an order that depends only on the shape, so results are
deterministic. The backward pass regenerates the dropout mask from a seed instead of storing it.

Shapes: B batch, N length, D width; gate, shift and scale [B, 1, D], weight [D].
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.ops.dispatch import fused_norm, next_power_of_2
from cwdfm.ops.precision import product_dtype

# Rows per program, held in registers with four columns per thread: as many loads in flight as 64
# registers per thread allow, with which 1,024 threads fit on a multiprocessor.
ROWS_FORWARD, ROWS_BACKWARD, REGISTERS = 4, 2, 64
WARP_WIDTH = 128
CHUNK = 32  # rows summed by one program: 64 sequences of 1,024 give 2,048 programs


class Residual(NamedTuple):
    """A residual branch to be added: gate * dropout(y), or dropout(y) without a gate."""

    y_BND: Tensor
    gate_B1D: Tensor | None


def add_norm(
    h_BND: Tensor,
    residual: Residual | None,
    norm: nn.LayerNorm,
    shift_B1D: Tensor | None,
    scale_B1D: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The residual stream h' and its norm x. Without shift and scale it is a plain layer norm."""
    if fused_norm(h_BND):
        y_BND, gate_B1D = (None, None) if residual is None else residual
        dropout = 0.0 if residual is None else dropout
        # Drawn from the same generator as F.dropout, without synchronizing.
        seed = torch.randint(2**63 - 1, (1,), device=h_BND.device) if dropout > 0 else None
        vectors = (norm.weight, shift_B1D, scale_B1D, seed)
        options = (dropout, norm.eps, product_dtype(h_BND))
        out_h, x, _, _ = _add_norm(h_BND, y_BND, gate_B1D, *vectors, *options)
        return out_h, x
    if residual is not None:
        y_BND, gate = F.dropout(residual.y_BND, dropout), residual.gate_B1D
        h_BND = h_BND + y_BND if gate is None else torch.addcmul(h_BND, gate, y_BND)
    x_BND: Tensor = norm(h_BND)
    if shift_B1D is None or scale_B1D is None:
        return h_BND, x_BND
    return h_BND, torch.addcmul(shift_B1D, x_BND, 1 + scale_B1D)


@torch.library.custom_op("cwdfm::add_norm", mutates_args=())
def _add_norm(
    h: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    shift: Tensor | None,
    scale: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns h', x in `dtype`, and mean and 1 / std [B, N] of the rows of h'.

    h' is a new tensor even without a residual, so that one backward kernel adds its gradient to
    that of x.
    """
    from cwdfm.ops import triton_adaptive_norm

    batch, length, _ = h.shape
    tiles = -(-length // ROWS_FORWARD)
    (gate, shift, scale), strides = _vectors(gate, shift, scale)
    outputs = _outputs(h, dtype)
    with torch.cuda.device_of(h):
        triton_adaptive_norm.add_norm[(batch * tiles,)](
            h.contiguous(), None if y is None else y.contiguous(), gate, weight, shift, scale, seed,
            *outputs, *strides, length, tiles, eps,
            BLOCK_ROWS=ROWS_FORWARD, **_options(h, dropout),
        )  # fmt: skip
    return outputs


@_add_norm.register_fake
def _(h: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(h, rest[-1])


def _outputs(h: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, rstd = (h.new_empty(h.shape[:2], dtype=torch.float32) for _ in range(2))
    return h.new_empty(h.shape), h.new_empty(h.shape, dtype=dtype), mean, rstd


@torch.library.custom_op("cwdfm::add_norm_backward", mutates_args=())
def _add_norm_backward(
    h: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    seed: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    d_h: Tensor | None,
    d_x: Tensor,
    dropout: float,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of h and y from those of h' and x. `h` is h'; `y` is needed only with a gate.

    `dtype` is that of the gradient of y, or None without a residual. The third result holds sums
    over each chunk, [B, chunks, .., D]: of d_x * xhat; of d_x, if modulated; of d_h * dropout(y),
    if gated.
    """
    from cwdfm.ops import triton_adaptive_norm

    out_h, out_y, sums = _gradients(h, gate, scale, dtype)
    (batch, length, _), chunks = h.shape, sums.shape[1]
    (gate, scale), strides = _vectors(gate, scale)
    with torch.cuda.device_of(h):
        triton_adaptive_norm.add_norm_backward[(batch * chunks,)](
            h, None if y is None else y.contiguous(), gate, weight, scale, seed, mean, rstd,
            None if d_h is None else d_h.contiguous(), d_x.contiguous(),
            out_h, None if dtype is None else out_y, sums, *strides, length, chunks,
            BLOCK_ROWS=ROWS_BACKWARD, CHUNK=CHUNK, **_options(h, dropout),
        )  # fmt: skip
    return out_h, out_y, sums


@_add_norm_backward.register_fake
def _(
    h: Tensor, y: Tensor, gate: Tensor, weight: Tensor, scale: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(h, gate, scale, rest[-1])


def _gradients(
    h: Tensor, gate: Tensor | None, scale: Tensor | None, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, width = h.shape
    terms = 1 + (scale is not None) + (gate is not None)
    out_y = h.new_empty(0) if dtype is None else h.new_empty(h.shape, dtype=dtype)
    sums = h.new_empty(batch, -(-length // CHUNK), terms, width, dtype=torch.float32)
    return h.new_empty(h.shape), out_y, sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, y, gate, weight, _, scale, seed, dropout, _, _ = inputs
    out_h, x, mean, rstd = output
    kept = None if gate is None else y
    ctx.save_for_backward(out_h, kept, gate, weight, scale, seed, mean, rstd)
    ctx.dropout, ctx.y_dtype, ctx.x_dtype = dropout, None if y is None else y.dtype, x.dtype
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)  # the last residual stream has no gradient


def _backward(ctx: Any, d_h: Tensor | None, d_x: Tensor | None, *_: None) -> tuple[Any, ...]:
    h, y, gate, weight, scale, seed, mean, rstd = ctx.saved_tensors
    if d_x is None:
        d_x = torch.zeros_like(h, dtype=ctx.x_dtype)
    saved = (h, y, gate, weight, scale, seed, mean, rstd)
    out_h, out_y, sums = _add_norm_backward(*saved, d_h, d_x, ctx.dropout, ctx.y_dtype)
    d_xhat, *others = sums.sum(1)[:, :, None].unbind(1)  # each [B, 1, D]
    d_shift = d_scale = d_gate = None
    d_weight = d_xhat if scale is None else d_xhat * (1 + scale.float())
    if scale is not None:
        d_shift, d_scale = others[0].to(scale.dtype), (d_xhat * weight).to(scale.dtype)
    if gate is not None:
        d_gate = others[-1].to(gate.dtype)
    d_weight = d_weight.sum((0, 1)).to(weight.dtype)
    d_y = None if ctx.y_dtype is None else out_y
    return out_h, d_y, d_gate, d_weight, d_shift, d_scale, None, None, None, None


_add_norm.register_autograd(_backward, setup_context=_save)


def _options(h: Tensor, dropout: float) -> dict[str, int]:
    """Compile-time options of both kernels."""
    width = h.shape[-1]
    block = max(WARP_WIDTH, next_power_of_2(width))
    sizes = {"WIDTH": width, "BLOCK_WIDTH": block, "DROPPED": round(dropout * 2**24)}
    return {**sizes, "num_warps": block // WARP_WIDTH, "maxnreg": REGISTERS}


def _vectors(*vectors: Tensor | None) -> tuple[list[Tensor | None], list[int]]:
    """Vectors [B, 1, D] with contiguous rows, which the kernels require, and their strides."""
    rows = [v if v is None or v.stride(-1) == 1 else v.contiguous() for v in vectors]
    return rows, [0 if v is None else v.stride(0) for v in rows]
