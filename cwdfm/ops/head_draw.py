"""Draws from softmax(hidden @ W^T + b) that never store the logits.

The law is `sample_categorical`'s: u * total is looked up among the cumulative masses in two levels,
first among blocks of the vocabulary, then inside one, both in float64 with one counted uniform a
draw. A first kernel computes all logits, in registers, and keeps of each block its maximum and its
sum of exponentials. A second finds the block that each row's draw falls into, and lists the rows of
each block. A third computes the logits of a block for the rows that fell into it, a fourth looks
the token up. So tokens are those of the plain path, up to the rounding of the logits. The logits of
a row do not depend on the rows beside it, nor on how many there are.

Shapes: K rows, D width, V data tokens, C blocks of W = BLOCK tokens.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cwdfm.ops.dispatch import on_tensor_device
from cwdfm.ops.host_copy import check_rows
from cwdfm.ops.precision import CASTS, product_dtype

BLOCK = 256
GROUP = 16


class Tile(NamedTuple):
    """How a kernel cuts its work: rows and width of a tile, warps, stages of its pipeline."""

    rows: int
    width: int
    warps: int
    stages: int


class Falls(NamedTuple):
    """Where draws fall among the blocks: see `draw_blocks`."""

    counts: Tensor  # [C] int32: rows whose block it is
    members: Tensor  # [C, K] int32: those rows, in any order
    first: Tensor  # [K] int64: the first token of the row's block
    share: Tensor  # [K] float64: how far into the block
    bad: Tensor  # [K] bool: no distribution; such rows fall into the first block
    entropy: Tensor | None  # [K] float64
    confidence: Tensor | None  # [K] float64


class DrawnTokens(NamedTuple):
    """Tokens, and what weights may want to know of the distributions they come from."""

    tokens: Tensor  # [K] int64
    entropy: Tensor | None  # [K] float64, in nats, at temperature 1
    confidence: Tensor | None  # [K] float64: the largest probability, at temperature 1


def statistics_tile(rows: int, dtype: torch.dtype) -> Tile:
    """The first kernel's tile. With few rows, narrow ones: the work is to read the weights."""
    if dtype == torch.float32:
        return Tile(rows=32, width=16, warps=8, stages=2)
    if rows <= 2048:
        return Tile(rows=64, width=64, warps=4, stages=4)
    return Tile(rows=128, width=64, warps=8, stages=3)


def block_tile(dtype: torch.dtype) -> Tile:
    """The third kernel's tile: rows that share a block are few."""
    if dtype == torch.float32:
        return Tile(rows=16, width=16, warps=8, stages=2)
    return Tile(rows=64, width=64, warps=8, stages=3)


def head_draw(
    hidden_KD: Tensor,
    readout: nn.Linear,
    u_K: Tensor,
    vocab: int,
    *,
    temperature: float = 1.0,
    scores: bool = False,
) -> DrawnTokens:
    """Tokens of softmax(readout(hidden) / temperature) over the first `vocab` ids.

    `u_K` are float64 uniforms in [0, 1), K > 0. With `scores` entropy and confidence come along.
    """
    dtype = product_dtype(hidden_KD)
    head = (hidden_KD.to(dtype).contiguous(), CASTS.get(readout.weight, dtype), readout.bias)
    found = statistics(*head, vocab, temperature, scores)
    falls = blocks_of(*found, u_K, temperature)
    # The host learns of rows that are no numbers when it learns of it: to wait here would leave the
    # GPU without work.
    check_rows(falls.bad)
    mass_KW = masses_inside(*head, falls.counts, falls.members, vocab, temperature)
    return DrawnTokens(
        tokens_of(mass_KW, falls.share, falls.first), falls.entropy, falls.confidence
    )


@on_tensor_device
def statistics(
    hidden_KD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    vocab: int,
    temperature: float,
    scores: bool,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What `head_statistics` finds, each [C, K] float32; the last two only with `scores`."""
    from cwdfm.ops.triton_head import head_statistics

    rows, width = hidden_KD.shape
    tile = tile or statistics_tile(rows, hidden_KD.dtype)
    blocks = -(-vocab // BLOCK)
    top, mass = (_empty(hidden_KD, blocks, rows) for _ in range(2))
    total, slope = (_empty(hidden_KD, blocks, rows) if scores else None for _ in range(2))
    head_statistics[(-(-rows // tile.rows) * blocks,)](
        hidden_KD,
        weight_VD,
        weight_VD if bias_V is None else bias_V,
        top,
        mass,
        mass if total is None else total,
        mass if slope is None else slope,
        rows,
        vocab,
        1 / temperature,
        WIDTH=width,
        BLOCK_ROWS=tile.rows,
        BLOCK_VOCAB=BLOCK,
        BLOCK_WIDTH=tile.width,
        GROUP=GROUP,
        HAS_BIAS=bias_V is not None,
        TEMPERED=temperature != 1,
        SCORES=scores,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return top, mass, total, slope


@on_tensor_device
def blocks_of(
    top_CK: Tensor,
    mass_CK: Tensor,
    total_CK: Tensor | None,
    slope_CK: Tensor | None,
    u_K: Tensor,
    temperature: float,
) -> Falls:
    """Where the draws fall, from what `statistics` finds."""
    from cwdfm.ops.triton_draw import draw_blocks

    blocks, rows = top_CK.shape
    scores = total_CK is not None and slope_CK is not None
    make = partial(torch.empty, rows, device=top_CK.device)
    falls = Falls(
        counts=torch.zeros(blocks, dtype=torch.int32, device=top_CK.device),
        members=torch.empty_like(top_CK, dtype=torch.int32),
        first=make(dtype=torch.int64),
        share=make(dtype=torch.float64),
        bad=make(dtype=torch.bool),
        entropy=make(dtype=torch.float64) if scores else None,
        confidence=make(dtype=torch.float64) if scores else None,
    )
    draw_blocks[(rows,)](
        top_CK,
        mass_CK,
        mass_CK if total_CK is None else total_CK,
        mass_CK if slope_CK is None else slope_CK,
        u_K.contiguous(),
        falls.counts,
        falls.members,
        falls.first,
        falls.share,
        falls.bad,
        falls.share if falls.entropy is None else falls.entropy,
        falls.share if falls.confidence is None else falls.confidence,
        rows,
        blocks,
        1 / temperature,
        BLOCK=BLOCK,
        BLOCKS=_power_of_two(blocks),
        SCORES=scores,
        num_warps=_warps(blocks),
    )
    return falls


@on_tensor_device
def masses_inside(
    hidden_KD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    counts_C: Tensor,
    members_CK: Tensor,
    vocab: int,
    temperature: float,
) -> Tensor:
    """exp((l - top) / temperature) [K, W], float32, of the tokens of each row's block."""
    from cwdfm.ops.triton_head import block_masses

    (blocks, rows), tile = members_CK.shape, block_tile(hidden_KD.dtype)
    out = _empty(hidden_KD, rows, BLOCK)
    block_masses[(min(rows, -(-rows // tile.rows) + blocks),)](
        hidden_KD,
        weight_VD,
        weight_VD if bias_V is None else bias_V,
        counts_C,
        members_CK,
        out,
        rows,
        vocab,
        1 / temperature,
        WIDTH=hidden_KD.shape[1],
        BLOCK_ROWS=tile.rows,
        BLOCK_VOCAB=BLOCK,
        BLOCK_WIDTH=tile.width,
        BLOCKS=_power_of_two(blocks),
        HAS_BIAS=bias_V is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


@on_tensor_device
def tokens_of(mass_KW: Tensor, share_K: Tensor, first_K: Tensor) -> Tensor:
    """The tokens drawn; they take the place of the first ones of their blocks."""
    from cwdfm.ops.triton_draw import draw_tokens

    draw_tokens[(len(mass_KW),)](mass_KW, share_K, first_K, BLOCK=BLOCK, num_warps=_warps(BLOCK))
    return first_K


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _warps(cells: int) -> int:
    """A warp for 256 float64 masses, eight a thread: sums then need no other warp."""
    return max(1, _power_of_two(cells) // 256)


def _empty(like: Tensor, rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.float32, device=like.device)
