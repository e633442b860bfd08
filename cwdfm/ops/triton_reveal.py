# mypy: ignore-errors
"""Triton kernels for Algorithm 1: `prepare` initializes the state, `reveal` draws from it.

`order`, `slot` and the bucket boundaries `border` are defined in `cwdfm.path.algorithm1`. The
kernels follow its loop step by step, so that both choose the same coordinates.

A sequence belongs to one thread: every tensor of `reveal` has one element per thread of a warp. (A
sequence that is alone in its warp is processed redundantly by all threads.) Loads and stores of a
sequence are therefore ordered without barriers, and the cost is the chain of dependent loads. Loads
whose addresses are known are issued before the stores, so that they overlap.

The state is stored in rows [B, N] rather than columns [N, B], so that a 32-byte sector holds up to
16 entries of one sequence. The bucket ends of the next draw and the neighbors of a coordinate are
usually in sectors that are already cached.

`reveal` supports any number of buckets; `triton_reveal_few` is faster for a few.
"""

import triton
import triton.language as tl

from cwdfm.ops.triton_random import MASK32, draw

WARP = tl.constexpr(32)


@triton.jit
def _bucket(start, neighbors, i, length, NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr):
    """The number of revealed neighbors of i; BUCKETS if i is revealed or past the end."""
    inside = i < length
    bucket = tl.zeros_like(i)
    for n in range(NEIGHBORS):
        j = tl.load(neighbors + i * NEIGHBORS + n, mask=inside, other=0)
        bucket += tl.load(start + j).to(tl.int32)
    masked = tl.load(start + i, mask=inside, other=1) == 0
    return tl.where(masked, bucket, BUCKETS)


@triton.jit
def state_rows(state, b, batch, length):
    """Pointers to bucket, order and slot of sequence b in the state [3, B, N]."""
    size = batch.to(tl.int64) * length
    bucket = state + b * length
    return bucket, bucket + size, bucket + 2 * size


@triton.jit
def _draw_count(
    start, kappa, index, uniforms, b, length, seed_low, seed_high, step,
    REVEAL: tl.constexpr, ORDER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw the number of reveals of sequence b, binomial in kappa, and store the uniforms."""
    sample = b if index is None else tl.load(index + b)
    probability = tl.load(kappa + b).to(tl.float64)
    step = step.to(tl.int64) & MASK32
    below = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < length
        masked = inside
        if start is not None:
            masked = tl.load(start + i, mask=inside, other=1) == 0
        u = draw(sample, step, i.to(tl.int64), seed_low, seed_high, REVEAL)
        below += ((u < probability) & masked).to(tl.int32)
        u = draw(sample, step, i.to(tl.int64), seed_low, seed_high, ORDER)
        tl.store(uniforms + b * length + i, u, mask=inside)
    return tl.sum(below, axis=0)


@triton.jit
def _all_masked(rows, border, batch, length, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """Initialize the state if nothing is revealed: all coordinates are in bucket 0."""
    bucket, order, slot = rows
    lane = tl.arange(0, LANES)
    tl.store(border + (lane + 1) * batch, tl.zeros_like(lane) + length)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < length
        tl.store(bucket + i, 0, mask=inside)
        tl.store(slot + i, length - 1 - i, mask=inside)
        tl.store(order + i, length - 1 - i, mask=inside)


@triton.jit
def _counting_sort(
    rows, border, start, neighbors, batch, length,
    NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sort the masked coordinates by bucket, in reverse order within a bucket."""
    bucket, order, slot = rows
    lane = tl.arange(0, LANES)
    size = tl.zeros((LANES,), tl.int32)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        score = _bucket(start, neighbors, i, length, NEIGHBORS, BUCKETS)
        tl.store(bucket + i, score, mask=i < length)
        for c in range(BUCKETS):
            size += tl.where(lane == c, tl.sum((score == c).to(tl.int32), axis=0), 0)
    free = tl.cumsum(size, axis=0)  # end of the unfilled part of each bucket
    tl.store(border + (lane + 1) * batch, free)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        score = _bucket(start, neighbors, i, length, NEIGHBORS, BUCKETS)
        index = tl.zeros_like(i)
        for c in range(BUCKETS):
            member = (score == c).to(tl.int32)
            end = tl.sum(tl.where(lane == c, free, 0), axis=0)
            index = tl.where(score == c, end - tl.cumsum(member, axis=0), index)
            free -= tl.where(lane == c, tl.sum(member, axis=0), 0)
        tl.store(slot + i, index, mask=score < BUCKETS)
        tl.store(order + index, i, mask=score < BUCKETS)


# `start` to `step` are not specialized, so that new values and shapes do not trigger compilation.
@triton.jit(do_not_specialize=range(4, 13))
def prepare(
    # [3, B, N] output: bucket (number of revealed neighbors; BUCKETS if revealed), order (masked
    # coordinates by bucket), slot (index of each in `order`)
    state,
    border,  # [> LANES + 1, B] int32 output: number of draws, then the start of each bucket
    uniforms,  # [B, N] float64; output if count is None
    neighbors,  # [N, K] int32; i itself stands for a missing neighbor
    start,  # [B, N] int8: initially revealed; None for nothing
    count,  # [B] int: number of draws; None to draw counts and uniforms here
    kappa,  # [B] float: reveal probability, if count is None
    index,  # [B] int64: sample indices, if count is None; None for 0..B-1
    batch, length,
    seed_low, seed_high, step,  # int32 with the bits of 32-bit words
    REVEAL: tl.constexpr, ORDER: tl.constexpr,  # purposes of the count and of the uniforms
    NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr,
    LANES: tl.constexpr,  # a power of two >= BUCKETS; the remaining buckets stay empty
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Initialize one sequence: number of draws, uniforms, and masked coordinates by bucket."""
    b = tl.program_id(0).to(tl.int64)
    rows = state_rows(state, b, batch, length)
    if start is not None:
        start += b * length
    if count is None:
        words = (seed_low, seed_high, step)
        draws = _draw_count(start, kappa, index, uniforms, b, length, *words, REVEAL, ORDER, BLOCK)
    else:
        draws = tl.load(count + b).to(tl.int32)
    tl.store(border + b, draws)
    border += batch + b
    tl.store(border, 0)
    if start is None:
        _all_masked(rows, border, batch, length, LANES, BLOCK)
    else:
        inputs = (start, neighbors, batch, length)
        _counting_sort(rows, border, *inputs, NEIGHBORS, BUCKETS, LANES, BLOCK)


@triton.jit
def _mass(border, ratio, c, top, batch, active, BUCKETS: tl.constexpr):
    """The mass of bucket c: its size times alpha(c) / alpha(top)."""
    begin = tl.load(border + c * batch, mask=active, other=0)
    end = tl.load(border + (c + 1) * batch, mask=active, other=0)
    unit = tl.load(ratio + c * BUCKETS + top, mask=active & (c < BUCKETS), other=1.0)
    return (end - begin).to(tl.float64) * unit


@triton.jit
def _choose(
    u, border, ratio, batch, active,
    BUCKETS: tl.constexpr, CHUNK: tl.constexpr, ASCENDING: tl.constexpr,
):  # fmt: skip
    """The bucket that u falls into, and the index in `order` of the chosen member."""
    # Masses are relative to the occupied bucket with the largest alpha, `top`.
    top = tl.full((WARP,), 0 if ASCENDING else BUCKETS, tl.int32)
    edge = tl.zeros((WARP,), tl.int32)
    for first in range(0, BUCKETS, CHUNK):
        for n in tl.static_range(CHUNK):
            c = first + n
            below = edge
            edge = tl.load(border + (c + 1) * batch, mask=active, other=0)
            better = (edge > below) if ASCENDING else (edge > below) & (c < top)
            top = tl.where(better, c, top)
    total = tl.zeros((WARP,), tl.float64)
    for first in range(0, BUCKETS, CHUNK):
        for n in tl.static_range(CHUNK):
            total += _mass(border, ratio, first + n, top, batch, active, BUCKETS)
    target = u * total
    rest = target
    chosen = top
    missed = active
    for first in range(0, BUCKETS, CHUNK):
        for n in tl.static_range(CHUNK):
            mass = _mass(border, ratio, first + n, top, batch, active, BUCKETS)
            hit = missed & (target < mass)
            chosen = tl.where(hit, first + n, chosen)
            rest = tl.where(hit, target, rest)
            missed = missed & (target >= mass)
            target -= mass
    rest = tl.where(missed, target, rest)
    unit = tl.load(ratio + chosen * BUCKETS + top, mask=active, other=1.0)
    begin = tl.load(border + chosen * batch, mask=active, other=0)
    end = tl.load(border + (chosen + 1) * batch, mask=active, other=1)
    return chosen, tl.minimum(begin + (rest / unit).to(tl.int32), end - 1)


@triton.jit
def _remove(rows, border, chosen, index, batch, active, BUCKETS: tl.constexpr, CHUNK: tl.constexpr):
    """Remove the member at `index` from `order`."""
    _, order, slot = rows
    # In every bucket from `chosen` on, the last member fills the gap, which moves up and out of the
    # last bucket. The last members of higher buckets do not change, so those of a chunk are loaded
    # first.
    gap = index
    for first in range(0, BUCKETS, CHUNK):
        tails = ()
        lasts = ()
        for n in tl.static_range(CHUNK):
            tail = tl.load(border + (first + n + 1) * batch, mask=active, other=0) - 1
            tails += (tail,)
            lasts += (tl.load(order + tail, mask=tail >= 0, other=0),)
        for n in tl.static_range(CHUNK):
            moves = active & (first + n >= chosen)
            filled = moves & (gap < tails[n])
            tl.store(border + (first + n + 1) * batch, tails[n], mask=moves)
            tl.store(order + gap, lasts[n], mask=filled)
            tl.store(slot + lasts[n], gap, mask=filled)
            gap = tl.where(moves, tails[n], gap)


@triton.jit
def _promote(rows, border, j, score, batch, BUCKETS: tl.constexpr):
    """Move coordinate j, if it is masked, from the bucket of its score to the next one."""
    bucket, order, slot = rows
    masked = score < BUCKETS
    above = border + (score + 1) * batch
    end = tl.load(above, mask=masked, other=1) - 1
    hole = tl.load(slot + j, mask=masked, other=0)
    last = tl.load(order + end, mask=masked, other=0)
    tl.store(above, end, mask=masked)
    tl.store(bucket + j, score + 1, mask=masked)
    tl.store(order + hole, last, mask=masked)
    tl.store(slot + last, hole, mask=masked)
    tl.store(order + end, j, mask=masked)  # after the two stores above, because j may equal last
    tl.store(slot + j, end, mask=masked)


@triton.jit(do_not_specialize=["uniforms", "batch", "length", "width", "lanes"])
def reveal(
    state,  # [3, B, N] from `prepare`; modified in place
    border,  # [> BUCKETS + 1 rounded up to whole chunks, B] int32; modified in place
    uniforms,  # [B, >= maximum number of draws] float64
    neighbors,  # [N, K] int32; i itself stands for a missing neighbor
    ratio,  # [C, C] float64: alpha(c) / alpha(d), at most 1
    batch, length,
    width,  # of `uniforms`
    lanes,  # sequences per program, at most WARP
    NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr,
    CHUNK: tl.constexpr,  # buckets read at once
    ASCENDING: tl.constexpr,  # whether alpha increases with the score
):  # fmt: skip
    """Reveal the requested number of coordinates: their buckets become BUCKETS."""
    lane = tl.arange(0, WARP)
    b = tl.program_id(0).to(tl.int64) * lanes + lane
    draws = tl.load(border + b, mask=(lane < lanes) & (b < batch), other=0)
    rows = state_rows(state, b, batch, length)
    bucket, order, _ = rows
    border += batch + b
    uniforms += b * width
    following = tl.load(uniforms, mask=draws > 0, other=0.0)
    for k in range(tl.max(draws, axis=0)):
        active = k < draws
        u = following
        following = tl.load(uniforms + k + 1, mask=k + 1 < draws, other=0.0)
        chosen, index = _choose(u, border, ratio, batch, active, BUCKETS, CHUNK, ASCENDING)
        i = tl.load(order + index, mask=active, other=0).to(tl.int32)
        tl.store(bucket + i, BUCKETS, mask=active)
        # The loop over neighbors prefetches the next one.
        j = tl.load(neighbors + i * NEIGHBORS, mask=active, other=0)
        score = tl.load(bucket + j, mask=active, other=BUCKETS).to(tl.int32)
        _remove(rows, border, chosen, index, batch, active, BUCKETS, CHUNK)
        for n in range(1, NEIGHBORS + 1):
            further = active & (n < NEIGHBORS)
            near = tl.load(neighbors + i * NEIGHBORS + n, mask=further, other=0)
            near_score = tl.load(bucket + near, mask=further, other=BUCKETS).to(tl.int32)
            _promote(rows, border, j, score, batch, BUCKETS)
            j = near
            score = near_score
