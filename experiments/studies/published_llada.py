"""LLaDA's published algorithm: a full forward pass with all logits in every step.

The network has the structure and the precision of the published one: elementary operations for
norms and rotations in float32, one matrix product per projection. It shares the weights of a
`Decoder`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.model.decoder import Decoder


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm in float32, as a sequence of elementary operations."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in float32."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def published_logits(decoder: Decoder, ids_BN: Tensor) -> Tensor:
    """Logits of all positions, with one matrix product per projection."""
    config = decoder.config
    x = decoder.embedding(ids_BN)
    width = config.head_width
    even = torch.arange(0, width, 2, device=x.device).float() / width
    angle = torch.arange(ids_BN.shape[1], device=x.device).float()[:, None] / (
        config.rope_base**even
    )
    cos, sin = (torch.cat((part, part), dim=-1) for part in (angle.cos(), angle.sin()))
    sizes = [heads * width for heads in (config.heads, config.kv_heads, config.kv_heads)]
    layers: Any = decoder.layers
    for layer in layers:
        normed = rms_norm(x, layer.attention_norm.weight, config.norm_epsilon)
        parts = [F.linear(normed, weight) for weight in layer.qkv.weight.split(sizes)]
        q, k, v = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + layer.out(attended)
        normed = rms_norm(x, layer.mlp_norm.weight, config.norm_epsilon)
        gate, up = (F.linear(normed, weight) for weight in layer.gate_up.weight.chunk(2))
        x = x + layer.down(F.silu(gate) * up)
    logits: Tensor = decoder.readout(rms_norm(x, decoder.norm.weight, config.norm_epsilon))
    return logits


def published_step(decoder: Decoder, x_BN: Tensor, mask_id: int, end: int, count: int) -> None:
    """Reveal the `count` most confident tokens before column `end`, at temperature 0."""
    masked_BN = x_BN == mask_id
    logits_BNV = published_logits(decoder, x_BN)
    token_BN = logits_BNV.argmax(dim=-1)
    p_BNV = F.softmax(logits_BNV, dim=-1)
    confidence_BN = p_BNV.gather(-1, token_BN[..., None])[..., 0].float()
    confidence_BN[:, end:] = -torch.inf
    confidence_BN = confidence_BN.masked_fill(~masked_BN, -torch.inf)
    chosen_BN = torch.zeros_like(masked_BN)
    for row in range(len(x_BN)):
        best = confidence_BN[row].topk(count).indices
        chosen_BN[row, best] = True
    x_BN[chosen_BN] = token_BN[chosen_BN]
