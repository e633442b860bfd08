# mypy: ignore-errors
"""Triton kernels of Algorithm 1: what it starts from, then the draws one after the other.

`order`, `slot` and the borders are as in `cwdfm.path.algorithm1`, whose loop this is, step for
step, so that both choose the same tokens.

A sequence belongs to one thread: every tensor of `reveal` has one element for each of a warp's 32
(alone in a warp, to all of them, which take the very same steps at once).
So a load comes after the stores before it by the program's order alone, without barriers, and what
costs time is the chain of loads that wait for each other. Loads whose addresses are known stand
before the stores, to be under way together.

Rows [B, N] rather than columns [N, B]: a sector of 32 bytes then holds 16 places of the one
sequence that asked for it. The next draw's ends of buckets, one place before the last ones, and a
coordinate's neighbours are in the sectors that the thread's cache already has.

Where buckets are few, `reveal_few` has their borders in registers, and what it reads of the state
it reads for all neighbours at once. `reveal` takes any number of them.
"""

import triton
import triton.language as tl

from cwdfm.kernel.triton_random import MASK32, draw

WARP = tl.constexpr(32)
TOUCH = tl.constexpr(1024)  # elements that are brought into the near cache at once


@triton.jit
def _bucket(start, neighbors, i, length, NEIGHBORS: tl.constexpr, BUCKETS: tl.constexpr):
    """How many neighbours of i are revealed; BUCKETS where i itself is, or lies behind the end."""
    inside = i < length
    bucket = tl.zeros_like(i)
    for n in range(NEIGHBORS):
        j = tl.load(neighbors + i * NEIGHBORS + n, mask=inside, other=0)
        bucket += tl.load(start + j).to(tl.int32)
    masked = tl.load(start + i, mask=inside, other=1) == 0
    return tl.where(masked, bucket, BUCKETS)


@triton.jit
def _rows(state, b, batch, length):
    """Where sequence b has its bucket, order and slot in the state [3, B, N]."""
    whole = batch.to(tl.int64) * length
    bucket = state + b * length
    return bucket, bucket + whole, bucket + 2 * whole


# Compiled once for all values and shapes: steps and batches must not wait for a compiler.
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
    state,  # [3, B, N] out: bucket, the revealed neighbours, BUCKETS for a revealed coordinate;
    # order, masked coordinates by bucket; slot, where each lies in `order`
    border,  # [> LANES + 1, B] int32 out: draws to make; then where each bucket begins in `order`
    uniforms,  # [B, N] float64 out, where they are drawn here
    neighbors,  # [N, K] int32, i itself for none
    start,  # [B, N] int8: revealed from the beginning; None for nothing
    count,  # [B] int: draws to make; None where they and their uniforms are drawn here
    kappa,  # [B] float: the chance by which a masked coordinate counts, where they are
    index,  # [B] int64: the samples' numbers, where they are; None for 0..B-1
    batch,
    length,
    seed_low,  # int32, the bits of a 32-bit word, as are seed_high and step
    seed_high,
    step,
    REVEAL: tl.constexpr,  # purposes: of the count,
    ORDER: tl.constexpr,  # and of the uniforms
    NEIGHBORS: tl.constexpr,
    BUCKETS: tl.constexpr,
    LANES: tl.constexpr,  # a power of two >= BUCKETS; the buckets behind BUCKETS stay empty
    BLOCK: tl.constexpr,
):
    """Of one sequence: how often to draw, by what, and its masked coordinates sorted by bucket.

    A counting sort: within a bucket, the first last.
    """
    b = tl.program_id(0).to(tl.int64)
    bucket, order, slot = _rows(state, b, batch, length)
    if start is not None:
        start += b * length

    if count is None:
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
        draws = tl.sum(below, axis=0)
    else:
        draws = tl.load(count + b).to(tl.int32)
    tl.store(border + b, draws)

    border += batch + b
    lane = tl.arange(0, LANES)
    tl.store(border, 0)
    if start is None:
        # All are in the bucket 0.
        tl.store(border + (lane + 1) * batch, tl.zeros_like(lane) + length)
        for first in range(0, length, BLOCK):
            i = first + tl.arange(0, BLOCK)
            inside = i < length
            tl.store(bucket + i, 0, mask=inside)
            tl.store(slot + i, length - 1 - i, mask=inside)
            tl.store(order + i, length - 1 - i, mask=inside)
    else:
        size = tl.zeros((LANES,), tl.int32)
        for first in range(0, length, BLOCK):
            i = first + tl.arange(0, BLOCK)
            found = _bucket(start, neighbors, i, length, NEIGHBORS, BUCKETS)
            tl.store(bucket + i, found, mask=i < length)
            for c in range(BUCKETS):
                size += tl.where(lane == c, tl.sum((found == c).to(tl.int32), axis=0), 0)
        free = tl.cumsum(size, axis=0)  # the end of what is free in each bucket
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


@triton.jit
def _mass(border, ratio, c, top, batch, active, BUCKETS: tl.constexpr):
    """What bucket c weighs: its size times alpha(c) / alpha(top)."""
    begin = tl.load(border + c * batch, mask=active, other=0)
    end = tl.load(border + (c + 1) * batch, mask=active, other=0)
    unit = tl.load(ratio + c * BUCKETS + top, mask=active & (c < BUCKETS), other=1.0)
    return (end - begin).to(tl.float64) * unit


@triton.jit(do_not_specialize=["uniforms", "batch", "length", "width", "lanes"])
def reveal(
    state,  # [3, B, N] as `prepare` leaves it, here and below; changed in place
    border,  # [> BUCKETS + 1 rounded up to whole chunks, B] int32, changed in place
    uniforms,  # [B, >= the most draws] float64
    neighbors,  # [N, K] int32, i itself for none
    ratio,  # [C, C] float64: alpha(c) / alpha(d), at most 1
    batch,
    length,
    width,  # of `uniforms`
    lanes,  # sequences of this program, at most WARP
    NEIGHBORS: tl.constexpr,
    BUCKETS: tl.constexpr,
    CHUNK: tl.constexpr,  # buckets that are read at once
    ASCENDING: tl.constexpr,  # whether alpha grows with the score
):
    """Reveal as many coordinates as are to be drawn: their buckets become BUCKETS."""
    lane = tl.arange(0, WARP)
    b = tl.program_id(0).to(tl.int64) * lanes + lane
    draws = tl.load(border + b, mask=(lane < lanes) & (b < batch), other=0)
    bucket, order, slot = _rows(state, b, batch, length)
    border += batch + b
    uniforms += b * width
    following = tl.load(uniforms, mask=draws > 0, other=0.0)
    for k in range(tl.max(draws, axis=0)):
        active = k < draws
        u = following
        following = tl.load(uniforms + k + 1, mask=k + 1 < draws, other=0.0)

        # The occupied bucket of largest alpha is the unit in which the others are counted.
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
        place = tl.minimum(begin + (rest / unit).to(tl.int32), end - 1)

        i = tl.load(order + place, mask=active, other=0).to(tl.int32)
        # The loop over neighbours reads one ahead.
        tl.store(bucket + i, BUCKETS, mask=active)
        j = tl.load(neighbors + i * NEIGHBORS, mask=active, other=0)
        score = tl.load(bucket + j, mask=active, other=BUCKETS).to(tl.int32)

        # Up from bucket to bucket and out of the last: in each, the last member fills the gap. That
        # leaves alone the last members of the buckets above, so a chunk's are read before.
        gap = place
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

        for n in range(1, NEIGHBORS + 1):
            further = active & (n < NEIGHBORS)
            near = tl.load(neighbors + i * NEIGHBORS + n, mask=further, other=0)
            near_score = tl.load(bucket + near, mask=further, other=BUCKETS).to(tl.int32)
            masked = score < BUCKETS
            above = border + (score + 1) * batch
            end = tl.load(above, mask=masked, other=1) - 1
            hole = tl.load(slot + j, mask=masked, other=0)
            last = tl.load(order + end, mask=masked, other=0)
            tl.store(above, end, mask=masked)
            tl.store(bucket + j, score + 1, mask=masked)
            tl.store(order + hole, last, mask=masked)
            tl.store(slot + last, hole, mask=masked)
            tl.store(order + end, j, mask=masked)  # after the two: j and last may be one
            tl.store(slot + j, end, mask=masked)
            j = near
            score = near_score


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
    rows = tl.minimum(lanes, batch - first) * length
    for part in tl.static_range(3):
        found = _touch(_rows(state, first, batch, length)[part], rows, found, TOUCH)
    # Never stored, which the compiler does not know: it would leave out what nobody uses.
    tl.store(border + tl.arange(0, TOUCH), found, mask=lanes < 0)

    bucket, order, slot = _rows(state, b, batch, length)
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
            tails += (order + ends[c] - 1,)
            lasts += (tl.load(tails[c], mask=active).to(tl.int32),)

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

        # The masked neighbours move up one after the other. Which places they ask for is known
        # before, by counting in 4 bits a score how many had it, so all are read at once. None has
        # the last bucket's score, since i was masked beside it: eight scores are enough.
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
