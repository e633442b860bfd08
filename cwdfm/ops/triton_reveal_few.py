# mypy: ignore-errors
"""Triton kernel of Algorithm 1 for few buckets: what `triton_reveal.reveal` does, in less time.

The ends of buckets are in registers, and what is read of the state is read for all neighbours at
once. For the rest see `triton_reveal`.
"""

import triton
import triton.language as tl

from cwdfm.ops.triton_reveal import WARP
from cwdfm.ops.triton_reveal_start import state_rows

TOUCH = tl.constexpr(1024)  # elements that are brought into the near cache at once


@triton.jit
def _touch(x, total, found, BLOCK: tl.constexpr):
    """Bring x [total] into the near cache: it is read, and its bits are added to `found`."""
    for first in range(0, total, BLOCK):
        place = first + tl.arange(0, BLOCK)
        found |= tl.load(x + place, mask=place < total, other=0).to(tl.int32)
    return found


@triton.jit
def _halve(values, second, COUNT: tl.constexpr):
    """Of each pair in a tuple of COUNT the second where asked for, else the first."""
    pairs = ()
    for n in tl.static_range(0, COUNT - 1, 2):
        pairs += (tl.where(second, values[n + 1], values[n]),)
    if COUNT % 2 == 1:
        pairs += (values[COUNT - 1],)
    return pairs


@triton.jit
def _pick(values, c, COUNT: tl.constexpr):
    """values[c], of a tuple of at most 16; anything of it where c is not a place of it."""
    values = _halve(values, (c & 1) != 0, COUNT)
    values = _halve(values, (c & 2) != 0, (COUNT + 1) // 2)
    values = _halve(values, (c & 4) != 0, (COUNT + 3) // 4)
    values = _halve(values, (c & 8) != 0, (COUNT + 7) // 8)
    return values[0]


@triton.jit
def _choose(u, begins, ends, ratio, active, BUCKETS: tl.constexpr, ASCENDING: tl.constexpr):
    """The bucket that u falls into, where that ends, and the place in `order` of the member."""
    # The occupied bucket of largest alpha is the unit in which the others are counted. The best
    # comes last, and stays. No bucket behind it is occupied.
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
    # The first bucket that is not used up. Where rounding leaves none, the top's first member:
    # what is left is then far below one.
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
    place = tl.minimum(begin + (rest / unit).to(tl.int32), end - 1)
    return chosen, end, place


@triton.jit
def _reveal_one(
    state,
    neighbors,
    chosen,
    end,
    place,
    ends,
    tails,
    lasts,
    active,
    NEIGHBORS: tl.constexpr,
    BUCKETS: tl.constexpr,
):
    """Take the member at `place` out: its neighbours, their scores, and where buckets end now."""
    bucket, order, slot = state
    i = tl.load(order + place, mask=active).to(tl.int32)
    last = tl.load(order + end - 1, mask=active).to(tl.int32)
    near = ()
    for n in tl.static_range(NEIGHBORS):
        near += (tl.load(neighbors + i * NEIGHBORS + n, mask=active),)
    # Up from bucket to bucket and out of the last: in each, the last member fills the gap. An
    # empty bucket's gap is the same as the next one's, which has the last word on it.
    tl.store(order + place, last, mask=active)
    for c in tl.static_range(1, BUCKETS):
        tl.store(tails[c - 1], lasts[c], mask=active & (c > chosen))
    tl.store(bucket + i, BUCKETS, mask=active)
    scores = ()
    for n in tl.static_range(NEIGHBORS):
        scores += (tl.load(bucket + near[n], mask=active, other=BUCKETS).to(tl.int32),)
    # Downwards, so that a member's own bucket has the last word, not an empty one above.
    for c in tl.static_range(BUCKETS - 1, 0, -1):
        tl.store(slot + lasts[c], ends[c - 1] - 1, mask=active & (c > chosen))
    tl.store(slot + last, place, mask=active)
    raised = ()
    for c in tl.static_range(BUCKETS):
        raised += (tl.where(active & (c >= chosen), ends[c] - 1, ends[c]),)
    return near, scores, raised


@triton.jit
def _promote(state, near, scores, raised, NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr):
    """Move the masked neighbours one bucket up: where buckets end then."""
    bucket, order, slot = state
    # They move one after the other. Which places they ask for is known before, by counting in 4
    # bits a score how many had it, so all are read at once. None has the last bucket's score, since
    # i was masked beside it: eight scores are enough.
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
    # What an earlier neighbour's move would have put there instead. No two have one tail, and
    # none moves twice: a bucket's first members, which came last, leave it last.
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
        tl.store(order + ends[n], near[n], mask=masked)  # after the two: they may be one
        tl.store(slot + near[n], ends[n], mask=masked)
    ends = ()
    for c in tl.static_range(BUCKETS - 1):
        ends += (raised[c] - ((seen >> (4 * c)) & 15),)
    ends += (raised[BUCKETS - 1],)
    return ends


@triton.jit(do_not_specialize=["uniforms", "batch", "length", "width", "lanes"])
def reveal_few(
    state,  # [3, B, N] as `prepare` leaves it, here and below; changed in place
    border,  # [> BUCKETS + 1, B] int32, read only
    uniforms,  # [B, >= the most draws] float64
    neighbors,  # [N, K] int32, i itself for none; the others of a row differ from each other
    ratio,  # [C, C] float64: alpha(c) / alpha(d), at most 1
    batch,
    length,
    width,  # of `uniforms`
    lanes,  # sequences of this program, at most WARP
    NEIGHBORS: tl.constexpr,  # at most 8, each the other's neighbour
    BUCKETS: tl.constexpr,  # NEIGHBORS + 1
    ASCENDING: tl.constexpr,  # whether alpha grows with the score
    ALONE: tl.constexpr,  # whether `lanes` is 1
):
    """What `reveal` does, for few buckets: ends[c], where bucket c ends, is in a register."""
    lane = tl.arange(0, WARP)
    first = tl.program_id(0).to(tl.int64) * lanes
    # All threads take the very same steps for a sequence that is alone, so that nothing is masked.
    b = first + (tl.zeros_like(lane) if ALONE else lane)
    draws = tl.load(border + b, mask=(b < first + lanes) & (b < batch), other=0)
    ends = ()
    for c in tl.static_range(BUCKETS):
        ends += (tl.load(border + (c + 2) * batch + b, mask=draws > 0, other=0),)

    # A coordinate's neighbours are asked for once, so each draw would wait for a far cache.
    found = _touch(neighbors, length * NEIGHBORS, tl.zeros((TOUCH,), tl.int32), TOUCH)
    own = tl.minimum(lanes, batch - first) * length
    for part in tl.static_range(3):
        found = _touch(state_rows(state, first, batch, length)[part], own, found, TOUCH)
    # Never stored, which the compiler does not know: it would leave out what nobody uses.
    tl.store(border + tl.arange(0, TOUCH), found, mask=lanes < 0)

    rows = state_rows(state, b, batch, length)
    uniforms += b * width
    following = tl.load(uniforms, mask=draws > 0)
    for k in range(tl.max(draws, axis=0)):
        # What is read for a sequence that is through is used nowhere, so it may be anything.
        active = tl.full((WARP,), True, tl.int1) if ALONE else k < draws
        u = following
        uniforms += 1
        following = tl.load(uniforms, mask=k + 1 < draws)

        begins = (tl.zeros((WARP,), tl.int32),)
        tails = ()
        lasts = ()
        for c in tl.static_range(BUCKETS):
            begins += (ends[c],)
            # The last members, which will fill gaps: nothing is stored before. An empty bucket has
            # that of one below, or where all are empty what lies before `order`.
            tails += (rows[1] + ends[c] - 1,)
            lasts += (tl.load(tails[c], mask=active).to(tl.int32),)

        chosen, end, place = _choose(u, begins, ends, ratio, active, BUCKETS, ASCENDING)
        near, scores, raised = _reveal_one(
            rows, neighbors, chosen, end, place, ends, tails, lasts, active, NEIGHBORS, BUCKETS
        )
        ends = _promote(rows, near, scores, raised, NEIGHBORS, BUCKETS)
