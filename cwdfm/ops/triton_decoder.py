# mypy: ignore-errors
"""Triton kernels for the operations between a decoder's matrix products, and for logit statistics.

Each reads its inputs once. Shapes: R rows of tokens, D width, F width of the MLP, V ids.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def add_rms_norm(
    h, y, weight,  # [R, D], [R, D] or None, [D]
    out_h, out_x,  # [R, D]: h + y and its norm
    epsilon,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h' = h + y and x = h' / sqrt(mean h'^2 + epsilon) * weight, for one row."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    total = tl.load(h + at, mask=inside, other=0.0)
    if y is not None:
        added = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        total = (total.to(tl.float32) + added).to(out_h.dtype.element_ty)
        tl.store(out_h + at, total, mask=inside)
    wide = total.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / WIDTH + epsilon)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_x + at, (wide * factor * scale).to(out_x.dtype.element_ty), mask=inside)


@triton.jit
def silu_product(
    gate_up, out,  # [R, 2 F], [R, F]
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up for part of a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = gate_up + row * (2 * WIDTH) + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp2(-gate * LOG2E)) * up
    tl.store(out + row * WIDTH + column, product.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "columns"])
def rotate_and_store(
    qkv,  # [R, H + 2 G, d], R = B M: queries, keys and values of M tokens per sequence
    cos, sin,  # [R, d], both halves equal
    place,  # [M] int64: columns of the tokens
    queries,  # [R, H, d]
    keys, values,  # [B, G, N, d]
    tokens, columns,  # M, N
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr,  # H, G
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,  # d / 2, and a power of two >= d / 2
    GROUP: tl.constexpr,  # heads per program
):  # fmt: skip
    """Write rotated queries to `queries`, rotated keys and values to their columns of a cache."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    pair = tl.arange(0, BLOCK_HALF)
    width: tl.constexpr = 2 * HALF
    total: tl.constexpr = HEADS + 2 * KV_HEADS
    inside = (head < total)[:, None] & (pair < HALF)[None, :]
    at = qkv + (row * total + head)[:, None] * width + pair[None, :]
    first = tl.load(at, mask=inside, other=0.0)
    second = tl.load(at + HALF, mask=inside, other=0.0)
    c = tl.load(cos + row * width + pair, mask=pair < HALF, other=0.0)[None, :]
    s = tl.load(sin + row * width + pair, mask=pair < HALF, other=0.0)[None, :]
    x = first.to(tl.float32)
    y = second.to(tl.float32)
    rotated = (x * c - y * s).to(first.dtype)
    rotated_second = (y * c + x * s).to(first.dtype)

    here = inside & (head < HEADS)[:, None]
    target = queries + (row * HEADS + head)[:, None] * width + pair[None, :]
    tl.store(target, rotated, mask=here)
    tl.store(target + HALF, rotated_second, mask=here)
    column = tl.load(place + row % tokens)
    cached = (row // tokens * KV_HEADS * columns + column) * width
    head -= HEADS
    here = inside & ((head >= 0) & (head < KV_HEADS))[:, None]
    target = keys + cached + head[:, None] * columns.to(tl.int64) * width + pair[None, :]
    tl.store(target, rotated, mask=here)
    tl.store(target + HALF, rotated_second, mask=here)
    head -= KV_HEADS
    here = inside & (head >= 0)[:, None]
    target = values + cached + head[:, None] * columns.to(tl.int64) * width + pair[None, :]
    tl.store(target, first, mask=here)
    tl.store(target + HALF, second, mask=here)


@triton.jit(do_not_specialize=["count"])
def softcap(
    raw, logits,  # both with `count` elements
    cap, factor, count,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """logits = cap tanh(raw / cap), and raw = factor * logits."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    z = tl.load(raw + place, mask=inside, other=0.0).to(tl.float32) / cap
    capped = cap * (2.0 / (1.0 + tl.exp2(z * LOG2E * -2.0)) - 1.0)
    tl.store(logits + place, capped, mask=inside)
    tl.store(raw + place, (factor * capped).to(raw.dtype.element_ty), mask=inside)


@triton.jit
def summarize_row(
    logits,  # [R, V], rows `stride` apart
    entropy, confidence,  # [R]
    stride, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Entropy and largest probability of softmax(logits), for one row.

    Every lane accumulates its maximum a, the sum of e^(z - a) and the sum of e^(z - a) (z - a).
    """
    row = tl.program_id(0)
    at = logits + row.to(tl.int64) * stride
    place = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        here = start + place < vocab
        z = tl.load(at + start + place, mask=here, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, z)
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        gap = tl.where(top == float("-inf"), 0.0, top - shift)
        excess = tl.where(z == float("-inf"), 0.0, z - shift)
        old = tl.exp2((top - shift) * LOG2E)
        new = tl.exp2((z - shift) * LOG2E)
        moment = old * (moment + mass * gap) + new * excess
        mass = mass * old + new
        top = higher
    largest = tl.max(top, axis=0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    gap = tl.where(top == float("-inf"), 0.0, top - largest)
    share = tl.exp2((top - largest) * LOG2E)
    total = tl.sum(mass * share, axis=0)
    mean = tl.sum(share * (moment + mass * gap), axis=0) / total
    tl.store(entropy + row, tl.log(total) - mean)
    tl.store(confidence + row, 1.0 / total)
