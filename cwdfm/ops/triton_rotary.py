# mypy: ignore-errors
"""Triton kernel of rotary position embeddings.

Shapes: B batch, N length, H heads, d head width; B N rows of tokens.
"""

import triton
import triton.language as tl


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
    q,  # [B, N, H, d] with the given strides, contiguous heads
    k,  # same
    v,  # same, if COPY
    out_q,  # [B, N, H, d] with token stride `out_token` and head stride d
    out_k,  # same
    out_v,  # same, if COPY
    cos,  # [N, d], both halves equal
    sin,  # same
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
    GROUP: tl.constexpr,  # heads per program, which share cosines and sines
    GROUPS: tl.constexpr,
    INVERSE: tl.constexpr,  # rotate by the negative angles
    COPY: tl.constexpr,  # copy v to out_v
):
    """Rotate q and k for a tile of rows and a group of heads."""
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
    if COPY:
        v += (sequence * v_sequence + position * v_token)[:, None] + pair[None, :]
    for j in tl.static_range(GROUP):
        head = program % GROUPS * GROUP + j
        at = out + head * (2 * HALF)
        _copy(q + head * q_head, out_q + at, c, s, inside, HALF, True)
        _copy(k + head * k_head, out_k + at, c, s, inside, HALF, True)
        if COPY:
            _copy(v + head * v_head, out_v + at, c, s, inside, HALF, False)
