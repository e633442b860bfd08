# mypy: ignore-errors
"""Triton kernels for rotary embeddings, and for attention over short sequences fused with them.

Shapes: B batch, N length, H heads, d head width; B N rows of tokens.

Attention runs one program per head of a sequence. Queries and keys are read in two halves of width
d / 2, because rotary embeddings rotate the pairs (i, i + d/2); scores are the sum of the products
of the halves. Tiles are [BLOCK, BLOCK_HALF], or twice as wide for entire heads, zero-padded past N
and d.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _copy(source, target, cos, sin, inside, HALF: tl.constexpr, ROTATE: tl.constexpr):
    """Copy the pairs (source[i], source[i + HALF]) to target, rotated if ROTATE."""
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    if ROTATE:
        x = first.to(tl.float32)
        y = second.to(tl.float32)
        first = (x * cos - y * sin).to(first.dtype)
        second = (y * cos + x * sin).to(second.dtype)
    tl.store(target, first, mask=inside)
    tl.store(target + HALF, second, mask=inside)


@triton.jit(do_not_specialize=["rows", "length"])
def rotate_parts(
    q, k, v,  # [B, N, H, d] with the strides below, contiguous heads; v may be None
    out_q, out_k, out_v,  # [B, N, H, d] with token stride `out_token` and head stride d
    cos, sin,  # [N, d], both halves equal
    q_sequence, q_token, q_head,  # strides
    k_sequence, k_token, k_head,
    v_sequence, v_token, v_head,
    out_token,
    rows, length,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,  # d / 2, and a power of two >= d / 2
    BLOCK_ROWS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,  # heads per program, which share cosines and sines
    INVERSE: tl.constexpr,  # rotate by the negative angles
):  # fmt: skip
    """Rotate q and k, and copy v, for a tile of rows and a group of heads."""
    program = tl.program_id(0)
    row = program // GROUPS * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    pair = tl.arange(0, BLOCK_HALF)
    inside = (row < rows)[:, None] & (pair < HALF)[None, :]
    position = row % length
    angle_at = position[:, None] * (2 * HALF) + pair[None, :]
    c = tl.load(cos + angle_at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle_at, mask=inside, other=0.0).to(tl.float32)
    if INVERSE:
        s = -s
    sequence = (row // length).to(tl.int64)
    position = position.to(tl.int64)
    q += (sequence * q_sequence + position * q_token)[:, None] + pair[None, :]
    k += (sequence * k_sequence + position * k_token)[:, None] + pair[None, :]
    out = (row.to(tl.int64) * out_token)[:, None] + pair[None, :]
    if v is not None:
        v += (sequence * v_sequence + position * v_token)[:, None] + pair[None, :]
    for j in tl.static_range(GROUP):
        head = program % GROUPS * GROUP + j
        at = out + head * (2 * HALF)
        _copy(q + head * q_head, out_q + at, c, s, inside, HALF, True)
        _copy(k + head * k_head, out_k + at, c, s, inside, HALF, True)
        if v is not None:
            _copy(v + head * v_head, out_v + at, c, s, inside, HALF, False)


@triton.jit
def _rotated(source, c, s, inside, HALF: tl.constexpr):
    """The two halves of queries or keys, rotated, in their own dtype."""
    first = tl.load(source, mask=inside)
    second = tl.load(source + HALF, mask=inside)
    x = first.to(tl.float32)
    y = second.to(tl.float32)
    # Zeroed valid rather than by the loads. Otherwise Triton converts everything it loads to the
    # layouts of the products before rotating, which takes 252 registers instead of 94 for 32 tokens
    # and head width 64. If tiles are full, this costs nothing.
    rotated_x = tl.where(inside, x * c - y * s, 0.0)
    rotated_y = tl.where(inside, y * c + x * s, 0.0)
    return rotated_x.to(first.dtype), rotated_y.to(first.dtype)


@triton.jit
def _exponentials(q1, q2, k1, k2, index, valid, WIDTH: tl.constexpr, FULL, CAUSAL):
    """exp(q k^T / sqrt(d) - row maximum) [queries, keys] and its row sums [queries], in float32."""
    scores = tl.dot(q2, tl.trans(k2), tl.dot(q1, tl.trans(k1)))
    if not FULL:
        scores = tl.where(valid[None, :], scores, float("-inf"))
    if CAUSAL:
        scores = tl.where(index[:, None] >= index[None, :], scores, float("-inf"))
    RATE: tl.constexpr = LOG2_E / WIDTH**0.5
    e = tl.exp2(scores * RATE - (tl.max(scores, 1) * RATE)[:, None])
    return e, tl.sum(e, 1)


@triton.jit
def _store_unrotated(target, x, y, c, s, inside, HALF: tl.constexpr):
    """Write the gradient of queries or keys from that of their rotated halves."""
    dtype = target.dtype.element_ty
    tl.store(target, (x * c + y * s).to(dtype), mask=inside)
    tl.store(target + HALF, (y * c - x * s).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["length"])
def attend(
    qkv,  # [B, N, 3, H, d]
    cos, sin,  # [N, d], both halves equal, float32
    grad,  # [B, N, H, d]: the gradient of the attention output; None to compute that output
    out,  # [B, N, H, d] output; [B, N, 3, H, d] with `grad`
    length,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,  # d / 2
    BLOCK: tl.constexpr, BLOCK_HALF: tl.constexpr,  # powers of two >= N and HALF, at least 16
    FULL: tl.constexpr,  # whether N == BLOCK
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """softmax(q k^T / sqrt(d)) v with rotated q and k, or its gradient, for one head of a sequence.

    With P the softmax and dO the gradient of the output: dV = P^T dO, dP = dO V^T, dS = P (dP -
    rowsum(P dP)) / sqrt(d), dQ = dS K, dK = dS^T Q, the last two rotated by the negative angles.
    """
    WIDTH: tl.constexpr = 2 * HALF
    ROW: tl.constexpr = HEADS * WIDTH
    N = BLOCK if FULL else length
    sequence = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    index = tl.arange(0, BLOCK)
    pair = tl.arange(0, BLOCK_HALF)
    column = tl.arange(0, 2 * BLOCK_HALF)
    valid = index < N
    halves = valid[:, None] & (pair < HALF)[None, :]
    inside = valid[:, None] & (column < WIDTH)[None, :]
    half_at = index[:, None] * (3 * ROW) + pair[None, :]
    full_at = index[:, None] * (3 * ROW) + column[None, :]
    single_at = index[:, None] * ROW + column[None, :]
    angle_at = index[:, None] * WIDTH + pair[None, :]

    q = qkv + sequence * N * (3 * ROW) + head * WIDTH
    c = tl.load(cos + angle_at, mask=halves)
    s = tl.load(sin + angle_at, mask=halves)
    q1, q2 = _rotated(q + half_at, c, s, halves, HALF)
    k1, k2 = _rotated(q + ROW + half_at, c, s, halves, HALF)
    v = tl.load(q + 2 * ROW + full_at, mask=inside, other=0.0)
    if grad is not None:
        grad += sequence * N * ROW + head * WIDTH
        do = tl.load(grad + single_at, mask=inside, other=0.0)

    e, total = _exponentials(q1, q2, k1, k2, index, valid, WIDTH, FULL, CAUSAL)
    if grad is None:
        result = tl.dot(e.to(v.dtype), v) * (1.0 / total)[:, None]
        out += sequence * N * ROW + head * WIDTH
        tl.store(out + single_at, result.to(v.dtype), mask=inside)
    else:
        p = e * (1.0 / total)[:, None]
        dp = tl.dot(do, tl.trans(v))
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * WIDTH**-0.5).to(v.dtype)
        dq = out + sequence * N * (3 * ROW) + head * WIDTH
        dv = tl.dot(tl.trans(p.to(v.dtype)), do)
        tl.store(dq + 2 * ROW + full_at, dv.to(v.dtype), mask=inside)
        # Reloaded from the cache: keeping them in registers would reduce occupancy.
        c = tl.load(cos + angle_at, mask=halves)
        s = tl.load(sin + angle_at, mask=halves)
        _store_unrotated(dq + half_at, tl.dot(ds, k1), tl.dot(ds, k2), c, s, halves, HALF)
        ds = tl.trans(ds)
        _store_unrotated(dq + ROW + half_at, tl.dot(ds, q1), tl.dot(ds, q2), c, s, halves, HALF)
