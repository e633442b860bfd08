# mypy: ignore-errors
"""Triton kernel of the draws from logits in memory: a program a row, which memory gives once.

Shapes: K rows, V tokens, in C blocks of BLOCK.
"""

import triton
import triton.language as tl


@triton.jit
def _first_above(mass, u):
    """`cwdfm.categorical.first_above` for one row of float64 masses, u up to 1; and the total."""
    index = tl.arange(0, mass.shape[0])
    cdf = tl.cumsum(mass, axis=0)
    total = tl.sum(mass, axis=0)
    target = u * total
    # Sums taken in a tree may fall by a rounding from cell to cell, or end at or below the target:
    # only cells with mass count, and the last of them if no other is found.
    last = tl.max(tl.where(mass > 0, index, 0), axis=0)
    cell = tl.min(tl.where((mass > 0) & (cdf > target), index, last), axis=0)
    here = index == cell
    inside = target - tl.sum(tl.where(here, cdf - mass, 0.0), axis=0)
    share = inside / tl.sum(tl.where(here, mass, 0.0), axis=0)
    return cell, tl.minimum(tl.maximum(share, 0.0), 1.0), total


# Compiled once for all widths and places of rows: chunks of a sampler need not begin alike.
@triton.jit(do_not_specialize=["stride", "vocab"], do_not_specialize_on_alignment=["logits", "u"])
def draw_rows(
    logits,  # [K, stride]
    u,  # [K] float64
    top,  # [K, BLOCKS] float32, room for each block's largest logit
    mass,  # [K, BLOCKS] float32, room for its sum of exp((l - top) / temperature)
    token,  # [K] int64, out; -1 where logits define no distribution
    stride,
    vocab,
    rate,  # log2(e) / temperature
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,  # C or more, a power of two
    TILE: tl.constexpr,  # blocks that are worked on at once, a power of two up to BLOCKS
    LINE: tl.constexpr,  # bytes of the widest load
    STAGES: tl.constexpr,
):
    """The first token of each row whose cumulative mass exceeds u * total."""
    row = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = logits.dtype.element_ty.primitive_bitwidth // 8
    vector: tl.constexpr = LINE // size
    # A row may begin anywhere. Places are counted from the last boundary of LINE bytes up to there,
    # so that every load is as wide as can be; the first `lead` places, and those from `end` on that
    # come with the last load, belong to neighbours.
    address = (logits + row * stride).to(tl.int64)
    lead = ((address % LINE) // size).to(tl.int32)
    at = tl.multiple_of((address // LINE * LINE).to(logits.dtype), LINE)
    end = lead + vocab
    full = tl.cdiv(end, vector) * vector
    inside = tl.arange(0, BLOCK)
    blocks = tl.cdiv(end, BLOCK)
    scratch = row * BLOCKS

    for first in tl.range(0, blocks, TILE, num_stages=STAGES):
        block = first + tl.arange(0, TILE)
        place = block[:, None] * BLOCK + inside[None, :]
        z = tl.load(at + place, mask=place < full, other=0.0).to(tl.float32)
        if (first == 0) | ((first + TILE) * BLOCK > end):
            z = tl.where((place >= lead) & (place < end), z, float("-inf"))
        largest = tl.max(z, axis=1)
        # A block of nothing but -inf has mass 0, not NaN. A NaN or +inf among the logits stays a
        # NaN in the sums, whatever the maximum makes of it.
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        tl.store(top + scratch + block, largest)
        sums = tl.sum(tl.exp2((z - shift[:, None]) * rate), axis=1)
        tl.store(mass + scratch + block, sums)

    tl.debug_barrier()  # what one thread wrote, others read
    block = tl.arange(0, BLOCKS)
    valid = block < blocks
    largest = tl.load(top + scratch + block, mask=valid, other=float("-inf")).to(tl.float64)
    gap = largest - tl.max(largest, axis=0)
    sums = tl.load(mass + scratch + block, mask=valid, other=0.0).to(tl.float64)
    cell, share, total = _first_above(sums * tl.exp2(gap * rate), tl.load(u + row))

    place = cell * BLOCK + inside
    valid = (place >= lead) & (place < end)
    z = tl.load(at + place, mask=valid, other=float("-inf")).to(tl.float32)
    e = tl.exp2((z - tl.max(z, axis=0)) * rate)
    chosen, _, _ = _first_above(e.to(tl.float64), share)
    tl.store(token + row, tl.where(total > 0, cell * BLOCK + chosen - lead, -1).to(tl.int64))
