# mypy: ignore-errors
"""Triton kernels of attention over short sequences: a program has a whole head of one sequence.

Shapes: B batch, N length, H heads, d head width. Queries and keys are read in halves of d / 2,
since positions rotate pairs (i, i + d/2): a pair is then two tiles at one place, and scores are the
sum of the halves' products. Tiles are [BLOCK, BLOCK_HALF], or twice as wide for whole heads; what
they have beyond N and d is zero.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rotated(source, c, s, inside, HALF: tl.constexpr):
    """The two halves of queries or keys, rotated, in their own dtype."""
    first = tl.load(source, mask=inside)
    second = tl.load(source + HALF, mask=inside)
    x = first.to(tl.float32)
    y = second.to(tl.float32)
    # Zeroed here and not by the loads, also because Triton would else bring all that is loaded into
    # the products' layouts before it rotates, cosines and sines for either: of 32 tokens in heads
    # of 64 that takes 252 registers, this 94. Where tiles are filled the choice costs nothing.
    turned_x = tl.where(inside, x * c - y * s, 0.0)
    turned_y = tl.where(inside, y * c + x * s, 0.0)
    return turned_x.to(first.dtype), turned_y.to(first.dtype)


@triton.jit
def _exponentials(q1, q2, k1, k2, place, here, WIDTH: tl.constexpr, FILLED, CAUSAL):
    """exp(q k^T / sqrt(d) - its largest) [queries, keys] and its sums [queries], float32."""
    scores = tl.dot(q2, tl.trans(k2), tl.dot(q1, tl.trans(k1)))
    if not FILLED:
        scores = tl.where(here[None, :], scores, float("-inf"))
    if CAUSAL:
        scores = tl.where(place[:, None] >= place[None, :], scores, float("-inf"))
    RATE: tl.constexpr = LOG2_E / WIDTH**0.5
    e = tl.exp2(scores * RATE - (tl.max(scores, 1) * RATE)[:, None])
    return e, tl.sum(e, 1)


@triton.jit
def _store_turned_back(target, x, y, c, s, inside, HALF: tl.constexpr):
    """Write the gradient of queries or keys from that of their rotated halves."""
    dtype = target.dtype.element_ty
    tl.store(target, (x * c + y * s).to(dtype), mask=inside)
    tl.store(target + HALF, (y * c - x * s).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["length"])
def attend(
    qkv,  # [B, N, 3, H, d]
    cos,  # [N, d], both halves the same, float32
    sin,  # likewise
    mixed,  # [B, N, H, d] out
    length,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,  # d / 2
    BLOCK: tl.constexpr,  # a power of two >= N, at least 16
    BLOCK_HALF: tl.constexpr,  # likewise, >= HALF
    FILLED: tl.constexpr,  # whether N is BLOCK
    CAUSAL: tl.constexpr,
):
    """softmax(q k^T / sqrt(d)) v with rotated q and k, for one head of one sequence."""
    WIDTH: tl.constexpr = 2 * HALF
    ROW: tl.constexpr = HEADS * WIDTH
    N = BLOCK if FILLED else length
    sequence = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    place = tl.arange(0, BLOCK)
    pair = tl.arange(0, BLOCK_HALF)
    column = tl.arange(0, 2 * BLOCK_HALF)
    here = place < N
    halves = here[:, None] & (pair < HALF)[None, :]
    whole = here[:, None] & (column < WIDTH)[None, :]
    half_at = place[:, None] * (3 * ROW) + pair[None, :]
    angle_at = place[:, None] * WIDTH + pair[None, :]

    q = qkv + sequence * N * (3 * ROW) + head * WIDTH
    c = tl.load(cos + angle_at, mask=halves)
    s = tl.load(sin + angle_at, mask=halves)
    q1, q2 = _rotated(q + half_at, c, s, halves, HALF)
    k1, k2 = _rotated(q + ROW + half_at, c, s, halves, HALF)
    v_at = q + 2 * ROW + place[:, None] * (3 * ROW) + column[None, :]
    v = tl.load(v_at, mask=whole, other=0.0)

    e, total = _exponentials(q1, q2, k1, k2, place, here, WIDTH, FILLED, CAUSAL)
    out = tl.dot(e.to(v.dtype), v) * (1.0 / total)[:, None]
    mixed += sequence * N * ROW + head * WIDTH
    tl.store(mixed + place[:, None] * ROW + column[None, :], out.to(v.dtype), mask=whole)


@triton.jit(do_not_specialize=["length"])
def attend_back(
    qkv,  # [B, N, 3, H, d]
    cos,  # [N, d], both halves the same, float32
    sin,  # likewise
    grad,  # [B, N, H, d]
    d_qkv,  # [B, N, 3, H, d] out
    length,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    FILLED: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The gradient of qkv from that of `attend`'s result, for one head of one sequence.

    With P the softmax and dO the result's gradient: dV = P^T dO, dP = dO V^T,
    dS = P (dP - rowsum(P dP)) / sqrt(d), dQ = dS K, dK = dS^T Q, the last two rotated back.
    """
    WIDTH: tl.constexpr = 2 * HALF
    ROW: tl.constexpr = HEADS * WIDTH
    N = BLOCK if FILLED else length
    sequence = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    place = tl.arange(0, BLOCK)
    pair = tl.arange(0, BLOCK_HALF)
    column = tl.arange(0, 2 * BLOCK_HALF)
    here = place < N
    halves = here[:, None] & (pair < HALF)[None, :]
    whole = here[:, None] & (column < WIDTH)[None, :]
    half_at = place[:, None] * (3 * ROW) + pair[None, :]
    whole_at = place[:, None] * (3 * ROW) + column[None, :]
    angle_at = place[:, None] * WIDTH + pair[None, :]

    q = qkv + sequence * N * (3 * ROW) + head * WIDTH
    c = tl.load(cos + angle_at, mask=halves)
    s = tl.load(sin + angle_at, mask=halves)
    q1, q2 = _rotated(q + half_at, c, s, halves, HALF)
    k1, k2 = _rotated(q + ROW + half_at, c, s, halves, HALF)
    v = tl.load(q + 2 * ROW + whole_at, mask=whole, other=0.0)
    grad += sequence * N * ROW + head * WIDTH
    do = tl.load(grad + place[:, None] * ROW + column[None, :], mask=whole, other=0.0)

    e, total = _exponentials(q1, q2, k1, k2, place, here, WIDTH, FILLED, CAUSAL)
    p = e * (1.0 / total)[:, None]
    dp = tl.dot(do, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * WIDTH**-0.5).to(v.dtype)
    dq = d_qkv + sequence * N * (3 * ROW) + head * WIDTH
    dv = tl.dot(tl.trans(p.to(v.dtype)), do)
    tl.store(dq + 2 * ROW + whole_at, dv.to(v.dtype), mask=whole)

    # Read again, from the cache: kept all along they would cost registers, and so occupancy.
    c = tl.load(cos + angle_at, mask=halves)
    s = tl.load(sin + angle_at, mask=halves)
    _store_turned_back(dq + half_at, tl.dot(ds, k1), tl.dot(ds, k2), c, s, halves, HALF)
    ds = tl.trans(ds)
    _store_turned_back(dq + ROW + half_at, tl.dot(ds, q1), tl.dot(ds, q2), c, s, halves, HALF)
