# mypy: ignore-errors
"""Triton kernels that compute log Z of rows of logits and overwrite them by their gradient.

A row is processed in blocks [depth, LANES]. Each lane accumulates its own softmax within one
thread, and threads synchronize only once per row, to combine the lanes. Full blocks need no masks.

exp(z - a) is computed as exp2(z L - a L) with L = log2(e): one fused multiply-add and one
exponential. Every instruction counts: a GPU that moves 4 TB/s has time for about twenty
instructions per logit, and for one exponential in four clock cycles.

Shapes: K rows of C columns, of which the first V are data tokens, J tokens per row.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _offsets(DEPTH: tl.constexpr, LANES: tl.constexpr):
    """Column offsets in a block, [DEPTH, LANES]."""
    return tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]


@triton.jit
def _read(at, offset, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """Load the block that starts at column FIRST; values past the row are arbitrary."""
    if FIRST + offset.numel <= COLUMNS:
        z = tl.load(at + FIRST + offset)
    else:
        z = tl.load(at + FIRST + offset, mask=FIRST + offset < COLUMNS, other=0)
    return z


@triton.jit
def _masked(z, FIRST: tl.constexpr, VOCAB: tl.constexpr):
    """Logits of a block in float32, -inf after the data tokens."""
    z = z.to(tl.float32)
    if FIRST + z.numel > VOCAB:
        z = tl.where(FIRST + _offsets(z.shape[0], z.shape[1]) < VOCAB, z, float("-inf"))
    return z


@triton.jit
def _write(at, z, norm, factor, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """Overwrite the block by factor * exp(z - norm)."""
    offset = FIRST + _offsets(z.shape[0], z.shape[1])
    change = (factor * tl.exp2(z * LOG2E - norm * LOG2E)).to(at.dtype.element_ty)
    if FIRST + z.numel <= COLUMNS:
        tl.store(at + offset, change)
    else:
        tl.store(at + offset, change, mask=offset < COLUMNS)


@triton.jit
def _accumulate(z, top, mass, WIDE: tl.constexpr):
    """Add a block to the running maxima `top` and sums `mass` of exp(z - top) of the lanes."""
    z = z.reshape(z.shape[0], z.shape[1] // WIDE, WIDE)
    higher = tl.maximum(top, tl.max(tl.max(z, axis=2), axis=0))
    # A lane that is all -inf has mass 0, not NaN.
    shift = tl.where(higher == float("-inf"), 0.0, higher) * LOG2E
    rest = tl.sum(tl.sum(tl.exp2(z * LOG2E - shift[None, :, None]), axis=2), axis=0)
    return higher, mass * tl.exp2(top * LOG2E - shift) + rest


@triton.jit
def _log_sum_exp(top, mass):
    """log sum exp of a row from the maxima and masses of its lanes."""
    largest = tl.max(top, axis=0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    return shift + tl.log(tl.sum(mass * tl.exp2((top - shift) * LOG2E), axis=0))


@triton.jit
def _unpack(pairs):
    """Logits [DEPTH, LANES] in float32 from pairs of bfloat16 [DEPTH, LANES / 2]."""
    low = (pairs << 16).to(tl.float32, bitcast=True)
    high = (pairs & -65536).to(tl.float32, bitcast=True)
    return tl.join(low, high).reshape(pairs.shape[0], 2 * pairs.shape[1])


@triton.jit(do_not_specialize=["rows", "zero"])
def softmax_held_rows(
    logits,  # [K, C]; overwritten by the gradient, 0 from V on
    log_z,  # [K] output
    tokens, grad,  # [K]
    rows,  # K
    zero,  # 0, opaque to the compiler
    VOCAB: tl.constexpr, COLUMNS: tl.constexpr,  # V and C
    LANES: tl.constexpr, WIDE: tl.constexpr,  # WIDE columns per lane
    DEPTH: tl.constexpr, FULL: tl.constexpr,  # blocks of that depth
    TAIL: tl.constexpr,  # depth of the rest; 0 if there is none
    STAGES: tl.constexpr,
):  # fmt: skip
    """log Z, and the gradient d/dl of g log p(token), for rows that are held in registers.

    Each program loops over rows, and prefetches the next row while it processes one.
    """
    BLOCKS: tl.constexpr = FULL + (TAIL > 0)
    stride = tl.full((), COLUMNS, dtype=tl.int64)
    # The element of the target token must be written after the rest of its row, that is, after the
    # next point where threads synchronize. A separate barrier would keep Triton from prefetching
    # rows.
    spot = tl.full((), -1, dtype=tl.int64)
    late = tl.full((), 0.0, dtype=tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        start = row * stride
        at = logits + start
        pairs_at = at.to(tl.pointer_type(tl.int32))
        held = ()
        for i in tl.static_range(BLOCKS):
            offset = _offsets(DEPTH if i < FULL else TAIL, LANES // 2)
            held += (_read(pairs_at, offset, i * DEPTH * LANES // 2, COLUMNS // 2),)
        token = tl.load(tokens + row)
        g = tl.load(grad + row)
        own = tl.load(at + token).to(tl.float32)
        top = tl.full((LANES // WIDE,), float("-inf"), dtype=tl.float32)
        mass = tl.zeros((LANES // WIDE,), dtype=tl.float32)
        for i in tl.static_range(BLOCKS):
            z = _masked(_unpack(held[i]), i * DEPTH * LANES, VOCAB)
            top, mass = _accumulate(z, top, mass, WIDE)
        norm = _log_sum_exp(top, mass)
        tl.store(logits + spot, late.to(logits.dtype.element_ty), mask=spot >= 0)
        tl.store(log_z + row, norm)
        for i in tl.static_range(BLOCKS):
            # Unpack again. The XOR with an opaque zero keeps the compiler from reusing the unpacked
            # values, for which there are too few registers.
            z = _masked(_unpack(held[i] ^ zero), i * DEPTH * LANES, VOCAB)
            _write(at, z, norm, -g, i * DEPTH * LANES, COLUMNS)
        spot = start + token
        late = g - g * tl.exp2(own * LOG2E - norm * LOG2E)
    tl.debug_barrier()
    tl.store(logits + spot, late.to(logits.dtype.element_ty), mask=spot >= 0)


@triton.jit
def softmax_rows(
    logits,  # [K, C]; if GRADIENT, overwritten by the gradient, 0 from V on
    log_z,  # [K]; output if NORMALIZE, else input
    tokens, grad,  # [K, J], if GRADIENT
    VOCAB: tl.constexpr, COLUMNS: tl.constexpr,
    J: tl.constexpr, BLOCK_J: tl.constexpr,  # BLOCK_J: a power of two >= J
    LANES: tl.constexpr, WIDE: tl.constexpr,
    DEPTH: tl.constexpr, FULL: tl.constexpr,  # blocks of that depth that contain only data tokens
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
    NORMALIZE: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """log Z of a row's first V logits, and the gradient d/dl of sum_j g_j log p(token_j).

    The gradient is sum_j g_j (onehot(token_j) - p). There is one program per row. The second read
    of a row hits the L2 cache.
    """
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * COLUMNS
    BLOCK: tl.constexpr = DEPTH * LANES
    offset = _offsets(DEPTH, LANES)
    if NORMALIZE:
        top = tl.full((LANES // WIDE,), float("-inf"), dtype=tl.float32)
        mass = tl.zeros((LANES // WIDE,), dtype=tl.float32)
        for start in tl.range(0, FULL * BLOCK, BLOCK, num_stages=STAGES):
            top, mass = _accumulate(tl.load(at + start + offset).to(tl.float32), top, mass, WIDE)
        if TAIL:
            rest = _read(at, _offsets(TAIL, LANES), FULL * BLOCK, COLUMNS)
            top, mass = _accumulate(_masked(rest, FULL * BLOCK, VOCAB), top, mass, WIDE)
        norm = _log_sum_exp(top, mass)
        tl.store(log_z + row, norm)
    else:
        norm = tl.load(log_z + row)
    if GRADIENT:
        j = tl.arange(0, BLOCK_J)
        token = tl.load(tokens + row * J + j, mask=j < J, other=-1)
        g = tl.load(grad + row * J + j, mask=j < J, other=0.0).to(tl.float32)
        own = tl.load(at + token, mask=j < J, other=0.0).to(tl.float32)
        factor = -tl.sum(g, axis=0)
        tl.debug_barrier()  # logits are overwritten from here on
        for start in tl.range(0, FULL * BLOCK, BLOCK, num_stages=STAGES):
            z = tl.load(at + start + offset).to(tl.float32)
            _write(at + start, z, norm, factor, 0, COLUMNS)
        if TAIL:
            rest = _read(at, _offsets(TAIL, LANES), FULL * BLOCK, COLUMNS)
            _write(at, _masked(rest, FULL * BLOCK, VOCAB), norm, factor, FULL * BLOCK, COLUMNS)
        tl.debug_barrier()  # the elements of target tokens are written last
        same = tl.where(token[:, None] == token[None, :], g[None, :], 0.0)
        own = tl.sum(same, axis=1) + factor * tl.exp2(own * LOG2E - norm * LOG2E)
        tl.store(at + token, own.to(logits.dtype.element_ty), mask=j < J)
