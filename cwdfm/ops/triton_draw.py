# mypy: ignore-errors
"""Triton kernels for categorical draws.

`draw_rows` draws from logits in memory. The others draw from the linear head: `head_statistics` and
`block_masses` compute logits in registers, tile by tile, and `draw_blocks` and `draw_tokens` draw
from their results. The order of summation in a logit depends on BLOCK_WIDTH only, so the other tile
sizes may depend on the number of rows without changing the result of a row.

Shapes: K rows, V tokens, in C blocks of BLOCK or BLOCK_VOCAB; D width.
"""

import triton
import triton.language as tl


@triton.jit
def _first_above(mass, u):
    """`categorical.first_above` for a row of float64 masses, with u <= 1, and the total."""
    index = tl.arange(0, mass.shape[0])
    cdf = tl.cumsum(mass, axis=0)
    total = tl.sum(mass, axis=0)
    target = u * total
    # Rounding in the parallel scan may make the sums decrease between cells, or end at or below the
    # target. Therefore only cells with mass are candidates, and the last of them is the fallback.
    last = tl.max(tl.where(mass > 0, index, 0), axis=0)
    cell = tl.min(tl.where((mass > 0) & (cdf > target), index, last), axis=0)
    selected = index == cell
    rest = target - tl.sum(tl.where(selected, cdf - mass, 0.0), axis=0)
    share = rest / tl.sum(tl.where(selected, mass, 0.0), axis=0)
    return cell, tl.minimum(tl.maximum(share, 0.0), 1.0), total


# Compiled once for all widths and alignments of rows.
@triton.jit(do_not_specialize=["stride", "vocab"], do_not_specialize_on_alignment=["logits", "u"])
def draw_rows(
    logits,  # [K, stride]
    u,  # [K] float64
    top, mass,  # [K, BLOCKS] float32 scratch: max l and sum exp((l - top) / temperature) of blocks
    token,  # [K] int64 output; -1 where logits do not define a distribution
    stride, vocab,
    rate,  # log2(e) / temperature
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,  # C or more, a power of two
    TILE: tl.constexpr,  # blocks processed at once, a power of two up to BLOCKS
    LINE: tl.constexpr,  # bytes of the widest load
    STAGES: tl.constexpr,
):  # fmt: skip
    """The first token of each row whose cumulative mass exceeds u * total."""
    row = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = logits.dtype.element_ty.primitive_bitwidth // 8
    vector: tl.constexpr = LINE // size
    # A row may start anywhere. Offsets are counted from the preceding LINE-byte boundary, so that
    # every load has full width. The first `lead` elements, and those from `end` on, belong to
    # neighboring rows.
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
        offset = block[:, None] * BLOCK + inside[None, :]
        z = tl.load(at + offset, mask=offset < full, other=0.0).to(tl.float32)
        if (first == 0) | ((first + TILE) * BLOCK > end):
            z = tl.where((offset >= lead) & (offset < end), z, float("-inf"))
        largest = tl.max(z, axis=1)
        # A block that is all -inf has mass 0, not NaN. A NaN or +inf among the logits makes the sum
        # NaN, regardless of the maximum.
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        tl.store(top + scratch + block, largest)
        sums = tl.sum(tl.exp2((z - shift[:, None]) * rate), axis=1)
        tl.store(mass + scratch + block, sums)

    tl.debug_barrier()  # threads read what other threads have written
    block = tl.arange(0, BLOCKS)
    valid = block < blocks
    largest = tl.load(top + scratch + block, mask=valid, other=float("-inf")).to(tl.float64)
    gap = largest - tl.max(largest, axis=0)
    sums = tl.load(mass + scratch + block, mask=valid, other=0.0).to(tl.float64)
    cell, share, total = _first_above(sums * tl.exp2(gap * rate), tl.load(u + row))

    offset = cell * BLOCK + inside
    valid = (offset >= lead) & (offset < end)
    z = tl.load(at + offset, mask=valid, other=float("-inf")).to(tl.float32)
    e = tl.exp2((z - tl.max(z, axis=0)) * rate)
    chosen, _, _ = _first_above(e.to(tl.float64), share)
    tl.store(token + row, tl.where(total > 0, cell * BLOCK + chosen - lead, -1).to(tl.int64))


@triton.jit(do_not_specialize=["rows", "blocks"], do_not_specialize_on_alignment=["u"])
def draw_blocks(
    top, mass, total, slope,  # [C, K]: see `head_statistics`
    u,  # [K] float64
    count,  # [C] int32 zeros; output: number of rows whose draw falls into the block
    members,  # [C, K] int32 output: these rows, in any order
    token,  # [K] int64 output: the first token of the row's block
    share,  # [K] float64 output: relative position of the draw inside the block, <= 1
    bad,  # [K] bool output: whether the logits do not define a distribution
    entropy, confidence,  # [K] float64 outputs, or both None
    rows, blocks,
    rate,  # 1 / temperature
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,  # C or more, a power of two
):  # fmt: skip
    """The first block of each row whose cumulative mass exceeds u * total."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    valid = block < blocks
    at = block.to(tl.int64) * rows + row
    largest = tl.load(top + at, mask=valid, other=float("-inf")).to(tl.float64)
    sums = tl.load(mass + at, mask=valid, other=0.0).to(tl.float64)
    highest = tl.max(largest, axis=0)
    gap = largest - tl.where(highest == float("-inf"), 0.0, highest)
    cell, inside, z = _first_above(sums * tl.exp(gap * rate), tl.load(u + row))
    # A NaN or +inf among the logits makes the sums NaN, and a row that is all -inf has no mass.
    # Such rows draw from the first block, so that later kernels need no special case.
    good = z > 0
    cell = tl.where(good, cell, 0)
    tl.store(bad + row, ~good)
    tl.store(share + row, tl.where(good, inside, 0.0))
    tl.store(token + row, cell.to(tl.int64) * BLOCK)
    offset = tl.atomic_add(count + cell, 1, sem="relaxed")
    tl.store(members + cell.to(tl.int64) * rows + offset, row.to(tl.int32))
    if entropy is not None:
        # H = log Z - sum p (l - highest) and max p = 1 / Z, with Z = sum exp(l - highest).
        part = tl.exp(gap)
        totals = tl.load(total + at, mask=valid, other=0.0).to(tl.float64)
        slopes = tl.load(slope + at, mask=valid, other=0.0).to(tl.float64)
        z = tl.sum(totals * part, axis=0)
        finite = tl.where(gap == float("-inf"), 0.0, gap)  # avoids 0 * inf
        energy = tl.sum((slopes + totals * finite) * part, axis=0) / z
        tl.store(entropy + row, tl.maximum(tl.log(z) - energy, 0.0))
        tl.store(confidence + row, 1 / z)


@triton.jit
def draw_tokens(
    mass,  # [K, BLOCK]: masses of the tokens of the row's block
    share,  # [K] float64: relative position of the draw
    token,  # [K] int64: the block's first token; output: the drawn token
    BLOCK: tl.constexpr,
):
    """The first token of each row's block whose cumulative mass exceeds share * total."""
    row = tl.program_id(0).to(tl.int64)
    masses = tl.load(mass + row * BLOCK + tl.arange(0, BLOCK)).to(tl.float64)
    chosen, _, _ = _first_above(masses, tl.load(share + row))
    tl.store(token + row, tl.load(token + row) + chosen)


@triton.jit
def _logits_tile(
    hidden, weight, bias,
    row,  # [BLOCK_ROWS] int64, all valid
    column,  # [BLOCK_VOCAB]; logits beyond the vocabulary are -inf
    vocab,
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """The logits hidden[row] @ weight[column]^T + bias[column], float32."""
    rows: tl.constexpr = row.shape[0]
    columns: tl.constexpr = column.shape[0]
    # Clamped rather than masked, because unconditional loads pipeline best.
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
    if bias is not None:
        logits += tl.load(bias + token).to(tl.float32)[None, :]
    return tl.where((column < vocab)[None, :], logits, float("-inf"))


@triton.jit(do_not_specialize=["rows"])
def head_statistics(
    hidden,  # [K, D]
    weight, bias,  # [>= V, D] and [>= V]; bias may be None
    top,  # [C, K] output: the block's largest logit
    mass,  # [C, K] output: sum of exp((l - top) / temperature)
    total, slope,  # [C, K] outputs or None: sums of exp(l - top) and of (l - top) exp(l - top)
    rows, vocab,
    rate,  # 1 / temperature
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    TEMPERED: tl.constexpr,
):  # fmt: skip
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
    known = tl.minimum(row, rows - 1)
    logits = _logits_tile(hidden, weight, bias, known, column, vocab, WIDTH, BLOCK_WIDTH)
    largest = tl.max(logits, axis=1)
    # A block that is all -inf has mass 0, not NaN. A NaN or +inf among the logits makes the sums
    # NaN, regardless of the maximum.
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    gap = logits - shift[:, None]
    out = block.to(tl.int64) * rows + row
    tl.store(top + out, largest, mask=valid)
    tl.store(mass + out, tl.sum(tl.exp(gap * rate if TEMPERED else gap), axis=1), mask=valid)
    if total is not None:
        e = tl.exp(gap)
        tl.store(total + out, tl.sum(e, axis=1), mask=valid)
        finite = tl.where(e > 0, gap, 0.0)  # avoids 0 * inf
        tl.store(slope + out, tl.sum(e * finite, axis=1), mask=valid)


@triton.jit(do_not_specialize=["rows"])
def block_masses(
    hidden, weight, bias,  # as in `head_statistics`
    count, members,  # [C] and [C, K] int32: the number of rows in the block, and these rows
    out,  # [K, BLOCK_VOCAB]: exp((l - top) / temperature) of the row's block
    rows, vocab,
    rate,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,  # C or more, a power of two
):  # fmt: skip
    """The masses within each row's block, for tiles of at most BLOCK_ROWS rows that share a block.

    Only the device knows the number of tiles, so the grid has the maximum number of programs, and
    superfluous ones return immediately.
    """
    program = tl.program_id(0)
    index = tl.arange(0, BLOCKS)
    counts = tl.load(count + index, mask=index < tl.cdiv(vocab, BLOCK_VOCAB), other=0)
    tiles = tl.cdiv(counts, BLOCK_ROWS)
    if program < tl.sum(tiles, axis=0):
        block = tl.sum((tl.cumsum(tiles, axis=0) <= program).to(tl.int32), axis=0)
        tile = program - tl.sum(tl.where(index < block, tiles, 0), axis=0)
        offset = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        valid = offset < tl.sum(tl.where(index == block, counts, 0), axis=0)
        row = tl.load(members + block.to(tl.int64) * rows + offset, mask=valid, other=0)
        row = row.to(tl.int64)
        inside = tl.arange(0, BLOCK_VOCAB)
        column = block * BLOCK_VOCAB + inside
        logits = _logits_tile(hidden, weight, bias, row, column, vocab, WIDTH, BLOCK_WIDTH)
        mass = tl.exp((logits - tl.max(logits, axis=1)[:, None]) * rate)
        tl.store(out + row[:, None] * BLOCK_VOCAB + inside[None, :], mass, mask=valid[:, None])
