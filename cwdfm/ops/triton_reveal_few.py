# mypy: ignore-errors
"""Triton kernel for Algorithm 1 with a few buckets: a faster version of `triton_reveal.reveal`.

The ends of buckets are held in registers, and the state of all neighbors is loaded at once.
"""

import triton
import triton.language as tl

from cwdfm.ops.triton_reveal import WARP, state_rows

PREFETCH = tl.constexpr(1024)  # elements loaded into the L1 cache at once


@triton.jit
def _prefetch(x, total, bits, BLOCK: tl.constexpr):
    """Load x [total] into the L1 cache, combining its elements into `bits`."""
    for first in range(0, total, BLOCK):
        i = first + tl.arange(0, BLOCK)
        bits |= tl.load(x + i, mask=i < total, other=0).to(tl.int32)
    return bits


@triton.jit
def _select_half(values, second, COUNT: tl.constexpr):
    """One value of each pair in a tuple of COUNT: the second if `second`, else the first."""
    pairs = ()
    for n in tl.static_range(0, COUNT - 1, 2):
        pairs += (tl.where(second, values[n + 1], values[n]),)
    if COUNT % 2 == 1:
        pairs += (values[COUNT - 1],)
    return pairs


@triton.jit
def _pick(values, c, COUNT: tl.constexpr):
    """values[c] of a tuple of at most 16 values; arbitrary if c is out of range."""
    values = _select_half(values, (c & 1) != 0, COUNT)
    values = _select_half(values, (c & 2) != 0, (COUNT + 1) // 2)
    values = _select_half(values, (c & 4) != 0, (COUNT + 3) // 4)
    values = _select_half(values, (c & 8) != 0, (COUNT + 7) // 8)
    return values[0]


@triton.jit
def _choose(u, begins, ends, ratio, active, BUCKETS: tl.constexpr, ASCENDING: tl.constexpr):
    """The bucket that u falls into, its end, and the index in `order` of the chosen member."""
    # Masses are relative to the occupied bucket with the largest alpha, `top`: the last occupied
    # one in the order of this loop.
    top = tl.zeros((WARP,), tl.int32)
    begin = tl.zeros((WARP,), tl.int32)
    end = ends[BUCKETS - 1]
    for c in tl.static_range(
        0 if ASCENDING else BUCKETS - 1, BUCKETS if ASCENDING else -1, 1 if ASCENDING else -1
    ):
        occupied = ends[c] > begins[c]
        top = tl.where(occupied, c, top)
        if ASCENDING:
            begin = tl.where(occupied, begins[c], begin)
        else:
            end = tl.where(occupied, ends[c], end)
    units = ()
    masses = ()
    for c in tl.static_range(BUCKETS):
        units += (tl.load(ratio + c * BUCKETS + top, mask=active),)
        masses += ((ends[c] - begins[c]).to(tl.float64) * units[c],)
    total = masses[0]
    for c in tl.static_range(1, BUCKETS):
        total += masses[c]
    rests = (u * total,)
    for c in tl.static_range(BUCKETS):
        rests += (rests[c] - masses[c],)
    # Choose the first bucket whose mass exceeds the remainder. If rounding leaves none, choose the
    # first member of `top`: the remainder is then far below one.
    chosen = top
    rest = tl.zeros((WARP,), tl.float64)
    unit = tl.full((WARP,), 1.0, tl.float64)
    for c in tl.static_range(BUCKETS - 1, -1, -1):
        hit = rests[c] < masses[c]
        chosen = tl.where(hit, c, chosen)
        begin = tl.where(hit, begins[c], begin)
        end = tl.where(hit, ends[c], end)
        rest = tl.where(hit, rests[c], rest)
        unit = tl.where(hit, units[c], unit)
    index = tl.minimum(begin + (rest / unit).to(tl.int32), end - 1)
    return chosen, end, index


@triton.jit
def _reveal_one(
    state, neighbors, chosen, end, index, ends, tails, lasts, active,
    NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """Reveal the member at `index`; returns its neighbors, their scores and the bucket ends."""
    bucket, order, slot = state
    i = tl.load(order + index, mask=active).to(tl.int32)
    last = tl.load(order + end - 1, mask=active).to(tl.int32)
    near = ()
    for n in tl.static_range(NEIGHBORS):
        near += (tl.load(neighbors + i * NEIGHBORS + n, mask=active),)
    # In every bucket from `chosen` on, the last member fills the gap, which moves up and out of the
    # last bucket. An empty bucket shares its gap with the next one, whose store comes later and
    # wins.
    tl.store(order + index, last, mask=active)
    for c in tl.static_range(1, BUCKETS):
        tl.store(tails[c - 1], lasts[c], mask=active & (c > chosen))
    tl.store(bucket + i, BUCKETS, mask=active)
    scores = ()
    for n in tl.static_range(NEIGHBORS):
        scores += (tl.load(bucket + near[n], mask=active, other=BUCKETS).to(tl.int32),)
    # Downwards, so that the store of a member's own bucket wins over those of empty ones above.
    for c in tl.static_range(BUCKETS - 1, 0, -1):
        tl.store(slot + lasts[c], ends[c - 1] - 1, mask=active & (c > chosen))
    tl.store(slot + last, index, mask=active)
    raised = ()
    for c in tl.static_range(BUCKETS):
        raised += (tl.where(active & (c >= chosen), ends[c] - 1, ends[c]),)
    return near, scores, raised


@triton.jit
def _promote(state, near, scores, raised, NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr):
    """Move the masked neighbors up by one bucket; returns the new bucket ends."""
    bucket, order, slot = state
    # Neighbors move one after the other. The entries they access are known in advance from the
    # number of earlier neighbors with the same score, counted in 4 bits per score, so all are
    # loaded at once. None has the score of the last bucket, because i was a masked neighbor, so
    # eight scores suffice.
    seen = tl.zeros((WARP,), tl.int32)
    ends = ()
    holes = ()
    lasts = ()
    for n in tl.static_range(NEIGHBORS):
        masked = scores[n] < BUCKETS
        shift = (scores[n] & 7) * 4
        before = (seen >> shift) & 15
        seen += tl.where(masked, 1, 0) << shift
        end = _pick(raised, scores[n], BUCKETS) - 1 - before
        ends += (tl.where(masked, end, -1),)
        holes += (tl.load(slot + near[n], mask=masked, other=-1).to(tl.int32),)
        lasts += (tl.load(order + ends[n], mask=masked, other=-1).to(tl.int32),)
    # Apply the moves of earlier neighbors to the loaded values. No two neighbors share a tail, and
    # none moves twice: the first members of a bucket, which arrived last, leave it last.
    settled_holes = ()
    settled_lasts = ()
    for n in tl.static_range(NEIGHBORS):
        hole = holes[n]
        last = lasts[n]
        for m in tl.static_range(n):
            hole = tl.where(settled_lasts[m] == near[n], settled_holes[m], hole)
            last = tl.where(settled_holes[m] == ends[n], settled_lasts[m], last)
        settled_holes += (hole,)
        settled_lasts += (last,)
    for n in tl.static_range(NEIGHBORS):
        masked = scores[n] < BUCKETS
        tl.store(bucket + near[n], scores[n] + 1, mask=masked)
        tl.store(order + settled_holes[n], settled_lasts[n], mask=masked)
        tl.store(slot + settled_lasts[n], settled_holes[n], mask=masked)
        # After the two stores above, because they may access the same entries.
        tl.store(order + ends[n], near[n], mask=masked)
        tl.store(slot + near[n], ends[n], mask=masked)
    ends = ()
    for c in tl.static_range(BUCKETS - 1):
        ends += (raised[c] - ((seen >> (4 * c)) & 15),)
    ends += (raised[BUCKETS - 1],)
    return ends


@triton.jit(do_not_specialize=["uniforms", "batch", "length", "width", "lanes"])
def reveal_few(
    state, border, uniforms, neighbors, ratio,  # as in `reveal`; border is only read, and
    # neighbors of a coordinate are distinct, except for missing ones
    batch, length, width, lanes,
    NEIGHBORS: tl.constexpr,  # at most 8; a symmetric relation
    BUCKETS: tl.constexpr,  # NEIGHBORS + 1
    ASCENDING: tl.constexpr,
    ALONE: tl.constexpr,  # whether `lanes` is 1
):  # fmt: skip
    """`triton_reveal.reveal` for a few buckets; the end of bucket c, ends[c], is in a register."""
    lane = tl.arange(0, WARP)
    first = tl.program_id(0).to(tl.int64) * lanes
    # All threads process a sequence that is alone in its warp, so that nothing is masked.
    b = first + (tl.zeros_like(lane) if ALONE else lane)
    draws = tl.load(border + b, mask=(b < first + lanes) & (b < batch), other=0)
    ends = ()
    for c in tl.static_range(BUCKETS):
        ends += (tl.load(border + (c + 2) * batch + b, mask=draws > 0, other=0),)

    # The neighbors of a coordinate are loaded only once, so every draw would miss the L1 cache.
    bits = _prefetch(neighbors, length * NEIGHBORS, tl.zeros((PREFETCH,), tl.int32), PREFETCH)
    own = tl.minimum(lanes, batch - first) * length
    for part in tl.static_range(3):
        bits = _prefetch(state_rows(state, first, batch, length)[part], own, bits, PREFETCH)
    # Never stores anything, but the compiler does not know that and keeps the loads.
    tl.store(border + tl.arange(0, PREFETCH), bits, mask=lanes < 0)

    rows = state_rows(state, b, batch, length)
    uniforms += b * width
    following = tl.load(uniforms, mask=draws > 0)
    for k in range(tl.max(draws, axis=0)):
        # Values loaded for a finished sequence are unused, so they may be arbitrary.
        active = tl.full((WARP,), True, tl.int1) if ALONE else k < draws
        u = following
        uniforms += 1
        following = tl.load(uniforms, mask=k + 1 < draws)

        begins = (tl.zeros((WARP,), tl.int32),)
        tails = ()
        lasts = ()
        for c in tl.static_range(BUCKETS):
            begins += (ends[c],)
            # The last members, which will fill gaps, are loaded before any store. For an empty
            # bucket this loads that of a lower one, or whatever precedes `order` if all are empty.
            tails += (rows[1] + ends[c] - 1,)
            lasts += (tl.load(tails[c], mask=active).to(tl.int32),)

        chosen, end, index = _choose(u, begins, ends, ratio, active, BUCKETS, ASCENDING)
        near, scores, raised = _reveal_one(
            rows, neighbors, chosen, end, index, ends, tails, lasts, active, NEIGHBORS, BUCKETS
        )
        ends = _promote(rows, near, scores, raised, NEIGHBORS, BUCKETS)
