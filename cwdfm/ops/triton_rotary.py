# mypy: ignore-errors
"""Triton kernel of rotary positions: queries, keys and values move once, and turn on the way.

Shapes: B batch, N length, H heads, d head width; B N rows of tokens.
"""

import triton
import triton.language as tl


@triton.jit
def _move(source, target, cos, sin, inside, HALF: tl.constexpr, TURN: tl.constexpr):
    """Write the pairs (source[i], source[i + HALF]), rotated if TURN, to target."""
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    if TURN:
        x = first.to(tl.float32)
        y = second.to(tl.float32)
        first = (x * cos - y * sin).to(first.dtype)
        second = (y * cos + x * sin).to(second.dtype)
    tl.store(target, first, mask=inside)
    tl.store(target + HALF, second, mask=inside)


@triton.jit(do_not_specialize=["rows", "length"])
def rotate_parts(
    q,  # [B, N, H, d], strides as given, 1 within a head
    k,  # likewise
    v,  # likewise, if COPY
    out_q,  # [B, N, H, d]: tokens `out_token` apart, heads d apart
    out_k,  # likewise
    out_v,  # likewise, if COPY
    cos,  # [N, d], both halves the same
    sin,  # likewise
    q_sequence,
    q_token,
    q_head,
    k_sequence,
    k_token,
    k_head,
    v_sequence,
    v_token,
    v_head,
    out_token,
    rows,
    length,
    HALF: tl.constexpr,  # d / 2
    BLOCK_HALF: tl.constexpr,  # a power of two >= HALF
    BLOCK_ROWS: tl.constexpr,
    GROUP: tl.constexpr,  # heads that a program works on, which share cosines and sines
    GROUPS: tl.constexpr,
    BACK: tl.constexpr,  # whether to rotate by the opposite angles
    COPY: tl.constexpr,  # whether to copy v to out_v
):
    """Rotate q and k by their places' angles, for some rows and a group of heads."""
    program = tl.program_id(0)
    row = program // GROUPS * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    pair = tl.arange(0, BLOCK_HALF)
    inside = (row < rows)[:, None] & (pair < HALF)[None, :]
    place = row % length
    angle_at = place[:, None] * (2 * HALF) + pair[None, :]
    c = tl.load(cos + angle_at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle_at, mask=inside, other=0.0).to(tl.float32)
    if BACK:
        s = -s
    sequence = (row // length).to(tl.int64)
    place = place.to(tl.int64)
    q += (sequence * q_sequence + place * q_token)[:, None] + pair[None, :]
    k += (sequence * k_sequence + place * k_token)[:, None] + pair[None, :]
    out = (row.to(tl.int64) * out_token)[:, None] + pair[None, :]
    if COPY:
        v += (sequence * v_sequence + place * v_token)[:, None] + pair[None, :]
    for j in tl.static_range(GROUP):
        head = program % GROUPS * GROUP + j
        at = out + head * (2 * HALF)
        _move(q + head * q_head, out_q + at, c, s, inside, HALF, True)
        _move(k + head * k_head, out_k + at, c, s, inside, HALF, True)
        if COPY:
            _move(v + head * v_head, out_v + at, c, s, inside, HALF, False)
