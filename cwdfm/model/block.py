"""One block of the transformer, and what adaptive norms make of a time.

Shapes: B batch, N length, D width, H heads, d = D / H, C conditioning width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cwdfm.model.attention import Mix, attend
from cwdfm.ops.adaptive_norm import Addition, add_norm
from cwdfm.ops.gelu import linear_gelu


class Block(nn.Module):
    """Attention and MLP, each behind a norm, each added to the stream.

    With a time, norms are modulated by its vector of width `conditioning`, and what is added is
    gated. An addition and the norm that comes after it are one pass over the stream, so the last
    addition is left to whoever has that norm.
    """

    def __init__(
        self, width: int, heads: int, mlp_ratio: int, dropout: float, *, conditioning: int | None
    ) -> None:
        super().__init__()
        inner = mlp_ratio * width
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.modulation: nn.Linear | None = None
        if conditioning is not None:
            self.modulation = zeroed(nn.Linear(conditioning, 6 * width))

    def forward(
        self,
        h_BND: Tensor,
        pending: Addition | None,
        c_BC: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        mix: Mix,
    ) -> tuple[Tensor, Addition]:
        """The stream, and what is still to be added to it, as the block before left `pending`."""
        vectors = modulations(self.modulation, c_BC, 6)
        mixed = self.attend(h_BND, pending, c_BC, rotation, mix, vectors)
        return self.finish(*mixed, c_BC, vectors)

    def attend(
        self,
        h_BND: Tensor,
        pending: Addition | None,
        c_BC: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        mix: Mix,
        vectors: Sequence[Tensor | None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The stream, and what attention mixed, both [B, N, D]."""
        shift, scale, *_ = vectors or modulations(self.modulation, c_BC, 6)
        dropout = self.dropout if self.training else 0.0
        h_BND, x_BND = add_norm(h_BND, pending, self.norm1, shift, scale, dropout)
        qkv_BN3Hd = self.qkv(x_BND).unflatten(-1, (3, self.heads, -1))
        return h_BND, attend(qkv_BN3Hd, rotation, mix).flatten(2)

    def finish(
        self,
        h_BND: Tensor,
        mixed_BND: Tensor,
        c_BC: Tensor | None,
        vectors: Sequence[Tensor | None] | None = None,
    ) -> tuple[Tensor, Addition]:
        """What comes after attention, each coordinate on its own."""
        _, _, gate1, shift, scale, gate2 = vectors or modulations(self.modulation, c_BC, 6)
        dropout = self.dropout if self.training else 0.0
        attended = Addition(self.out(mixed_BND), gate1)
        h_BND, x_BND = add_norm(h_BND, attended, self.norm2, shift, scale, dropout)
        gate2 = None if gate2 is None else unviewed(gate2)
        return h_BND, Addition(unviewed(self._mlp(x_BND)), gate2)

    def _mlp(self, x_BND: Tensor) -> Tensor:
        moved: Tensor = self.down(linear_gelu(x_BND, self.up))
        return moved


def zeroed(layer: nn.Linear) -> nn.Linear:
    """The layer with weight and bias set to zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def modulations(
    layer: nn.Linear | None, c_BC: Tensor | None, count: int
) -> Sequence[Tensor] | Sequence[None]:
    """What a time's vector becomes, `count` times [B, 1, D]; None each without one."""
    if layer is None or c_BC is None:
        return (None,) * count
    vectors: Tensor = layer(c_BC)
    return vectors[:, None].chunk(count, dim=-1)


def unviewed(x: Tensor) -> Tensor:
    """x, which is no longer known to be a view.

    FSDP2 warns of modules that return views: its hooks would not survive a change in place. Here
    nothing is changed in place.
    """
    same: Tensor = torch.ops.aten._unsafe_view(x, x.shape)
    return same
