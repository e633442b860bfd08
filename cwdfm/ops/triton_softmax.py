# mypy: ignore-errors
"""Triton kernels that turn rows of logits into log Z, and into their own gradient.

A row is worked on as [depth, LANES]. Each lane has a softmax of its own, which a thread adds up by
itself: threads meet but once a row, to put the lanes together. Blocks inside a row have no masks.

exp(z - a) is exp2(z L - a L), L = log2(e): one fused product and one exponential. All counts, since
a GPU that moves 4 TB/s has time for some twenty instructions a logit, and for one exponential in
four clocks.

Shapes: K rows of C columns, of which the first V are data tokens, J tokens a row.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _places(DEPTH: tl.constexpr, LANES: tl.constexpr):
    """Places in a block, [DEPTH, LANES]."""
    return tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]


@triton.jit
def _read(at, place, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """The block from column FIRST on, anything behind the row."""
    if FIRST + place.numel <= COLUMNS:
        z = tl.load(at + FIRST + place)
    else:
        z = tl.load(at + FIRST + place, mask=FIRST + place < COLUMNS, other=0)
    return z


@triton.jit
def _counted(z, FIRST: tl.constexpr, VOCAB: tl.constexpr):
    """Its logits in float32, -inf behind the data tokens."""
    z = z.to(tl.float32)
    if FIRST + z.numel > VOCAB:
        z = tl.where(FIRST + _places(z.shape[0], z.shape[1]) < VOCAB, z, float("-inf"))
    return z


@triton.jit
def _write(at, z, norm, factor, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    """factor * exp(z - norm) in their place."""
    place = FIRST + _places(z.shape[0], z.shape[1])
    change = (factor * tl.exp2(z * LOG2E - norm * LOG2E)).to(at.dtype.element_ty)
    if FIRST + z.numel <= COLUMNS:
        tl.store(at + place, change)
    else:
        tl.store(at + place, change, mask=place < COLUMNS)


@triton.jit
def _gather(z, top, mass, WIDE: tl.constexpr):
    """Lanes' largest logits and their sums of exp(z - top), with those of another block."""
    z = z.reshape(z.shape[0], z.shape[1] // WIDE, WIDE)
    higher = tl.maximum(top, tl.max(tl.max(z, axis=2), axis=0))
    # A lane of nothing but -inf has mass 0, not NaN.
    shift = tl.where(higher == float("-inf"), 0.0, higher) * LOG2E
    rest = tl.sum(tl.sum(tl.exp2(z * LOG2E - shift[None, :, None]), axis=2), axis=0)
    return higher, mass * tl.exp2(top * LOG2E - shift) + rest


@triton.jit
def _log_sum_exp(top, mass):
    """log sum exp, of lanes' largest logits and their masses."""
    largest = tl.max(top, axis=0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    return shift + tl.log(tl.sum(mass * tl.exp2((top - shift) * LOG2E), axis=0))


@triton.jit
def _unpacked(pairs):
    """Logits [DEPTH, LANES] in float32, of bfloat16 in pairs [DEPTH, LANES / 2]."""
    low = (pairs << 16).to(tl.float32, bitcast=True)
    high = (pairs & -65536).to(tl.float32, bitcast=True)
    return tl.join(low, high).reshape(pairs.shape[0], 2 * pairs.shape[1])


@triton.jit(do_not_specialize=["rows", "nothing"])
def softmax_held_rows(
    logits,  # [K, C]; overwritten by the gradient, 0 from V on
    log_z,  # [K] out
    tokens,  # [K]
    grad,  # [K]
    rows,  # K
    nothing,  # 0, unknown to the compiler
    VOCAB: tl.constexpr,  # V
    COLUMNS: tl.constexpr,  # C
    LANES: tl.constexpr,
    WIDE: tl.constexpr,  # columns of a lane
    DEPTH: tl.constexpr,
    FULL: tl.constexpr,  # blocks of that depth
    TAIL: tl.constexpr,  # the depth of what is left; 0: nothing
    STAGES: tl.constexpr,
):
    """log Z and d/dl of g log p(token), of rows that registers hold from one to the other.

    A program has one row after the other; the next is on its way from memory all the while.
    """
    BLOCKS: tl.constexpr = FULL + (TAIL > 0)
    stride = tl.full((), COLUMNS, dtype=tl.int64)
    # A token's element is written when all of its row has been: that is known where threads meet
    # again. A barrier of its own would keep Triton from fetching rows ahead.
    spot = tl.full((), -1, dtype=tl.int64)
    late = tl.full((), 0.0, dtype=tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        start = row * stride
        at = logits + start
        pairs_at = at.to(tl.pointer_type(tl.int32))
        held = ()
        for i in tl.static_range(BLOCKS):
            place = _places(DEPTH if i < FULL else TAIL, LANES // 2)
            held += (_read(pairs_at, place, i * DEPTH * LANES // 2, COLUMNS // 2),)
        token = tl.load(tokens + row)
        g = tl.load(grad + row)
        own = tl.load(at + token).to(tl.float32)
        top = tl.full((LANES // WIDE,), float("-inf"), dtype=tl.float32)
        mass = tl.zeros((LANES // WIDE,), dtype=tl.float32)
        for i in tl.static_range(BLOCKS):
            z = _counted(_unpacked(held[i]), i * DEPTH * LANES, VOCAB)
            top, mass = _gather(z, top, mass, WIDE)
        norm = _log_sum_exp(top, mass)
        tl.store(logits + spot, late.to(logits.dtype.element_ty), mask=spot >= 0)
        tl.store(log_z + row, norm)
        for i in tl.static_range(BLOCKS):
            # Unpacked anew: as far as the compiler knows these are others, so that it does not hold
            # the unpacked ones, for which there are too few registers.
            z = _counted(_unpacked(held[i] ^ nothing), i * DEPTH * LANES, VOCAB)
            _write(at, z, norm, -g, i * DEPTH * LANES, COLUMNS)
        spot = start + token
        late = g - g * tl.exp2(own * LOG2E - norm * LOG2E)
    tl.debug_barrier()
    tl.store(logits + spot, late.to(logits.dtype.element_ty), mask=spot >= 0)


@triton.jit
def softmax_rows(
    logits,  # [K, C]; if GRADIENT, overwritten by the gradient, 0 from V on
    log_z,  # [K]; out if NORMALIZE, else in
    tokens,  # [K, J]; in, if GRADIENT
    grad,  # [K, J]; in, if GRADIENT
    VOCAB: tl.constexpr,  # V
    COLUMNS: tl.constexpr,  # C
    J: tl.constexpr,
    BLOCK_J: tl.constexpr,  # a power of two >= J
    LANES: tl.constexpr,
    WIDE: tl.constexpr,  # columns of a lane
    DEPTH: tl.constexpr,
    FULL: tl.constexpr,  # blocks of that depth, of data tokens alone
    TAIL: tl.constexpr,  # the depth of what is left; 0: nothing
    STAGES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """log sum exp of a row's first V logits, and d/dl of sum_j g_j log p(token_j): g_j at its
    token, less sum_j g_j times p. A program a row, which memory gives once and takes once: what is
    read again is still in the L2 cache.
    """
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * COLUMNS
    BLOCK: tl.constexpr = DEPTH * LANES
    place = _places(DEPTH, LANES)
    if NORMALIZE:
        top = tl.full((LANES // WIDE,), float("-inf"), dtype=tl.float32)
        mass = tl.zeros((LANES // WIDE,), dtype=tl.float32)
        for start in tl.range(0, FULL * BLOCK, BLOCK, num_stages=STAGES):
            top, mass = _gather(tl.load(at + start + place).to(tl.float32), top, mass, WIDE)
        if TAIL:
            rest = _read(at, _places(TAIL, LANES), FULL * BLOCK, COLUMNS)
            top, mass = _gather(_counted(rest, FULL * BLOCK, VOCAB), top, mass, WIDE)
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
        tl.debug_barrier()  # from here on logits are overwritten
        for start in tl.range(0, FULL * BLOCK, BLOCK, num_stages=STAGES):
            z = tl.load(at + start + place).to(tl.float32)
            _write(at + start, z, norm, factor, 0, COLUMNS)
        if TAIL:
            rest = _read(at, _places(TAIL, LANES), FULL * BLOCK, COLUMNS)
            _write(at, _counted(rest, FULL * BLOCK, VOCAB), norm, factor, FULL * BLOCK, COLUMNS)
        tl.debug_barrier()  # tokens' elements are written last
        same = tl.where(token[:, None] == token[None, :], g[None, :], 0.0)
        own = tl.sum(same, axis=1) + factor * tl.exp2(own * LOG2E - norm * LOG2E)
        tl.store(at + token, own.to(logits.dtype.element_ty), mask=j < J)
