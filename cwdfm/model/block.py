"""The transformer block and its adaptive layer norms (adaLN-zero).

Shapes: B batch, N length, D width, H heads, d = D / H, C conditioning width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.model.attention import AttentionFn, attend
from cwdfm.ops.adaptive_norm import Residual, add_norm
from cwdfm.ops.dispatch import fused_gelu, onednn_gelu
from cwdfm.ops.precision import product_dtype


class Block(nn.Module):
    """Pre-norm attention and MLP on a residual stream.

    With a time embedding of width `conditioning`, shift and scale modulate the norms, and gates
    scale the residual branches. A residual branch is added by the same kernel as the next norm, so
    each block returns its last branch as pending, for the next block or the final norm to add.
    """

    def __init__(
        self, width: int, heads: int, mlp_ratio: int, dropout: float, conditioning: int | None
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
        self.modulation = modulation_layer(conditioning, 6 * width)

    def forward(
        self,
        h_BND: Tensor,
        pending: Residual | None,
        c_BC: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        attention: AttentionFn,
    ) -> tuple[Tensor, Residual]:
        """Map the residual stream and the pending branch of the previous block to its own."""
        vectors = modulation_vectors(self.modulation, c_BC, 6)
        h_BND, attended_BND = self.attend(h_BND, pending, c_BC, rotation, attention, vectors)
        return self.pointwise(h_BND, attended_BND, c_BC, vectors)

    def attend(
        self,
        h_BND: Tensor,
        pending: Residual | None,
        c_BC: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        attention: AttentionFn,
        vectors: Sequence[Tensor | None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream and the attention output before its projection, both [B, N, D]."""
        shift, scale, *_ = vectors or modulation_vectors(self.modulation, c_BC, 6)
        dropout = self.dropout if self.training else 0.0
        h_BND, x_BND = add_norm(h_BND, pending, self.norm1, shift, scale, dropout)
        qkv_BN3Hd = self.qkv(x_BND).unflatten(-1, (3, self.heads, -1))
        return h_BND, attend(qkv_BN3Hd, rotation, attention).flatten(2)

    def pointwise(
        self,
        h_BND: Tensor,
        attended_BND: Tensor,
        c_BC: Tensor | None,
        vectors: Sequence[Tensor | None] | None = None,
    ) -> tuple[Tensor, Residual]:
        """Everything after attention, which processes each coordinate independently.

        Returns the residual stream and the pending MLP branch.
        """
        _, _, gate1, shift, scale, gate2 = vectors or modulation_vectors(self.modulation, c_BC, 6)
        dropout = self.dropout if self.training else 0.0
        branch = Residual(self.out(attended_BND), gate1)
        h_BND, x_BND = add_norm(h_BND, branch, self.norm2, shift, scale, dropout)
        gate2 = None if gate2 is None else _untracked(gate2)
        return h_BND, Residual(_untracked(self.down(linear_gelu(x_BND, self.up))), gate2)


def linear_gelu(x: Tensor, layer: nn.Linear) -> Tensor:
    """GELU (tanh approximation) of layer(x), [..., out_features] for x [..., in_features].

    Without gradients, cuBLAS or oneDNN applies bias and GELU in the epilogue of the matrix product.
    With gradients the pre-activation has to be stored anyway, and torch.compile fuses the rest.
    """
    if onednn_gelu(x):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, layer.weight, layer.bias, "gelu", [], "tanh"
        )
        return product
    if not fused_gelu(x):
        return F.gelu(layer(x), approximate="tanh")
    x, weight, bias = (v.to(product_dtype(x)) for v in (x, layer.weight, layer.bias))
    flat = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    return flat.view(*x.shape[:-1], flat.shape[-1])


def zero_init(layer: nn.Linear) -> nn.Linear:
    """Set weight and bias of a layer to zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def modulation_layer(conditioning: int | None, width: int) -> nn.Linear | None:
    """A linear map of the time embedding, initialized to zero; None without conditioning."""
    return None if conditioning is None else zero_init(nn.Linear(conditioning, width))


def modulation_vectors(
    layer: nn.Linear | None, c_BC: Tensor | None, count: int
) -> Sequence[Tensor] | Sequence[None]:
    """`count` vectors [B, 1, D] from the time embedding, or `count` Nones without conditioning."""
    if layer is None or c_BC is None:
        return (None,) * count
    vectors: Tensor = layer(c_BC)
    return vectors[:, None].chunk(count, dim=-1)


def _untracked(x: Tensor) -> Tensor:
    """x, no longer marked as a view.

    FSDP2 warns about modules that return views, because in-place changes would detach its hooks.
    The outputs here are never changed in place.
    """
    out: Tensor = torch.ops.aten._unsafe_view(x, x.shape)
    return out
