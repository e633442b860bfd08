# mypy: ignore-errors
"""Triton kernels of the linear head that keep logits in registers, tile by tile.

Shapes: K rows, D width, V data tokens, in C blocks of BLOCK_VOCAB.

The order of summation in a logit depends on BLOCK_WIDTH only, so the other tile sizes may depend on
the number of rows without changing a row's result.
"""

import triton
import triton.language as tl


@triton.jit
def _logits_tile(
    hidden,
    weight,
    bias,
    row,  # [BLOCK_ROWS] int64, all valid
    column,  # [BLOCK_VOCAB]; logits beyond the vocabulary are -inf
    vocab,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """The logits hidden[row] @ weight[column]^T + bias[column], float32."""
    rows: tl.constexpr = row.shape[0]
    columns: tl.constexpr = column.shape[0]
    # Clamped rather than masked: unconditional loads pipeline best.
    token = tl.minimum(column, vocab - 1).to(tl.int64)
    inner = tl.arange(0, BLOCK_WIDTH)
    hidden_at = hidden + row[:, None] * WIDTH + inner[None, :]
    weight_at = weight + token[None, :] * WIDTH + inner[:, None]
    logits = tl.zeros((rows, columns), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK_WIDTH):
        if WIDTH % BLOCK_WIDTH == 0:
            h = tl.load(hidden_at + start)
            w = tl.load(weight_at + start)
        else:
            inside = start + inner < WIDTH
            h = tl.load(hidden_at + start, mask=inside[None, :], other=0.0)
            w = tl.load(weight_at + start, mask=inside[:, None], other=0.0)
        logits = tl.dot(h, w, logits, input_precision="ieee")
    if HAS_BIAS:
        logits += tl.load(bias + token).to(tl.float32)[None, :]
    return tl.where((column < vocab)[None, :], logits, float("-inf"))


@triton.jit(do_not_specialize=["rows"])
def head_statistics(
    hidden,  # [K, D]
    weight,  # [>= V, D]
    bias,  # [>= V]
    top,  # [C, K] output: the block's largest logit
    mass,  # [C, K] output: sum of exp((l - top) / temperature)
    total,  # [C, K] output, if SCORES: sum of exp(l - top)
    slope,  # [C, K] output, if SCORES: sum of (l - top) exp(l - top)
    rows,
    vocab,
    rate,  # 1 / temperature
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TEMPERED: tl.constexpr,
    SCORES: tl.constexpr,
):
    """The contribution of each block of the vocabulary to each row's softmax."""
    # Tiles are ordered in groups of GROUP row tiles, so that concurrent programs share rows and
    # weights in the L2 cache.
    program = tl.program_id(0)
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    blocks = tl.cdiv(vocab, BLOCK_VOCAB)
    first_tile = program // (GROUP * blocks) * GROUP
    tiles = tl.minimum(row_tiles - first_tile, GROUP)
    inside = program % (GROUP * blocks)
    tile, block = first_tile + inside % tiles, inside // tiles

    row = (tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    column = block * BLOCK_VOCAB + tl.arange(0, BLOCK_VOCAB)
    valid = row < rows
    logits = _logits_tile(
        hidden,
        weight,
        bias,
        tl.minimum(row, rows - 1),
        column,
        vocab,
        WIDTH,
        BLOCK_WIDTH,
        HAS_BIAS,
    )
    largest = tl.max(logits, axis=1)
    # A block of only -inf has mass 0, not NaN. A NaN or +inf among the logits becomes a NaN in the
    # sums, whatever the maximum is.
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    gap = logits - shift[:, None]
    out = block.to(tl.int64) * rows + row
    tl.store(top + out, largest, mask=valid)
    if TEMPERED:
        tl.store(mass + out, tl.sum(tl.exp(gap * rate), axis=1), mask=valid)
    else:
        tl.store(mass + out, tl.sum(tl.exp(gap), axis=1), mask=valid)
    if SCORES:
        e = tl.exp(gap)
        tl.store(total + out, tl.sum(e, axis=1), mask=valid)
        finite = tl.where(e > 0, gap, 0.0)  # avoids 0 * inf
        tl.store(slope + out, tl.sum(e * finite, axis=1), mask=valid)


@triton.jit(do_not_specialize=["rows"])
def block_masses(
    hidden,  # [K, D]
    weight,  # [>= V, D]
    bias,  # [>= V]
    count,  # [C] int32: number of rows in the block
    members,  # [C, K] int32: these rows
    out,  # [K, BLOCK_VOCAB]: exp((l - top) / temperature) of the row's block
    rows,
    vocab,
    rate,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,  # C or more, a power of two
    HAS_BIAS: tl.constexpr,
):
    """The masses inside each row's block, for tiles of at most BLOCK_ROWS rows that share a block.

    Only the device knows the number of tiles, so the grid has the maximum number of programs, and
    the superfluous ones return immediately.
    """
    program = tl.program_id(0)
    index = tl.arange(0, BLOCKS)
    counts = tl.load(count + index, mask=index < tl.cdiv(vocab, BLOCK_VOCAB), other=0)
    tiles = tl.cdiv(counts, BLOCK_ROWS)
    if program < tl.sum(tiles, axis=0):
        block = tl.sum((tl.cumsum(tiles, axis=0) <= program).to(tl.int32), axis=0)
        tile = program - tl.sum(tl.where(index < block, tiles, 0), axis=0)
        place = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        valid = place < tl.sum(tl.where(index == block, counts, 0), axis=0)
        row = tl.load(members + block.to(tl.int64) * rows + place, mask=valid, other=0)
        row = row.to(tl.int64)
        inside = tl.arange(0, BLOCK_VOCAB)
        column = block * BLOCK_VOCAB + inside
        logits = _logits_tile(
            hidden, weight, bias, row, column, vocab, WIDTH, BLOCK_WIDTH, HAS_BIAS
        )
        mass = tl.exp((logits - tl.max(logits, axis=1)[:, None]) * rate)
        tl.store(out + row[:, None] * BLOCK_VOCAB + inside[None, :], mass, mask=valid[:, None])
