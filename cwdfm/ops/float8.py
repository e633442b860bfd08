"""Matrix products in float8 (e4m3), with one scale per row of either factor.

    q(x) = round(x / s),    s_k = max_d |x_kd| / 448
    y = q(x) q(w)^T * s_x s_w^T + b

448 is the largest number of the format. The largest entry of a row keeps four significant bits, as
do all entries down to 2^-14 of it; smaller ones lose bits. A row of activations is one token and a
row of weights one output, so an outlier affects only its own token or output. No state is carried
from step to step.

The gradient of x is also a product in float8. That of w, a sum over all tokens, stays in the dtype
of x: its scales would have to run along the other axis, and casting both factors again costs as
much time as the faster product saves (see docs/speed.md).

torch.compile fuses the casts with the operations that produce their inputs. It does not trace into
the kernel of the adaptive norm, which therefore writes float8 itself (`cwdfm.ops.adaptive_norm`).

Shapes: K tokens, D inputs, O outputs.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
SMALLEST = 1e-20  # lower bound of a row's largest entry, so that its scale is not zero
MULTIPLE = 16  # D and O must be multiples of this


# The dtypes in which a linear layer expects its input: the original one, float8, or both in
# training, where the gradient of the weight needs the original one.
InputDtypes = Literal["original", "float8", "both"]


class Rows(NamedTuple):
    """A matrix in float8: values * scale."""

    values: Tensor  # [K, D] float8
    scale: Tensor  # [K, 1] float32


class Float8Input(NamedTuple):
    """The input of a linear layer in float8, and also in the original dtype if needed."""

    x: Tensor | None  # [..., D]
    values: Tensor  # [..., D] float8
    scale: Tensor  # [..., 1] float32

    @property
    def rows(self) -> Rows:
        """The input as a matrix."""
        return Rows(self.values.flatten(0, -2), self.scale.flatten(0, -2))


def to_rows(x_KD: Tensor) -> Rows:
    """Convert a matrix to float8. Rows with NaN or infinite entries become NaN."""
    x_KD = x_KD.float()
    scale_K1 = x_KD.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / LARGEST
    return Rows((x_KD / scale_K1).to(FLOAT8), scale_K1)


def product(a: Rows, b: Rows, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """a b^T + bias [K, O] for a [K, D] and b [O, D], in `dtype` (bfloat16 on a GPU)."""
    if a.values.is_cuda:
        return torch._scaled_mm(
            a.values,
            b.values.t(),
            scale_a=a.scale,
            scale_b=b.scale.t(),
            bias=None if bias is None else bias.to(dtype),
            out_dtype=dtype,
            use_fast_accum=True,
        )
    out_KO = a.values.float() @ b.values.float().t() * a.scale * b.scale.t()
    return (out_KO if bias is None else out_KO + bias).to(dtype)


def linear(x: Tensor, rows: Rows | None, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Differentiable x weight^T + bias [K, O] for x [K, D], in the dtype of x.

    `rows` is x in float8, if it has been computed already.
    """
    values, scale = (None, None) if rows is None else rows
    out: Tensor = _Linear.apply(x, values, scale, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor | None,
        scale: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype
        rows = to_rows(x) if values is None or scale is None else Rows(values, scale)
        return product(rows, to_rows(weight), bias, x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (d_out,), (x, weight) = grads, ctx.saved_tensors
        d_x = product(to_rows(d_out), to_rows(weight.t().contiguous()), None, x.dtype)
        d_weight = (d_out.t() @ x).to(weight.dtype)
        dtype = ctx.bias_dtype
        d_bias = None if dtype is None else d_out.sum(0, dtype=torch.float32).to(dtype)
        return d_x, None, None, d_weight, d_bias
