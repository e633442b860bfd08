"""The transformer of Llama and Qwen, with any attention mask: LLaDA, Dream and SDAR.

Pre-norm blocks with RMSNorm, rotary positions, grouped queries and SwiGLU. Which tokens attend to
which is up to the caller, and so is the cache: every call says which columns of a canvas of tokens
it evaluates, and keys and values of the other columns may come from earlier calls.

Shapes: B batch, M evaluated tokens, K keys, N columns of the canvas, H heads, G key-value heads,
d head width, D width.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from cwdfm.errors import InputError, check_integer, check_positive
from cwdfm.model.attention import CACHED_BACKENDS


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


@dataclass
class KeyValues:
    """Keys and values of all columns of a canvas, [B, G, N, d] for each layer.

    A call of a network writes those of its own columns, from `start` on, and attends to the columns
    before `end`. In a CUDA graph the own columns are a tensor, `place` [M]. It is also a cache for
    the models of transformers.
    """

    columns: int
    start: int = 0
    end: int = 0
    place: Tensor | None = None
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def update(
        self, k: Tensor, v: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of a layer; return those to attend to."""
        if layer_idx == len(self.layers):
            shape = (*k.shape[:2], self.columns, k.shape[3])
            self.layers.append((k.new_zeros(shape), v.new_zeros(shape)))
        keys, values = self.layers[layer_idx]
        if self.place is None:
            stop = self.start + k.shape[2]
            keys[:, :, self.start : stop], values[:, :, self.start : stop] = k, v
        else:
            keys.index_copy_(2, self.place, k)
            values.index_copy_(2, self.place, v)
        return keys[:, :, : self.end], values[:, :, : self.end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of columns before those of the call."""
        return self.start

    def select(self, rows: Tensor) -> None:
        """Keep some of the sequences."""
        self.layers = [(k[rows], v[rows]) for k, v in self.layers]


class Decoder(nn.Module):
    """Tokens and positions to hidden vectors; `readout` maps those to logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.num_tokens, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.depth))
        self.norm = nn.RMSNorm(config.width, config.norm_epsilon)
        self.readout = nn.Linear(config.width, config.num_tokens, bias=False)

    def forward(
        self, ids_BM: Tensor, position_BM: Tensor, mask: Tensor | None, cache: KeyValues | None
    ) -> Tensor:
        """Hidden vectors [B, M, D].

        `mask` [B, 1, M or 1, K] is true where a token attends to a key; None is everywhere.
        """
        x_BMD = self.embedding(ids_BM)
        rotation = self._rotation(position_BM, x_BMD.dtype)
        with sdpa_kernel(CACHED_BACKENDS):
            for layer in self.layers:
                x_BMD = layer(x_BMD, rotation, mask, cache)
        hidden_BMD: Tensor = self.norm(x_BMD)
        return hidden_BMD

    def _rotation(self, position_BM: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [B, M, 1, d], the latter with the sign of the rotated half."""
        width = self.config.head_width
        even = torch.arange(0, width, 2, dtype=torch.float32, device=position_BM.device)
        angle = position_BM[..., None].float() * self.config.rope_base ** -(even / width)
        cos, sin = angle.cos().repeat(1, 1, 2), angle.sin()
        return cos[:, :, None].to(dtype), torch.cat([-sin, sin], -1)[:, :, None].to(dtype)


class DecoderLayer(nn.Module):
    """Attention and SwiGLU, each with a norm before it."""

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
        x_BMD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KeyValues | None,
    ) -> Tensor:
        """The residual stream after this layer."""
        heads_BMHd = self.qkv(self.attention_norm(x_BMD)).unflatten(
            -1, (self.heads + 2 * self.kv_heads, -1)
        )
        qk, v = heads_BMHd.tensor_split([self.heads + self.kv_heads], dim=2)
        if self.qk_norm:
            q, k = qk.tensor_split([self.heads], dim=2)
            qk = torch.cat([self.query_norm(q), self.key_norm(k)], dim=2)
        q, k = rotate(qk, rotation).transpose(1, 2).tensor_split([self.heads], dim=1)
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.number)
        if self.kv_heads != self.heads:  # kernels with a mask do not support groups
            k, v = (x.repeat_interleave(self.heads // self.kv_heads, dim=1) for x in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x_BMD = x_BMD + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x_BMD)).chunk(2, dim=-1)
        out_BMD: Tensor = self.down(F.silu(gate) * up)
        return x_BMD + out_BMD


def rotate(x_BMHd: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs (x_i, x_{i + d/2}) by the angles of the positions."""
    cos, sin = rotation
    return torch.addcmul(x_BMHd * cos, x_BMHd.roll(x_BMHd.shape[-1] // 2, -1), sin)
