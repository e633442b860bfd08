"""Draws from softmax(hidden @ W^T + b) that never store the logits.

The law is `sample_categorical`'s: u * total is looked up among the cumulative masses in two levels,
first among blocks of the vocabulary, then inside one, both in float64 with one counted uniform a
draw. A first kernel computes all logits, in registers, and keeps of each block its maximum and its
sum of exponentials. A second computes the logits of the one block that a row's draw fell into. So
tokens are those of the plain path, up to the rounding of the logits.

Shapes: K rows, D width, V data tokens, C blocks of W = BLOCK tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cwdfm.categorical import first_above
from cwdfm.kernel import product_dtype
from cwdfm.told import doubt

BLOCK = 256
GROUP = 16


class Tile(NamedTuple):
    """How a kernel cuts its work: rows and width of a tile, warps, stages of its pipeline."""

    rows: int
    width: int
    warps: int
    stages: int


class Draw(NamedTuple):
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
    """The second kernel's tile: rows that share a block are few."""
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
) -> Draw:
    """Tokens of softmax(readout(hidden) / temperature) over the first `vocab` ids.

    `u_K` are float64 uniforms in [0, 1), K > 0. With `scores` entropy and confidence come along.
    """
    dtype = product_dtype(hidden_KD)
    head = (
        hidden_KD.to(dtype).contiguous(),
        readout.weight.to(dtype).contiguous(),
        readout.bias,
    )
    top_CK, mass_CK, total_CK, slope_CK = statistics(*head, vocab, temperature, scores)
    top_K = top_CK.amax(0)
    # A NaN among the logits may not show in the maxima; it does in the sums. The host learns of it
    # when it learns of it: to wait here would leave the GPU without work.
    bad_K = mass_CK.isnan().any(0) | ~top_K.isfinite()
    doubt(bad_K)
    gap_CK = (top_CK - top_K).double()  # -inf for a block of probability zero
    mass_CK = (mass_CK.double() * (gap_CK / temperature).exp()).masked_fill(bad_K, 1.0)
    mass_KC = mass_CK.T.contiguous()
    block_K, rest_K = first_above(mass_KC, u_K)
    mass_KW = masses_inside(*head, block_K, vocab, temperature).double()
    token_K, _ = first_above(mass_KW.masked_fill(bad_K[:, None], 1.0), rest_K)
    tokens_K = (block_K * BLOCK + token_K).clamp(max=vocab - 1)  # of bad rows: any token
    if total_CK is None or slope_CK is None:
        return Draw(tokens_K, None, None)
    return Draw(tokens_K, *_summary(gap_CK, total_CK.double(), slope_CK.double()))


def _summary(gap_CK: Tensor, total_CK: Tensor, slope_CK: Tensor) -> tuple[Tensor, Tensor]:
    """H = log Z - sum p (l - top) and max p = 1 / Z, with Z = sum exp(l - top), from the blocks."""
    share_CK = gap_CK.exp()
    z_K = (total_CK * share_CK).sum(0)
    finite_CK = gap_CK.masked_fill(gap_CK == -torch.inf, 0.0)  # no 0 * inf
    energy_K = ((slope_CK + total_CK * finite_CK) * share_CK).sum(0) / z_K
    return (z_K.log() - energy_K).clamp(min=0.0), 1 / z_K


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
    from cwdfm.kernel.triton_head import head_statistics

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


def masses_inside(
    hidden_KD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    block_K: Tensor,
    vocab: int,
    temperature: float,
) -> Tensor:
    """exp((l - top) / temperature) [K, W], float32, of the tokens of each row's block."""
    from cwdfm.kernel.triton_head import block_masses

    tile = block_tile(hidden_KD.dtype)
    out = _empty(hidden_KD, len(hidden_KD), BLOCK)
    order_K, tiles = _tiles(block_K, -(-vocab // BLOCK), tile.rows)
    block_masses[(len(tiles[0]),)](
        hidden_KD,
        weight_VD,
        weight_VD if bias_V is None else bias_V,
        order_K,
        *tiles,
        out,
        vocab,
        1 / temperature,
        WIDTH=hidden_KD.shape[1],
        BLOCK_ROWS=tile.rows,
        BLOCK_VOCAB=BLOCK,
        BLOCK_WIDTH=tile.width,
        HAS_BIAS=bias_V is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def _tiles(block_K: Tensor, blocks: int, size: int) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The rows sorted by block, and tiles of at most `size` rows of one block each.

    A tile is (block, first place in the order, end of its block's places). How many there are is
    known to the device alone, and not worth waiting for: at most min(K, K / size + C) are made, and
    the superfluous ones name the block C, which does not exist.
    """
    rows, device = len(block_K), block_K.device
    sorted_K, order_K = block_K.sort()
    edge = torch.searchsorted(sorted_K, torch.arange(blocks + 1, device=device))
    tiles_C = (edge.diff() + size - 1) // size
    end_C = tiles_C.cumsum(0)
    tile = torch.arange(min(rows, -(-rows // size) + blocks), device=device)
    block = torch.searchsorted(end_C, tile, right=True)
    known = block.clamp(max=blocks - 1)
    first = edge[known] + (tile - (end_C - tiles_C)[known]) * size
    return order_K, (block, first, edge[known + 1])


def _empty(like: Tensor, rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.float32, device=like.device)
