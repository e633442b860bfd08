# mypy: ignore-errors
"""Triton kernels for residual addition and adaptive norm.

A program processes entire rows of one sequence, whose gate, shift and scale it loads once.

Shapes: B batch, N length, D width; B N rows of tokens.
"""

import triton
import triton.language as tl


@triton.jit
def _columns(WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Column indices [1, BLOCK_WIDTH], and a mask of the valid ones."""
    # Four adjacent columns per thread: 16 bytes in float32, 8 in half precision. With one layout
    # for both dtypes, values need not pass through shared memory.
    column = tl.max_contiguous(tl.arange(0, BLOCK_WIDTH), 4)[None, :]
    return column, column < WIDTH


@triton.jit
def _load(at, inside):
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _dropout_factor(seed, row, BLOCK_WIDTH: tl.constexpr, DROPPED: tl.constexpr):
    """Dropout factors [R, BLOCK_WIDTH] of rows [R]: 0, or 1 / (1 - p) with p = DROPPED / 2^24.

    They depend on seed, row and column, but not on the tiling: four columns share a Philox counter
    and use one of its four words each.
    """
    group = tl.arange(0, BLOCK_WIDTH // 4)[None, :]
    a, b, c, d = tl.philox(tl.load(seed), group, row.to(tl.int32)[:, None], 0, 0)
    words = tl.join(tl.join(a, b), tl.join(c, d)).reshape(row.shape[0], BLOCK_WIDTH)
    return tl.where((words >> 8).to(tl.int32) < DROPPED, 0.0, 1 / (1 - DROPPED / 2**24))


@triton.jit(do_not_specialize=["length", "tiles"])
def add_norm(
    h, y,  # [B, N, D]; y may be None
    gate,  # [B, D] or None; gate, shift and scale each have their own stride between sequences
    weight,  # [D]
    shift, scale,  # [B, D], or both None
    seed,  # [1], or None without dropout
    out_h, out_x,  # [B, N, D] outputs
    mean, rstd,  # [B, N] outputs: mean and 1 / standard deviation of the rows of out_h
    gate_stride, shift_stride, scale_stride,
    length, tiles,  # tiles per sequence
    eps,
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,  # D, and a power of two >= D
    BLOCK_ROWS: tl.constexpr,
    DROPPED: tl.constexpr,  # dropout's p, times 2^24
):  # fmt: skip
    """out_h = h + gate * dropout(y), out_x = norm(out_h) * (1 + scale) + shift, for a tile."""
    program = tl.program_id(0)
    sequence = (program // tiles).to(tl.int64)
    position = program % tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row = sequence * length + position
    column, inside = _columns(WIDTH, BLOCK_WIDTH)
    valid = (position < length)[:, None] & inside
    at = row[:, None] * WIDTH + column
    # All loads come before the row sums, which synchronize the threads.
    s = _load(h + at, valid)
    if y is not None:
        added = _load(y + at, valid)
    if gate is not None:
        added *= _load(gate + sequence * gate_stride + column, inside)
    factor = _load(weight + column, inside)
    if scale is not None:
        factor *= 1 + _load(scale + sequence * scale_stride + column, inside)
        offset = _load(shift + sequence * shift_stride + column, inside)
    if y is not None:
        if seed is not None:
            added *= _dropout_factor(seed, row, BLOCK_WIDTH, DROPPED)
        s += added
    s = s.to(out_h.dtype.element_ty)
    tl.store(out_h + at, s, mask=valid)
    s = s.to(tl.float32)
    average = tl.sum(s, axis=1) / WIDTH
    centered = tl.where(inside, s - average[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centered * centered, axis=1) / WIDTH + eps)
    x = centered * spread[:, None] * factor
    if scale is not None:
        x += offset
    tl.store(out_x + at, x.to(out_x.dtype.element_ty), mask=valid)
    tl.store(mean + row, average, mask=position < length)
    tl.store(rstd + row, spread, mask=position < length)


@triton.jit(do_not_specialize=["length", "chunks"])
def add_norm_backward(
    h, y,  # [B, N, D]; h after the addition; y if there is a gate
    gate, weight, scale, seed,  # as in `add_norm`
    mean, rstd,  # [B, N]
    d_out_h, d_out_x,  # [B, N, D]; d_out_h may be None
    d_h, d_y,  # [B, N, D] outputs; d_y may be None
    # [B, chunks, .., D] output: sums of d_out_x * xhat; of d_out_x, if modulated; of d_h *
    # dropout(y), if gated
    sums,
    gate_stride, scale_stride,
    length, chunks,  # chunks per sequence
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, CHUNK: tl.constexpr,  # rows in registers, rows summed by a program
    DROPPED: tl.constexpr,
):  # fmt: skip
    """The gradients of `add_norm` for one chunk of a sequence.

    With xhat = (h - mean) rstd and g = d_out_x * weight * (1 + scale), d_h = d_out_h + rstd (g -
    mean_D(g) - xhat mean_D(g xhat)) and d_y = d_h * gate * dropout factor.
    """
    program = tl.program_id(0)
    sequence = (program // chunks).to(tl.int64)
    first = program % chunks * CHUNK
    column, inside = _columns(WIDTH, BLOCK_WIDTH)
    factor = _load(weight + column, inside)
    if scale is not None:
        factor *= 1 + _load(scale + sequence * scale_stride + column, inside)
    if gate is not None:
        gated = _load(gate + sequence * gate_stride + column, inside)
    along = tl.zeros((1, BLOCK_WIDTH), dtype=tl.float32)
    total = tl.zeros((1, BLOCK_WIDTH), dtype=tl.float32)
    through = tl.zeros((1, BLOCK_WIDTH), dtype=tl.float32)
    for start in range(0, CHUNK, BLOCK_ROWS):
        position = first + start + tl.arange(0, BLOCK_ROWS)
        row = sequence * length + position
        valid = (position < length)[:, None] & inside
        at = row[:, None] * WIDTH + column
        # All loads come before the row sums, which synchronize the threads.
        s = _load(h + at, valid)
        d = _load(d_out_x + at, valid)
        if d_out_h is not None:
            onward = _load(d_out_h + at, valid)
        if gate is not None:
            added = tl.load(y + at, mask=valid, other=0.0)
        average = _load(mean + row, position < length)[:, None]
        spread = _load(rstd + row, position < length)[:, None]
        xhat = (s - average) * spread
        g = d * factor
        g_mean, g_along = tl.split(tl.sum(tl.join(g, g * xhat), axis=1) / WIDTH)
        change = spread * (g - g_mean[:, None] - xhat * g_along[:, None])
        if d_out_h is not None:
            change += onward
        tl.store(d_h + at, change.to(d_h.dtype.element_ty), mask=valid)
        along += tl.sum(d * xhat, axis=0, keep_dims=True)
        if scale is not None:
            total += tl.sum(d, axis=0, keep_dims=True)
        if d_y is not None:
            if seed is not None:
                change *= _dropout_factor(seed, row, BLOCK_WIDTH, DROPPED)
            if gate is not None:
                through += tl.sum(change * added.to(tl.float32), axis=0, keep_dims=True)
                change *= gated
            tl.store(d_y + at, change.to(d_y.dtype.element_ty), mask=valid)
    TERMS: tl.constexpr = 1 + (scale is not None) + (gate is not None)
    out = sums + program.to(tl.int64) * (TERMS * WIDTH) + column
    tl.store(out, along, mask=inside)
    if scale is not None:
        tl.store(out + WIDTH, total, mask=inside)
    if gate is not None:
        tl.store(out + (TERMS - 1) * WIDTH, through, mask=inside)
