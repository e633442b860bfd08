"""The transformer of Llama and Qwen with arbitrary attention masks, for LLaDA, Dream and SDAR.

Pre-norm blocks with RMSNorm, rotary embeddings, grouped-query attention and SwiGLU. The caller
provides the attention mask and the key-value cache. A call evaluates some columns of a canvas of
tokens; the keys and values of the other columns can come from the cache.

Shapes: B batch, M evaluated tokens, K keys, N columns of the canvas, H heads, G key-value heads,
d head width, D width.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from cwdfm.errors import InputError, check_integer, check_positive
from cwdfm.model.attention import CACHED_BACKENDS, SHORT, KVCache
from cwdfm.ops.decoder import (
    add_rms_norm,
    fused_decoder,
    rotate_and_store,
    rotate_heads,
    silu_product,
)


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes of a `Decoder`."""

    num_tokens: int
    width: int
    depth: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6
    qkv_bias: bool = False  # Qwen2, Dream
    qk_norm: bool = False  # Qwen3, SDAR

    def __post_init__(self) -> None:
        for name in ("num_tokens", "width", "depth", "heads", "kv_heads", "head_width"):
            check_integer(name, getattr(self, name))
        check_integer("mlp_width", self.mlp_width)
        check_positive("rope_base", self.rope_base)
        check_positive("norm_epsilon", self.norm_epsilon)
        if self.heads % self.kv_heads or self.head_width % 2:
            raise InputError(
                f"heads must be a multiple of kv_heads and head_width even, got {self.heads} "
                f"heads, {self.kv_heads} key-value heads and head_width {self.head_width}"
            )


class Decoder(nn.Module):
    """Maps tokens and positions to hidden vectors, which `readout` maps to logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.num_tokens, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.depth))
        self.norm = nn.RMSNorm(config.width, config.norm_epsilon)
        self.readout = nn.Linear(config.width, config.num_tokens, bias=False)

    def forward(
        self,
        ids_BM: Tensor,
        position_BM: Tensor,
        mask: Tensor | None,
        cache: KVCache | None,
        keep_L: Tensor | None = None,
    ) -> Tensor:
        """Hidden vectors [B, M, D], or only those of the tokens with indices keep_L, [B, L, D].

        `mask` [B, 1, M or 1, K] is True where a token attends to a key. None means everywhere.
        """
        h_BMD, y_BMD = self.embedding(ids_BM), None
        rotation = self._rotation(position_BM)
        with _attention_backends(ids_BM, cache):
            for layer in self.layers:
                keep = keep_L if layer is self.layers[-1] else None
                h_BMD, y_BMD = layer(h_BMD, y_BMD, rotation, mask, cache, keep)
        return add_rms_norm(h_BMD, y_BMD, self.norm)[1]

    def _rotation(self, position_BM: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, M, d], float32; both halves are equal."""
        width = self.config.head_width
        even = torch.arange(0, width, 2, dtype=torch.float32, device=position_BM.device)
        angle = position_BM[..., None].float() * self.config.rope_base ** -(even / width)
        return angle.cos().repeat(1, 1, 2), angle.sin().repeat(1, 1, 2)


def _attention_backends(ids_BM: Tensor, cache: KVCache | None) -> AbstractContextManager[None]:
    """PyTorch's default, which is cuDNN on an H200, or flash attention where that is faster.

    A CUDA graph (`cache.place`) keeps its shape, so cuDNN builds one plan. With 32 queries and
    1,280 keys per sequence, cuDNN takes 86 us a layer for 16 sequences, and flash attention 130.
    For one sequence it is 21 and 16, because flash attention splits the keys.
    """
    if cache is None or (cache.place is not None and ids_BM.numel() > SHORT):
        return nullcontext()
    backends: AbstractContextManager[None] = sdpa_kernel(CACHED_BACKENDS)
    return backends


class DecoderLayer(nn.Module):
    """Attention and SwiGLU, each preceded by a norm."""

    def __init__(self, config: DecoderConfig, number: int) -> None:
        super().__init__()
        self.number, self.heads, self.kv_heads = number, config.heads, config.kv_heads
        width, d, epsilon = config.width, config.head_width, config.norm_epsilon
        self.attention_norm = nn.RMSNorm(width, epsilon)
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * d, bias=config.qkv_bias)
        self.qk_norm = config.qk_norm
        if self.qk_norm:
            self.query_norm, self.key_norm = nn.RMSNorm(d, epsilon), nn.RMSNorm(d, epsilon)
        self.out = nn.Linear(self.heads * d, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, epsilon)
        self.gate_up = nn.Linear(width, 2 * config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, width, bias=False)

    def forward(
        self,
        h_BMD: Tensor,
        y_BMD: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KVCache | None,
        keep_L: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream after attention, and the output of the MLP, which the caller adds.

        The inputs are the outputs of the previous layer. With `keep_L`, in the last layer, all
        tokens provide keys and values, but only those of keep_L are processed further.
        """
        h_BMD, x_BMD = add_rms_norm(h_BMD, y_BMD, self.attention_norm)
        q, k, v = self._attention_inputs(x_BMD, rotation, cache)
        if keep_L is not None:
            h_BMD, q = h_BMD.index_select(1, keep_L), q.index_select(2, keep_L)
            if mask is not None and mask.shape[2] > 1:
                mask = mask.index_select(2, keep_L)
        if self.kv_heads != self.heads:  # kernels with a mask do not support grouped queries
            k, v = (x.repeat_interleave(self.heads // self.kv_heads, dim=1) for x in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out_BMD = self.out(attended.transpose(1, 2).flatten(2))
        h_BMD, x_BMD = add_rms_norm(h_BMD, out_BMD, self.mlp_norm)
        return h_BMD, self.down(silu_product(self.gate_up(x_BMD)))

    def _attention_inputs(
        self, x_BMD: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, H, M, d], and the keys and values [B, G, K, d] they attend to."""
        heads_BMHd = self.qkv(x_BMD).unflatten(-1, (self.heads + 2 * self.kv_heads, -1))
        qk, v = heads_BMHd.tensor_split([self.heads + self.kv_heads], dim=2)
        if cache is not None and cache.place is not None and not self.qk_norm and fused_decoder(v):
            keys, values = cache.storage(self.number, v.transpose(1, 2))
            q = rotate_and_store(heads_BMHd, *rotation, cache.place, keys, values)
            return q.transpose(1, 2), keys[:, :, : cache.end], values[:, :, : cache.end]
        if self.qk_norm:
            q, k = qk.tensor_split([self.heads], dim=2)
            qk = torch.cat([self.query_norm(q), self.key_norm(k)], dim=2)
        q, k = rotate_heads(qk, *rotation).transpose(1, 2).tensor_split([self.heads], dim=1)
        v = v.transpose(1, 2)
        return (q, k, v) if cache is None else (q, *cache.update(k, v, self.number))
