"""Who attends to whom, and where tokens stand.

Bidirectional for flows, causal for autoregressive models, by halves for block diffusion, and behind
a cache of keys and values when a sequence is made from left to right.

Shapes: B batch, H heads, M tokens given to the network, d head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cwdfm.model.block_mask import halves_mix
from cwdfm.ops import fused_short_attention
from cwdfm.ops.rotary import rotate_qkv
from cwdfm.ops.short_attention import short_attention

# Rotated queries and keys, and values, each [B, H, M, d] -> mixed values [B, H, M, d].
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]

# Up to this length the memory-efficient kernel is PyTorch's best on a GPU, for what the kernel of
# `cwdfm.ops.short_attention` does not take. Forward and backward of 2,048 sequences of 32, 12
# heads of 64, bf16, on an H200: 0.89 ms, by cuDNN 1.35, by flash attention 2.76. Of 512 or 1,024
# tokens cuDNN's is, which is the default there.
SHORT = 64
# Without an order of preference: the default one has these two in this order, and to set another
# before PyTorch's first attention on a GPU would lose its own preference for cuDNN.
FOR_SHORT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Behind a cache every call has another length, and cuDNN would plan anew for each.
FOR_CACHED = [SDPBackend.FLASH_ATTENTION, *FOR_SHORT]


class Attention(ABC):
    """What one call of the network's trunk lets its tokens see."""

    def reach(self, length: int) -> int:
        """How long a sequence is of which `length` tokens are given."""
        return length

    def positions(self, length: int, device: torch.device) -> Tensor:
        """The place [M] in the sequence of each token given."""
        return torch.arange(length, device=device)

    @abstractmethod
    def mix(self, layer: int, length: int, device: torch.device) -> Mix:
        """How a layer mixes values. One function for all layers, where compiled code shall be."""


@dataclass(frozen=True)
class Full(Attention):
    """Everyone sees everyone."""

    def mix(self, layer: int, length: int, device: torch.device) -> Mix:
        return _full


@dataclass(frozen=True)
class Causal(Attention):
    """Everyone sees what comes before, and itself."""

    def mix(self, layer: int, length: int, device: torch.device) -> Mix:
        return _causal


@dataclass(frozen=True)
class Halves(Attention):
    """Noised tokens, then clean ones, [x_t, x_1], both at positions 0..N-1 (BD3LM's training).

    A noised token sees its own block, noised, and all earlier blocks, clean. A clean token sees its
    own and all earlier blocks, clean. `dense`: without FlexAttention, on a GPU too; to compare, or
    where it fails, set `model.sight = Halves(block, dense=True)`.
    """

    block: int
    dense: bool = False

    def reach(self, length: int) -> int:
        return length // 2

    def positions(self, length: int, device: torch.device) -> Tensor:
        return torch.arange(length // 2, device=device).repeat(2)

    def mix(self, layer: int, length: int, device: torch.device) -> Mix:
        return halves_mix(length // 2, self.block, device, self.dense)


class Cache:
    """Keys and values of the tokens so far, [B, H, capacity, d] for each layer."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.layers: list[tuple[Tensor, Tensor]] = []

    def select(self, rows_B: Tensor) -> "Cache":
        """The same for some of the sequences."""
        part = Cache(self.capacity)
        part.length = self.length
        part.layers = [(k[rows_B], v[rows_B]) for k, v in self.layers]
        return part

    def joined(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, those of new tokens behind those of old ones."""
        end = self.length + k.shape[2]
        if layer == len(self.layers):
            shape = (*k.shape[:2], self.capacity, k.shape[3])
            self.layers.append((k.new_empty(shape), v.new_empty(shape)))
        keys, values = self.layers[layer]
        keys[:, :, self.length : end], values[:, :, self.length : end] = k, v
        return keys[:, :, :end], values[:, :, :end]


@dataclass(frozen=True)
class Behind(Attention):
    """Tokens behind a cache: they see all of it, and each other, causally or not.

    They stay in the cache if its owner moves `cache.length` on; or else the next ones take their
    place.
    """

    cache: Cache
    causal: bool = False

    def reach(self, length: int) -> int:
        return self.cache.length + length

    def positions(self, length: int, device: torch.device) -> Tensor:
        return torch.arange(self.cache.length, self.cache.length + length, device=device)

    def mix(self, layer: int, length: int, device: torch.device) -> Mix:
        mask = None
        if self.causal and length > 1:
            seen = torch.ones(length, self.cache.length + length, dtype=torch.bool, device=device)
            mask = seen.tril(self.cache.length)
        return partial(self._mix, layer, mask)

    def _mix(self, layer: int, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.cache.joined(layer, k, v)
        with sdpa_kernel(FOR_CACHED):
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def attend(qkv_BM3Hd: Tensor, rotation: tuple[Tensor, Tensor], mix: Mix) -> Tensor:
    """Mixed values [B, M, H, d], with queries and keys rotated by their tokens' places."""
    if (mix is _full or mix is _causal) and fused_short_attention(qkv_BM3Hd):
        return short_attention(qkv_BM3Hd, rotation, causal=mix is _causal)
    return mix(*rotate_qkv(qkv_BM3Hd, rotation)).transpose(1, 2)


def _full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _attend(q, k, v, causal=False)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _attend(q, k, v, causal=True)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    if not _short(q):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel(FOR_SHORT):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _short(q: Tensor) -> bool:
    """Whether q is short, and on a GPU, in heads of whole 16 bytes, as that kernel wants them."""
    return q.is_cuda and q.shape[-2] <= SHORT and q.shape[-1] * q.dtype.itemsize % 16 == 0
