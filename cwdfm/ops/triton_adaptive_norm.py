# mypy: ignore-errors
"""Triton kernels of residual addition with adaptive norm.

A program works on whole rows of one sequence, whose gate, shift and scale it loads once.

Shapes: B batch, N length, D width; B N rows of tokens.
"""

import triton
import triton.language as tl


@triton.jit
def _columns(WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Column indices [1, BLOCK_WIDTH], and which of them are valid."""
    # Four adjacent columns per thread: 16 bytes in float32, 8 in half precision. With one layout
    # for both dtypes, values need not pass through shared memory.
    column = tl.max_contiguous(tl.arange(0, BLOCK_WIDTH), 4)[None, :]
    return column, column < WIDTH


@triton.jit
def _load(at, inside):
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _dropout_factor(seed, row, BLOCK_WIDTH: tl.constexpr, DROPPED: tl.constexpr):
    """The dropout factors of rows [R], [R, BLOCK_WIDTH]: 0, or 1 / (1 - p) with p = DROPPED / 2^24.

    They depend on seed, row and column only, not on the tiles: four columns share a Philox counter
    and use one of its four words each.
    """
    group = tl.arange(0, BLOCK_WIDTH // 4)[None, :]
    a, b, c, d = tl.philox(tl.load(seed), group, row.to(tl.int32)[:, None], 0, 0)
    words = tl.join(tl.join(a, b), tl.join(c, d)).reshape(row.shape[0], BLOCK_WIDTH)
    return tl.where((words >> 8).to(tl.int32) < DROPPED, 0.0, 1 / (1 - DROPPED / 2**24))


@triton.jit(do_not_specialize=["length", "tiles"])
def add_norm(
    h,  # [B, N, D]
    y,  # [B, N, D], if ADDS
    gate,  # [B, D], with sequence stride `gate_stride`, if GATED
    weight,  # [D]
    shift,  # [B, D], with sequence stride `shift_stride`, if MODULATED
    scale,  # [B, D], with sequence stride `scale_stride`, if MODULATED
    seed,  # [1], if DROPPED
    out_h,  # [B, N, D]
    out_x,  # [B, N, D]
    mean,  # [B, N] output: mean of the rows of out_h
    rstd,  # [B, N] output: 1 / their standard deviation
    gate_stride,
    shift_stride,
    scale_stride,
    length,
    tiles,  # per sequence
    eps,
    WIDTH: tl.constexpr,  # D
    BLOCK_WIDTH: tl.constexpr,  # a power of two >= WIDTH
    BLOCK_ROWS: tl.constexpr,
    ADDS: tl.constexpr,
    GATED: tl.constexpr,
    MODULATED: tl.constexpr,
    DROPPED: tl.constexpr,  # dropout's p, times 2^24
):
    """out_h = h + gate * dropout(y), out_x = norm(out_h) * (1 + scale) + shift, for a tile."""
    program = tl.program_id(0)
    sequence = (program // tiles).to(tl.int64)
    place = program % tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row = sequence * length + place
    column, inside = _columns(WIDTH, BLOCK_WIDTH)
    valid = (place < length)[:, None] & inside
    at = row[:, None] * WIDTH + column
    # All loads come before the row sums, which synchronize the threads.
    s = _load(h + at, valid)
    if ADDS:
        added = _load(y + at, valid)
    if GATED:
        added *= _load(gate + sequence * gate_stride + column, inside)
    factor = _load(weight + column, inside)
    if MODULATED:
        factor *= 1 + _load(scale + sequence * scale_stride + column, inside)
        offset = _load(shift + sequence * shift_stride + column, inside)
    if ADDS:
        if DROPPED:
            added *= _dropout_factor(seed, row, BLOCK_WIDTH, DROPPED)
        s += added
    s = s.to(out_h.dtype.element_ty)
    tl.store(out_h + at, s, mask=valid)
    s = s.to(tl.float32)
    average = tl.sum(s, axis=1) / WIDTH
    centered = tl.where(inside, s - average[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centered * centered, axis=1) / WIDTH + eps)
    x = centered * spread[:, None] * factor
    if MODULATED:
        x += offset
    tl.store(out_x + at, x.to(out_x.dtype.element_ty), mask=valid)
    tl.store(mean + row, average, mask=place < length)
    tl.store(rstd + row, spread, mask=place < length)


@triton.jit(do_not_specialize=["length", "chunks"])
def add_norm_backward(
    h,  # [B, N, D], after the addition
    y,  # [B, N, D], if GATED
    gate,  # [B, D], with sequence stride `gate_stride`, if GATED
    weight,  # [D]
    scale,  # [B, D], with sequence stride `scale_stride`, if MODULATED
    seed,  # [1], if DROPPED
    mean,  # [B, N]
    rstd,  # [B, N]
    d_out_h,  # [B, N, D], if STREAM
    d_out_x,  # [B, N, D]
    d_h,  # [B, N, D] output
    d_y,  # [B, N, D] output, if ADDS
    # [B, chunks, 1 + MODULATED + GATED, D] output: sums of d_out_x * xhat, d_out_x, d_h *
    # dropout(y)
    sums,
    gate_stride,
    scale_stride,
    length,
    chunks,  # per sequence
    WIDTH: tl.constexpr,  # D
    BLOCK_WIDTH: tl.constexpr,  # a power of two >= WIDTH
    BLOCK_ROWS: tl.constexpr,
    CHUNK: tl.constexpr,  # rows summed by one program
    ADDS: tl.constexpr,
    GATED: tl.constexpr,
    MODULATED: tl.constexpr,
    STREAM: tl.constexpr,
    DROPPED: tl.constexpr,  # dropout's p, times 2^24
):
    """The gradients of `add_norm` for one chunk of a sequence.

    With xhat = (h - mean) rstd and g = d_out_x * weight * (1 + scale), d_h = d_out_h + rstd (g -
    mean_D(g) - xhat mean_D(g xhat)) and d_y = d_h * gate * dropout factor.
    """
    program = tl.program_id(0)
    sequence = (program // chunks).to(tl.int64)
    first = program % chunks * CHUNK
    column, inside = _columns(WIDTH, BLOCK_WIDTH)
    factor = _load(weight + column, inside)
    if MODULATED:
        factor *= 1 + _load(scale + sequence * scale_stride + column, inside)
    if GATED:
        gated = _load(gate + sequence * gate_stride + column, inside)
    along = tl.zeros((1, BLOCK_WIDTH), dtype=tl.float32)
    total = tl.zeros((1, BLOCK_WIDTH), dtype=tl.float32)
    through = tl.zeros((1, BLOCK_WIDTH), dtype=tl.float32)
    for start in range(0, CHUNK, BLOCK_ROWS):
        place = first + start + tl.arange(0, BLOCK_ROWS)
        row = sequence * length + place
        valid = (place < length)[:, None] & inside
        at = row[:, None] * WIDTH + column
        # All loads come before the row sums, which synchronize the threads.
        s = _load(h + at, valid)
        d = _load(d_out_x + at, valid)
        if STREAM:
            onward = _load(d_out_h + at, valid)
        if GATED:
            added = tl.load(y + at, mask=valid, other=0.0)
        average = _load(mean + row, place < length)[:, None]
        spread = _load(rstd + row, place < length)[:, None]
        xhat = (s - average) * spread
        g = d * factor
        g_mean, g_along = tl.split(tl.sum(tl.join(g, g * xhat), axis=1) / WIDTH)
        change = spread * (g - g_mean[:, None] - xhat * g_along[:, None])
        if STREAM:
            change += onward
        tl.store(d_h + at, change.to(d_h.dtype.element_ty), mask=valid)
        along += tl.sum(d * xhat, axis=0, keep_dims=True)
        if MODULATED:
            total += tl.sum(d, axis=0, keep_dims=True)
        if ADDS:
            if DROPPED:
                change *= _dropout_factor(seed, row, BLOCK_WIDTH, DROPPED)
            if GATED:
                through += tl.sum(change * added.to(tl.float32), axis=0, keep_dims=True)
                change *= gated
            tl.store(d_y + at, change.to(d_y.dtype.element_ty), mask=valid)
    out = sums + program.to(tl.int64) * ((1 + MODULATED + GATED) * WIDTH) + column
    tl.store(out, along, mask=inside)
    if MODULATED:
        tl.store(out + WIDTH, total, mask=inside)
    if GATED:
        tl.store(out + (1 + MODULATED) * WIDTH, through, mask=inside)
