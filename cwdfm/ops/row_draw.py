"""Draws from logits in memory, which are read once.

The law is `sample_categorical`'s: u * total is looked up among the cumulative masses in two levels,
first among blocks of the vocabulary, then inside one. One kernel does it all: it keeps of each
block its maximum and its sum of exponentials, and of the one block that a row's draw fell into it
reads the logits again.

Precision: both lookups are in float64, with the blocks' masses scaled to the row's maximum there.
So u keeps its resolution of 2^-53, and no token is cut off however rare, unless its mass is below
2^-126 of its block's largest. The exponentials, and their sum inside a block, are in float32: they
change a token's probability by a relative 1e-6 + 2e-7 |gap|, gap being how far its logit lies below
its block's largest, over the temperature. Rounding the logit to float32 does as much.

Shapes: K rows, V tokens, in C blocks.
"""

import math

import torch
from torch import Tensor

from cwdfm.ops.host_copy import doubt

LINE_BYTES = 16  # a thread's widest load
BLOCK_BYTES = 32 * LINE_BYTES  # a warp's: a block's sums then need no other warp
# Blocks that a program works on at once, and how many of them a warp has in registers. As many
# twice are on their way from memory. With four warps of 64 registers a thread eight programs fit on
# a multiprocessor, and ask for 128 kB ahead: several times what keeps an H200's memory busy.
TILE, WARP_BLOCKS, STAGES = 16, 4, 3


def row_draw(logits_KV: Tensor, u_K: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Token ids [K] of softmax(logits / temperature): see `sample_categorical`.

    Logits in half precision or float32, `u_K` float64 uniforms in [0, 1). A row that defines no
    distribution is an error; from a GPU, one that nobody waits for: see `told.py`.
    """
    from cwdfm.ops.triton_draw import draw_rows

    rows, vocab = logits_KV.shape
    token_K = torch.empty(rows, dtype=torch.int64, device=logits_KV.device)
    if rows == 0:
        return token_K
    logits_KV = logits_KV if logits_KV.stride(1) == 1 else logits_KV.contiguous()
    size = logits_KV.element_size()
    reach = vocab * size + LINE_BYTES - size  # of a row that begins at the end of a line
    blocks = 1 << (-(-reach // BLOCK_BYTES) - 1).bit_length()
    tile = min(blocks, TILE)
    scratch = torch.empty(2, rows, blocks, dtype=torch.float32, device=logits_KV.device)
    with torch.cuda.device_of(logits_KV):
        draw_rows[(rows,)](
            logits_KV,
            u_K.contiguous(),
            *scratch,
            token_K,
            logits_KV.stride(0),
            vocab,
            math.log2(math.e) / temperature,
            BLOCK=BLOCK_BYTES // size,
            BLOCKS=blocks,
            TILE=tile,
            LINE=LINE_BYTES,
            STAGES=STAGES,
            num_warps=max(1, tile // WARP_BLOCKS),
        )
    doubt(token_K < 0)
    return token_K.clamp(min=0)
