"""The attention of block diffusion's training, over noised and clean tokens at once.

The mask is one function of two places. FlexAttention reads it tile by tile and skips the tiles in
which nobody sees anybody, which is half of the work or more; where that is not to be had, the mask
is a matrix. Both give the same up to rounding.

Shapes: B batch, H heads, N length, d head width; M = 2N tokens, noised then clean.
"""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Whether FlexAttention can be had; it is imported where it is used, since that takes a while.
FLEX = all(map(find_spec, ("triton", "torch.nn.attention.flex_attention")))
TILE = 128  # queries of a tile, and keys
NARROWEST = 16  # head width that the fused kernels take


def sees(length: int, block: int, query: Tensor, key: Tensor) -> Tensor:
    """Whether the token at `query` sees the one at `key`; both count 0..2N-1, noised then clean.

    A noised token sees its own block, noised, and earlier blocks, clean; a clean one sees its own
    and earlier blocks, clean.
    """
    from_clean, to_clean = query >= length, key >= length
    query_block, key_block = query % length // block, key % length // block
    noised = (to_clean & (query_block > key_block)) | (~to_clean & (query_block == key_block))
    clean = to_clean & (query_block >= key_block)
    return (from_clean & clean) | (~from_clean & noised)


def halves_mask(length: int, block: int, device: torch.device) -> Tensor:
    """Who sees whom, bool [2N, 2N]."""
    place = torch.arange(2 * length, device=device)
    return sees(length, block, place[:, None], place[None, :])


def mask_mod(length: int, block: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """`sees` as FlexAttention asks it: of sequence, head, query and key."""

    def visible(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(length, block, query, key)

    return visible


def halves_mix(
    length: int, block: int, device: torch.device, dense: bool = False
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """How values are mixed: by FlexAttention on a GPU, by a matrix elsewhere or if `dense`.

    By a matrix too where all tokens fit into one tile, of which nothing could be skipped.
    """
    flexible = FLEX and device.type == "cuda" and 2 * length > TILE and not dense
    key = (length, block, device, flexible)
    if key not in _MADE:
        if len(_MADE) >= 8:  # lengths come and go in tests alone
            _MADE.clear()
        _MADE[key] = _flexible(*key[:3]) if flexible else _dense(*key[:3])
    return _MADE[key]


# By length, block, device and kind. A dictionary, since torch.compile looks through caches of
# functools and would make the mask anew at every call.
_MADE: dict[tuple[int, int, torch.device, bool], Callable[[Tensor, Tensor, Tensor], Tensor]] = {}


def _dense(
    length: int, block: int, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return partial(F.scaled_dot_product_attention, attn_mask=halves_mask(length, block, device))


def _flexible(
    length: int, block: int, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask

    # What a last tile has beyond 2N is masked.
    size = 2 * length
    tiles = create_block_mask(
        mask_mod(length, block), None, None, size, size, device=device, BLOCK_SIZE=TILE
    )
    return partial(_flex_mix, tiles, length, block)


def _flex_mix(tiles: Any, length: int, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.dtype == torch.float64 or q.shape[-1] < NARROWEST:  # for which there is no fused kernel
        return halves_mix(length, block, q.device, dense=True)(q, k, v)
    from torch.nn.attention.flex_attention import flex_attention

    # Uncompiled it would store all scores; inside a compiled trunk it is compiled with the rest.
    flex: Any = flex_attention if torch.compiler.is_compiling() else _compiled()
    mixed: Tensor = flex(q, k, v, block_mask=tiles)
    return mixed


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
