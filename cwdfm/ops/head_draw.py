"""Draws from softmax(hidden @ W^T + b) without storing the logits.

Like `sample_categorical`, `head_draw` looks up u * total among the cumulative masses in two levels,
first among blocks of the vocabulary, then within one, in float64 with one uniform per draw:

1. `statistics` computes all logits in registers and stores the maximum and the sum of exponentials
   of every block.
2. `choose_blocks` finds the block that each row's draw falls into, and lists the rows per block.
3. `block_masses_of` recomputes the logits of each block for the rows that fall into it.
4. The kernel `draw_tokens` looks up the token.

The tokens equal those of the unfused code up to the rounding of logits. The logits of a row do not
depend on the other rows or their number.

Shapes: K rows, D width, V data tokens, C blocks of W = BLOCK tokens.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cwdfm.ops.dispatch import next_power_of_2
from cwdfm.ops.host_copy import check_rows
from cwdfm.ops.precision import CASTS, product_dtype

BLOCK = 256
GROUP = 16


class Tile(NamedTuple):
    """The tile shape of a kernel, its number of warps and its pipeline stages."""

    rows: int
    width: int
    warps: int
    stages: int


class Head(NamedTuple):
    """The distributions softmax((hidden @ weight^T + bias)[:vocab] / temperature)."""

    hidden: Tensor  # [K, D]
    weight: Tensor  # [>= V, D]
    bias: Tensor | None  # [>= V]
    vocab: int
    temperature: float

    @property
    def blocks(self) -> int:
        """The number C of vocabulary blocks."""
        return -(-self.vocab // BLOCK)

    def empty(self, rows: int, columns: int) -> Tensor:
        """An uninitialized float32 tensor for results."""
        return torch.empty(rows, columns, dtype=torch.float32, device=self.hidden.device)

    def launch(
        self, kernel: Any, programs: int, tile: Tile, *tensors: Tensor | None, **options: int
    ) -> None:
        """Launch a kernel that computes logits of this head."""
        rows, width = self.hidden.shape
        kernel[(programs,)](
            self.hidden, self.weight, self.bias, *tensors, rows, self.vocab, 1 / self.temperature,
            WIDTH=width, BLOCK_ROWS=tile.rows, BLOCK_VOCAB=BLOCK, BLOCK_WIDTH=tile.width,
            num_warps=tile.warps, num_stages=tile.stages, **options,
        )  # fmt: skip


class BlockDraws(NamedTuple):
    """The block that each row's draw falls into: see the kernel `draw_blocks`."""

    counts: Tensor  # [C] int32: number of rows whose draw falls into the block
    members: Tensor  # [C, K] int32: these rows, in any order
    first: Tensor  # [K] int64: the first token of the row's block
    share: Tensor  # [K] float64: relative position of the draw within the block
    bad: Tensor  # [K] bool: the row defines no distribution; it is assigned to the first block
    entropy: Tensor | None  # [K] float64
    confidence: Tensor | None  # [K] float64


class DrawnTokens(NamedTuple):
    """Drawn tokens, and the statistics of their distributions that context weights use."""

    tokens: Tensor  # [K] int64
    entropy: Tensor | None  # [K] float64, in nats, at temperature 1
    confidence: Tensor | None  # [K] float64: the largest probability, at temperature 1


def head_draw(
    hidden_KD: Tensor,
    readout: nn.Linear,
    u_K: Tensor,
    vocab: int,
    *,
    temperature: float = 1.0,
    scores: bool = False,
) -> DrawnTokens:
    """Draw tokens from softmax(readout(hidden) / temperature) over the first `vocab` ids.

    `u_K` are float64 uniforms in [0, 1), K > 0. With `scores`, the result includes entropy and
    confidence.
    """
    from cwdfm.ops.triton_draw import draw_tokens

    dtype = product_dtype(hidden_KD)
    hidden_KD, weight_VD = hidden_KD.to(dtype).contiguous(), CASTS.get(readout.weight, dtype)
    head = Head(hidden_KD, weight_VD, readout.bias, vocab, temperature)
    with torch.cuda.device_of(hidden_KD):
        draws = choose_blocks(*statistics(head, scores), u_K, temperature)
        # The check may be deferred: waiting for its result here would leave the GPU idle.
        check_rows(draws.bad)
        mass_KW, token_K = block_masses_of(head, draws), draws.first  # overwritten by the token
        options = {"BLOCK": BLOCK, "num_warps": _warps(BLOCK)}
        draw_tokens[(len(mass_KW),)](mass_KW, draws.share, token_K, **options)
    return DrawnTokens(token_K, draws.entropy, draws.confidence)


def statistics_tile(rows: int, dtype: torch.dtype) -> Tile:
    """The tile of `statistics`; smaller for few rows, where reading the weights dominates."""
    if dtype == torch.float32:
        return Tile(rows=32, width=16, warps=8, stages=2)
    if rows <= 2048:
        return Tile(rows=64, width=64, warps=4, stages=4)
    return Tile(rows=128, width=64, warps=8, stages=3)


def statistics(head: Head, scores: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The results of `head_statistics`, each [C, K] float32; the last two only with `scores`."""
    from cwdfm.ops.triton_draw import head_statistics

    rows, blocks = len(head.hidden), head.blocks
    tile = statistics_tile(rows, head.hidden.dtype)
    top, mass = (head.empty(blocks, rows) for _ in range(2))
    total, slope = (head.empty(blocks, rows) if scores else None for _ in range(2))
    programs, options = -(-rows // tile.rows) * blocks, {"TEMPERED": head.temperature != 1}
    head.launch(head_statistics, programs, tile, top, mass, total, slope, GROUP=GROUP, **options)
    return top, mass, total, slope


def choose_blocks(
    top_CK: Tensor,
    mass_CK: Tensor,
    total_CK: Tensor | None,
    slope_CK: Tensor | None,
    u_K: Tensor,
    temperature: float,
) -> BlockDraws:
    """Find the block that each draw falls into, from the results of `statistics`."""
    from cwdfm.ops.triton_draw import draw_blocks

    blocks, rows = top_CK.shape
    scores = total_CK is not None
    empty = partial(torch.empty, rows, device=top_CK.device)
    draws = BlockDraws(
        counts=torch.zeros(blocks, dtype=torch.int32, device=top_CK.device),
        members=torch.empty_like(top_CK, dtype=torch.int32),
        first=empty(dtype=torch.int64),
        share=empty(dtype=torch.float64),
        bad=empty(dtype=torch.bool),
        entropy=empty(dtype=torch.float64) if scores else None,
        confidence=empty(dtype=torch.float64) if scores else None,
    )
    draw_blocks[(rows,)](
        top_CK, mass_CK, total_CK, slope_CK, u_K.contiguous(), *draws, rows, blocks,
        1 / temperature, BLOCK=BLOCK, BLOCKS=next_power_of_2(blocks), num_warps=_warps(blocks),
    )  # fmt: skip
    return draws


def block_masses_of(head: Head, draws: BlockDraws) -> Tensor:
    """The masses exp((l - top) / temperature) [K, W] of the tokens in each row's block, float32."""
    from cwdfm.ops.triton_draw import block_masses

    is_float32 = head.hidden.dtype == torch.float32
    tile = Tile(16, 16, warps=8, stages=2) if is_float32 else Tile(64, 64, warps=8, stages=3)
    rows, blocks = len(head.hidden), head.blocks
    mass_KW = head.empty(rows, BLOCK)
    programs = min(rows, -(-rows // tile.rows) + blocks)  # upper bound on the number of tiles
    tensors = (draws.counts, draws.members, mass_KW)
    head.launch(block_masses, programs, tile, *tensors, BLOCKS=next_power_of_2(blocks))
    return mass_KW


def _warps(cells: int) -> int:
    """One warp per 256 float64 masses, eight per thread, so that sums stay within a warp."""
    return max(1, next_power_of_2(cells) // 256)
