# mypy: ignore-errors
"""Triton kernel for counter-based uniforms, bitwise equal to `cwdfm.ops.random.uniform`."""

import triton
import triton.language as tl

MASK32 = tl.constexpr(0xFFFFFFFF)
UNIT = tl.constexpr(2.0**-53)


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 in int64, like `cwdfm.ops.random.philox`.

    Triton's own version uses 32-bit words, which cannot hold the counter of an index >= 2^56.
    """
    for _ in tl.static_range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = ((p1 >> 32) & MASK32) ^ c1 ^ k0
        c1 = p1 & MASK32
        c2 = ((p0 >> 32) & MASK32) ^ c3 ^ k1
        c3 = p0 & MASK32
        k0 = (k0 + 0x9E3779B9) & MASK32
        k1 = (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


@triton.jit
def draw(index, step, position, seed_low, seed_high, purpose):
    """Uniform draws, float64, from int64 counters."""
    high, low, _, _ = philox(
        position & MASK32,
        step,
        index & MASK32,
        ((index >> 32) << 8) | purpose,
        seed_low.to(tl.int64) & MASK32,
        seed_high.to(tl.int64) & MASK32,
    )
    bits = ((high >> 5) << 26) | (low >> 6)
    return bits.to(tl.float64) * UNIT


# Only `out` is specialized, so that new values and shapes do not trigger compilation.
@triton.jit(do_not_specialize=range(1, 16))
def uniform(
    out,  # [R, C] float64, contiguous
    index, steps, position,  # [R, C] int64, any strides; if steps is None, `step` applies to all
    total, columns,  # R * C and C
    index_row, index_column,  # strides
    steps_row, steps_column,
    position_row, position_column,
    seed_low, seed_high, step,  # int32 with the bits of 32-bit words
    purpose,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out = uniform(seed, purpose, index, step, position), element by element."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < total
    row = offset // columns
    column = offset - row * columns
    i = tl.load(index + row * index_row + column * index_column, mask=inside, other=0)
    p = tl.load(position + row * position_row + column * position_column, mask=inside, other=0)
    if steps is not None:
        s = tl.load(steps + row * steps_row + column * steps_column, mask=inside, other=0)
    else:
        s = step.to(tl.int64) & MASK32
    tl.store(out + offset, draw(i, s, p, seed_low, seed_high, purpose), mask=inside)
