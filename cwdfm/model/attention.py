"""Attention patterns: which tokens attend to which, and their positions.

Bidirectional attention for flows, causal attention for autoregressive models, BD3LM's mask over two
copies of a sequence for training block diffusion, and attention with a key-value cache for
left-to-right generation.

Shapes: B batch, H heads, M input tokens, N sequence length, d head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cwdfm.ops.attention import rotate_qkv, short_attention
from cwdfm.ops.dispatch import fused_short_attention

# Rotated queries and keys, and values, each [B, H, M, d] -> attention output [B, H, M, d].
AttentionFn = Callable[[Tensor, Tensor, Tensor], Tensor]

# Up to this length the memory-efficient kernel is PyTorch's fastest on a GPU, for inputs that
# `cwdfm.ops.attention` does not support. Forward and backward of 2,048 sequences of 32 tokens, 12
# heads of width 64, bf16, on an H200: 0.89 ms, against 1.35 (cuDNN) and 2.76 (flash attention). At
# 512 or 1,024 tokens cuDNN, the default, is fastest.
SHORT = 64
# Passed without a priority order: setting one before PyTorch's first attention call on a GPU would
# discard PyTorch's own preference for cuDNN.
SHORT_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# For calls whose lengths vary, as with a cache: cuDNN would build a plan for each length.
CACHED_BACKENDS = [SDPBackend.FLASH_ATTENTION, *SHORT_BACKENDS]

# FlexAttention is imported where it is used, because the import is slow.
FLEX = all(map(find_spec, ("triton", "torch.nn.attention.flex_attention")))
FLEX_TILE = 128  # queries and keys per tile
FLEX_MIN_WIDTH = 16  # smallest head width that its fused kernels support


class AttentionPattern(ABC):
    """The attention pattern of one call of the trunk."""

    def sequence_length(self, num_inputs: int) -> int:
        """The length of the sequence that `num_inputs` input tokens belong to."""
        return num_inputs

    def position_ids(self, num_inputs: int, device: torch.device) -> Tensor:
        """The position [M] of each input token in the sequence."""
        return torch.arange(num_inputs, device=device)

    @abstractmethod
    def attention_fn(self, layer: int, num_inputs: int, device: torch.device) -> AttentionFn:
        """The attention function of a layer; layers with the same one share a compiled graph."""


@dataclass(frozen=True)
class FullAttention(AttentionPattern):
    """Every token attends to every token."""

    def attention_fn(self, layer: int, num_inputs: int, device: torch.device) -> AttentionFn:
        return _full


@dataclass(frozen=True)
class CausalAttention(AttentionPattern):
    """Every token attends to itself and to earlier tokens."""

    def attention_fn(self, layer: int, num_inputs: int, device: torch.device) -> AttentionFn:
        return _causal


@dataclass(frozen=True)
class BlockDiffusionAttention(AttentionPattern):
    """BD3LM's training mask over [x_t, x_1], both at positions 0..N-1 (M = 2N).

    A noised token attends to its own block of x_t and to earlier blocks of x_1. A clean token
    attends to its own and earlier blocks of x_1. FlexAttention skips fully masked tiles, at least
    half of the work. `dense` uses a dense mask instead, for comparison or where FlexAttention
    fails: `model.attention_pattern = BlockDiffusionAttention(block, dense=True)`.
    """

    block: int
    dense: bool = False

    def sequence_length(self, num_inputs: int) -> int:
        return num_inputs // 2

    def position_ids(self, num_inputs: int, device: torch.device) -> Tensor:
        return torch.arange(num_inputs // 2, device=device).repeat(2)

    def attention_fn(self, layer: int, num_inputs: int, device: torch.device) -> AttentionFn:
        return block_diffusion_attention(num_inputs // 2, self.block, device, self.dense)


@dataclass(eq=False)
class KVCache:
    """Keys and values of N columns of tokens, [B, G, N, d] for each layer and its G heads.

    A call of the network stores the keys and values of the columns it evaluates, starting at
    `start`, and attends to the columns before `end`. In a CUDA graph, the indices of the evaluated
    columns are a tensor, `place` [M].
    """

    columns: int
    start: int = 0
    end: int = 0
    place: Tensor | None = None
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def update(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store new keys and values of a layer; return all that the tokens attend to."""
        keys, values = self.storage(layer, k)
        if self.place is None:
            stop = self.start + k.shape[2]
            keys[:, :, self.start : stop], values[:, :, self.start : stop] = k, v
        else:
            keys.index_copy_(2, self.place, k)
            values.index_copy_(2, self.place, v)
        return keys[:, :, : self.end], values[:, :, : self.end]

    def storage(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, G, N, d] of a layer, with the heads and dtype of `like`."""
        if layer == len(self.layers):
            shape = (*like.shape[:2], self.columns, like.shape[3])
            self.layers.append((like.new_zeros(shape), like.new_zeros(shape)))
        return self.layers[layer]

    def select(self, rows_B: Tensor) -> "KVCache":
        """A copy of the cache for some of the sequences."""
        return replace(self, layers=[(k[rows_B], v[rows_B]) for k, v in self.layers])


@dataclass(frozen=True)
class CachedAttention(AttentionPattern):
    """New tokens attend to a cache and to each other, with or without a causal mask.

    The next call overwrites their keys and values unless the caller advances `cache.start`.
    """

    cache: KVCache
    causal: bool = False

    def sequence_length(self, num_inputs: int) -> int:
        return self.cache.start + num_inputs

    def position_ids(self, num_inputs: int, device: torch.device) -> Tensor:
        return torch.arange(self.cache.start, self.cache.start + num_inputs, device=device)

    def attention_fn(self, layer: int, num_inputs: int, device: torch.device) -> AttentionFn:
        mask = None
        if self.causal and num_inputs > 1:
            shape = (num_inputs, self.cache.start + num_inputs)
            mask = torch.ones(shape, dtype=torch.bool, device=device).tril(self.cache.start)
        return partial(self._attend, layer, mask)

    def _attend(self, layer: int, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.cache.end = self.cache.start + k.shape[2]
        keys, values = self.cache.update(k, v, layer)
        with sdpa_kernel(CACHED_BACKENDS):
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def attend(qkv_BM3Hd: Tensor, rotation: tuple[Tensor, Tensor], attention: AttentionFn) -> Tensor:
    """Rotate queries and keys by their positions, and compute the attention output [B, M, H, d]."""
    if (attention is _full or attention is _causal) and fused_short_attention(qkv_BM3Hd):
        return short_attention(qkv_BM3Hd, rotation, causal=attention is _causal)
    return attention(*rotate_qkv(qkv_BM3Hd, rotation)).transpose(1, 2)


def _full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _sdpa(q, k, v, causal=False)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _sdpa(q, k, v, causal=True)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    if not _is_short(q):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel(SHORT_BACKENDS):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _is_short(q: Tensor) -> bool:
    """Whether to use the memory-efficient kernel; it needs a head width of 16-byte multiples."""
    return q.is_cuda and q.shape[-2] <= SHORT and q.shape[-1] * q.dtype.itemsize % 16 == 0


def block_diffusion_mask(length: int, block: int, query: Tensor, key: Tensor) -> Tensor:
    """Whether token `query` attends to token `key`; both are indices 0..2N-1 into [x_t, x_1]."""
    from_clean, to_clean = query >= length, key >= length
    query_block, key_block = query % length // block, key % length // block
    noised = (to_clean & (query_block > key_block)) | (~to_clean & (query_block == key_block))
    clean = to_clean & (query_block >= key_block)
    return (from_clean & clean) | (~from_clean & noised)


def dense_block_diffusion_mask(length: int, block: int, device: torch.device) -> Tensor:
    """`block_diffusion_mask` as a matrix, bool [2N, 2N]."""
    index = torch.arange(2 * length, device=device)
    return block_diffusion_mask(length, block, index[:, None], index[None, :])


def block_diffusion_attention(
    length: int, block: int, device: torch.device, dense: bool = False
) -> AttentionFn:
    """Attention under `block_diffusion_mask`: FlexAttention on a GPU, a dense mask elsewhere.

    The mask is also dense if all tokens fit into one tile, because there is then nothing to skip.
    """
    flex = FLEX and device.type == "cuda" and 2 * length > FLEX_TILE and not dense
    key = (length, block, device, flex)
    if key not in _ATTENTION_FNS:
        if len(_ATTENTION_FNS) >= 8:  # only tests use many lengths
            _ATTENTION_FNS.clear()
        _ATTENTION_FNS[key] = (_flex_attention if flex else _dense_attention)(*key[:3])
    return _ATTENTION_FNS[key]


# Keyed by (length, block, device, flex). A dictionary, because torch.compile traces through
# functools caches and would rebuild the mask in every call.
_ATTENTION_FNS: dict[tuple[int, int, torch.device, bool], AttentionFn] = {}


def _dense_attention(length: int, block: int, device: torch.device) -> AttentionFn:
    mask = dense_block_diffusion_mask(length, block, device)
    return partial(F.scaled_dot_product_attention, attn_mask=mask)


def flex_mask_mod(length: int, block: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """`block_diffusion_mask` with the signature that FlexAttention expects."""

    def mask_mod(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return block_diffusion_mask(length, block, query, key)

    return mask_mod


def _flex_attention(length: int, block: int, device: torch.device) -> AttentionFn:
    from torch.nn.attention.flex_attention import create_block_mask

    size = 2 * length  # FlexAttention masks the rest of the last tile
    mask = create_block_mask(
        flex_mask_mod(length, block), None, None, size, size, device=device, BLOCK_SIZE=FLEX_TILE
    )
    return partial(_flex_call, mask, length, block)


def _flex_call(mask: Any, length: int, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.dtype == torch.float64 or q.shape[-1] < FLEX_MIN_WIDTH:  # no fused kernel
        return block_diffusion_attention(length, block, q.device, dense=True)(q, k, v)
    from torch.nn.attention.flex_attention import flex_attention

    # Eager FlexAttention would store all scores. Within a compiled trunk it is compiled anyway.
    flex: Any = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
    out: Tensor = flex(q, k, v, block_mask=mask)
    return out


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
