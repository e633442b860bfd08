# mypy: ignore-errors
"""Triton kernel of Algorithm 1: one program a sequence, its draws one after the other.

The state lies in memory that a program has for itself, in the caches: `order` and `slot` as in
`cwdfm.path.algorithm1`, whose loop this is, step for step, so that both choose the same tokens.
"""

import triton
import triton.language as tl


@triton.jit
def _promote(i, place, bucket, order, slot, border):
    """Move coordinate i, which lies at `place`, to the bucket above; where it lies then."""
    end = tl.load(border + bucket + 1) - 1
    last = tl.load(order + end)
    tl.debug_barrier()
    tl.store(order + place, last)
    tl.store(slot + last, place)
    tl.debug_barrier()  # i and last may be one
    tl.store(order + end, i)
    tl.store(slot + i, end)
    tl.store(border + bucket + 1, end)
    tl.debug_barrier()
    return end


@triton.jit(do_not_specialize=["length"])
def reveal(
    revealed,  # [B, N] int8, changed in place
    count,  # [B] int64: draws to make
    uniforms,  # [B, N] float64
    neighbors,  # [N, K] int32, -1 for none
    ratio,  # [C, C] float64: alpha(c) / alpha(d), at most 1
    order,  # [B, N] int32: masked coordinates by score
    slot,  # [B, N] int32: where each lies in `order`
    score,  # [B, N] int32: revealed neighbours
    border,  # [B, C + 1] int32: where each score's coordinates begin in `order`
    length,
    NEIGHBORS: tl.constexpr,
    BUCKETS: tl.constexpr,
    LANES: tl.constexpr,  # a power of two >= BUCKETS
    ASCENDING: tl.constexpr,  # whether alpha grows with the score
):
    """Reveal count[b] coordinates of sequence b."""
    b = tl.program_id(0).to(tl.int64)
    revealed += b * length
    uniforms += b * length
    order += b * length
    slot += b * length
    score += b * length
    border += b * (BUCKETS + 1)
    lane = tl.arange(0, LANES)
    inside = lane < BUCKETS
    for k in range(tl.load(count + b)):
        first = tl.load(border + lane, mask=inside, other=0)
        size = tl.load(border + lane + 1, mask=inside, other=0) - first
        # The occupied bucket of largest alpha is the unit in which the others are counted.
        if ASCENDING:
            top = tl.max(tl.where(size > 0, lane, -1), axis=0)
        else:
            top = tl.min(tl.where(size > 0, lane, LANES), axis=0)
        unit = tl.load(ratio + lane * BUCKETS + top, mask=inside, other=0.0)
        mass = size.to(tl.float64) * unit
        total = 0.0 * tl.load(ratio)  # in float64
        for c in tl.static_range(BUCKETS):
            total += tl.sum(tl.where(lane == c, mass, 0.0), axis=0)
        target = tl.load(uniforms + k) * total
        chosen = top
        rest = target
        found = top < 0  # not yet
        for c in tl.static_range(BUCKETS):
            here = tl.sum(tl.where(lane == c, mass, 0.0), axis=0)
            hit = (target < here) & (found == 0)
            chosen = tl.where(hit, c, chosen)
            rest = tl.where(hit, target, rest)
            found = found | hit
            target = tl.where(found, target, target - here)
        rest = tl.where(found, rest, target)
        unit_chosen = tl.sum(tl.where(lane == chosen, unit, 0.0), axis=0)
        begin = tl.sum(tl.where(lane == chosen, first, 0), axis=0)
        members = tl.sum(tl.where(lane == chosen, size, 0), axis=0)
        place = begin + tl.minimum((rest / unit_chosen).to(tl.int32), members - 1)
        i = tl.load(order + place)
        tl.store(revealed + i, 1)
        for c in range(chosen, BUCKETS):
            place = _promote(i, place, c, order, slot, border)
        for n in tl.static_range(NEIGHBORS):
            j = tl.load(neighbors + i * NEIGHBORS + n)
            if j >= 0:  # noqa: SIM102 (a load behind `and` happens all the same)
                if tl.load(revealed + j) == 0:
                    old = tl.load(score + j)
                    _promote(j, tl.load(slot + j), old, order, slot, border)
                    tl.store(score + j, old + 1)
                    tl.debug_barrier()
