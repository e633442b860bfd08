"""The diffusion transformer of MDLM (Sahoo et al. 2024), which the paper trains.

Bidirectional attention with rotary positions; time enters through adaptive layer norms whose gates
start at zero, so that every block starts as the identity and the first loss is exactly ln V. All
that depends on time or other coordinates is in `trunk`; `head` is one linear map.

Shapes: B batch, N length, D width, H heads, C conditioning width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import InputError, check_positive

FREQUENCIES = 256
MAX_PERIOD = 10_000.0
ROTARY_BASE = 10_000.0

# What may be made of hidden vectors [B, N, D] and the head in place of logits.
Read = Callable[[Tensor, nn.Linear], Tensor]


@dataclass(frozen=True)
class DiTConfig:
    """The transformer's shape.

    With `positions` > 0 a learned vector for each of that many absolute positions is added to the
    tokens. Without, positions are known by rotation alone, as in the paper: then a fully masked
    sequence looks the same everywhere, and the model cannot tell its first place from its last.
    """

    num_tokens: int
    width: int = 768
    depth: int = 12
    heads: int = 12
    conditioning: int = 128
    mlp_ratio: int = 4
    dropout: float = 0.1
    positions: int = 0

    def __post_init__(self) -> None:
        for name in ("num_tokens", "width", "depth", "heads", "conditioning", "mlp_ratio"):
            check_positive(name, getattr(self, name), "an integer >= 1")
        if self.width % (2 * self.heads):
            raise InputError(
                f"width must be a multiple of twice the heads (rotations work on pairs), got width "
                f"{self.width} with {self.heads} heads"
            )
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must lie in [0, 1), got {self.dropout}")
        if self.positions < 0:
            raise InputError(f"positions must be >= 0 (0: rotary alone), got {self.positions}")


class DiT(nn.Module):
    """x_t, t -> logits of p_{1|t}, [B, N, num_tokens]."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.num_tokens, config.width))
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))
        self.position: nn.Parameter | None = None
        if config.positions:
            self.position = nn.Parameter(torch.randn(config.positions, config.width) * 0.02)
        self.time = TimeEmbedding(config.conditioning)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.modulation = zeroed(nn.Linear(config.conditioning, 2 * config.width))
        self.readout = zeroed(nn.Linear(config.width, config.num_tokens))

    def forward(self, x_t: Tensor, t: Tensor, read: Read | None = None) -> Tensor:
        """Logits; or read(hidden, readout), say a loss that never stores them.

        That happens in here, because DDP and FSDP2 ready the weights, and watch for gradients, by
        hooks around this call.
        """
        hidden_BND = self.trunk(x_t, t)
        return self.head(hidden_BND) if read is None else read(hidden_BND, self.readout)

    def compile_trunk(self, *, by_block: bool) -> None:
        """torch.compile what comes before the head, in place: all in one, or a block at a time.

        By block, one graph serves all blocks and is there in seconds; the hooks that DDP and FSDP2
        put around blocks stay outside, and gradients are exchanged while earlier blocks still
        compute theirs.
        """
        if not by_block:
            self.trunk = torch.compile(self.trunk)  # type: ignore[method-assign]
            return
        for block in self.blocks:
            block.forward = torch.compile(block.forward)

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Hidden vectors [B, N, D], the final norm and its modulation included."""
        h_BND = F.embedding(x_t, self.embedding)
        if self.position is not None:
            h_BND = h_BND + self.position[: self._check_length(x_t.shape[1])]
        c_BC = self.time(t)
        rotation = rotary(x_t.shape[1], self.config.width // self.config.heads, x_t.device)
        for block in self.blocks:
            h_BND = block(h_BND, c_BC, rotation)
        shift, scale = self.modulation(c_BC)[:, None].chunk(2, dim=-1)
        return modulate(self.norm(h_BND), shift, scale)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., num_tokens] of hidden vectors [..., D]."""
        logits: Tensor = self.readout(hidden)
        return logits

    def _check_length(self, length: int) -> int:
        if length > self.config.positions:
            raise InputError(
                f"this model has learned {self.config.positions} positions and was given a "
                f"sequence of {length}; cut the sequence, or train with positions >= {length} or 0"
            )
        return length


class Block(nn.Module):
    """Attention and MLP, each behind a modulated norm and a gate, each added to the stream."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        width, inner = config.width, config.mlp_ratio * config.width
        self.heads, self.dropout = config.heads, config.dropout
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.modulation = zeroed(nn.Linear(config.conditioning, 6 * width))

    def forward(self, h_BND: Tensor, c_BC: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c_BC)[:, None].chunk(6, -1)
        attended = self._attention(modulate(self.norm1(h_BND), shift1, scale1), rotation)
        h_BND = h_BND + gate1 * F.dropout(attended, self.dropout, self.training)
        inner = self.up(modulate(self.norm2(h_BND), shift2, scale2))
        moved = self.down(F.gelu(inner, approximate="tanh"))
        changed: Tensor = h_BND + gate2 * F.dropout(moved, self.dropout, self.training)
        return changed

    def _attention(self, x_BND: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        qkv_3BHNd = self.qkv(x_BND).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv_3BHNd.unbind(0)
        mixed = F.scaled_dot_product_attention(rotate(q, rotation), rotate(k, rotation), v)
        attended: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return attended


class TimeEmbedding(nn.Module):
    """A sinusoid of t, two linear maps, and the activation in front of every modulation."""

    def __init__(self, conditioning: int) -> None:
        super().__init__()
        self.first = nn.Linear(FREQUENCIES, conditioning)
        self.second = nn.Linear(conditioning, conditioning)

    def forward(self, t_B: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        exponent = torch.arange(half, device=t_B.device, dtype=torch.float32) / half
        angle = t_B.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponent)
        wave = torch.cat([angle.cos(), angle.sin()], dim=-1)
        conditioning: Tensor = F.silu(self.second(F.silu(self.first(wave))))
        return conditioning


def zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer with weight and bias set to zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Adaptive layer norm's affine map."""
    return x * (1 + scale) + shift


def rotary(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, head width] of the rotations by position."""
    exponent = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    angle = torch.outer(
        torch.arange(length, device=device, dtype=torch.float32), ROTARY_BASE**-exponent
    ).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs (i, i + half) of the last axis by their position's angles."""
    cos, sin = (r.to(x.dtype) for r in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
