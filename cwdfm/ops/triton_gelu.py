# mypy: ignore-errors
"""Triton kernels of gelu, by its approximation with tanh: gelu(x) = x s(x), where

    s(x) = (1 + tanh(a)) / 2 = 1 / (1 + exp(-2 a)),    a = sqrt(2 / pi) (x + 0.044715 x^3),

and gelu'(x) = s + 2 a'(x) x s (1 - s).

Shapes: M rows, D columns.
"""

import triton
import triton.language as tl

CUBE: tl.constexpr = tl.constexpr(0.044715)
TWICE: tl.constexpr = tl.constexpr(2 * 0.7978845608028654)  # 2 sqrt(2 / pi)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _share(x):
    """s(x)."""
    power = x * (-TWICE * LOG2E - TWICE * LOG2E * CUBE * x * x)
    return 1 / (1 + tl.exp2(tl.minimum(power, 126.0)))  # of which float32 still has the inverse


@triton.jit
def gelu(
    x,  # [size]
    out,  # [size]
    size,
    BLOCK: tl.constexpr,
):
    """gelu of a block."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(out + at, (z * _share(z)).to(out.dtype.element_ty), mask=at < size)


@triton.jit(do_not_specialize=["rows"])
def gelu_backward(
    x,  # [M, D]
    d_out,  # [M, D]
    d_x,  # [M, D] out
    sums,  # [chunks, D] out: of d_x over each chunk's rows
    rows,  # M
    width,  # D
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,  # rows that a program sums over
):
    """d_x = d_out gelu'(x) of a chunk's rows and a block of columns, and its sums over the rows."""
    chunk = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)[None, :]
    total = tl.zeros((1, BLOCK_WIDTH), dtype=tl.float32)
    for start in range(0, CHUNK, BLOCK_ROWS):
        row = chunk * CHUNK + start + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (column < width)
        at = row * width + column
        z = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(d_out + at, mask=inside, other=0.0).to(tl.float32)
        s = _share(z)
        slope = TWICE + 3 * TWICE * CUBE * z * z
        d *= s + slope * (z * s * (1 - s))
        tl.store(d_x + at, d.to(d_x.dtype.element_ty), mask=inside)
        total += tl.sum(d, axis=0, keep_dims=True)
    tl.store(sums + chunk * width + column, total, mask=column < width)
