# mypy: ignore-errors
"""Triton kernel that prepares Algorithm 1: counts, uniforms, and coordinates sorted by bucket.

`order`, `slot` and the borders are those of `cwdfm.path.algorithm1`. `triton_reveal` and
`triton_reveal_few` draw from them.
"""

import triton
import triton.language as tl

from cwdfm.ops.triton_random import MASK32, draw


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
    whole = batch.to(tl.int64) * length
    bucket = state + b * length
    return bucket, bucket + whole, bucket + 2 * whole


@triton.jit
def _draw_count(
    start,
    kappa,
    index,
    uniforms,
    b,
    length,
    seed_low,
    seed_high,
    step,
    REVEAL: tl.constexpr,
    ORDER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draw the number of reveals of sequence b, Binomial in kappa, and store the uniforms."""
    sample = b if index is None else tl.load(index + b)
    chance = tl.load(kappa + b).to(tl.float64)
    when = step.to(tl.int64) & MASK32
    below = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < length
        masked = inside
        if start is not None:
            masked = tl.load(start + i, mask=inside, other=1) == 0
        u = draw(sample, when, i.to(tl.int64), seed_low, seed_high, REVEAL)
        below += ((u < chance) & masked).to(tl.int32)
        u = draw(sample, when, i.to(tl.int64), seed_low, seed_high, ORDER)
        tl.store(uniforms + b * length + i, u, mask=inside)
    return tl.sum(below, axis=0)


@triton.jit
def _all_masked(rows, border, batch, length, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """Initialize the state where nothing is revealed: all coordinates are in bucket 0."""
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
    rows,
    border,
    start,
    neighbors,
    batch,
    length,
    NEIGHBORS: tl.constexpr,
    BUCKETS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sort the masked coordinates by bucket, in reverse order within a bucket."""
    bucket, order, slot = rows
    lane = tl.arange(0, LANES)
    size = tl.zeros((LANES,), tl.int32)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        found = _bucket(start, neighbors, i, length, NEIGHBORS, BUCKETS)
        tl.store(bucket + i, found, mask=i < length)
        for c in range(BUCKETS):
            size += tl.where(lane == c, tl.sum((found == c).to(tl.int32), axis=0), 0)
    free = tl.cumsum(size, axis=0)  # end of the free places in each bucket
    tl.store(border + (lane + 1) * batch, free)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        found = _bucket(start, neighbors, i, length, NEIGHBORS, BUCKETS)
        place = tl.zeros_like(i)
        for c in range(BUCKETS):
            member = (found == c).to(tl.int32)
            end = tl.sum(tl.where(lane == c, free, 0), axis=0)
            place = tl.where(found == c, end - tl.cumsum(member, axis=0), place)
            free -= tl.where(lane == c, tl.sum(member, axis=0), 0)
        tl.store(slot + i, place, mask=found < BUCKETS)
        tl.store(order + place, i, mask=found < BUCKETS)


# Not specialized, so that new values and shapes do not trigger compilation.
@triton.jit(
    do_not_specialize=[
        "start",
        "count",
        "kappa",
        "index",
        "batch",
        "length",
        "seed_low",
        "seed_high",
        "step",
    ]
)
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
    batch,
    length,
    seed_low,  # int32 with the bits of a 32-bit word, like seed_high and step
    seed_high,
    step,
    REVEAL: tl.constexpr,  # purpose of the count
    ORDER: tl.constexpr,  # purpose of the uniforms
    NEIGHBORS: tl.constexpr,
    BUCKETS: tl.constexpr,
    LANES: tl.constexpr,  # a power of two >= BUCKETS; the remaining buckets stay empty
    BLOCK: tl.constexpr,
):
    """For one sequence: number of draws, their uniforms, and masked coordinates by bucket."""
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
        given = (start, neighbors, batch, length)
        _counting_sort(rows, border, *given, NEIGHBORS, BUCKETS, LANES, BLOCK)
