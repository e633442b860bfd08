"""The operations between the matrix products of a decoder, and statistics of its logits.

On a GPU, without gradients, each is a single kernel that reads its inputs once. This matters in
large models, which are limited by memory traffic, and in steps of a few tokens, which are limited
by kernel launches.

Shapes: B batch, M tokens, N columns of a cache, H heads, G key-value heads, d head width, D width,
F width of the MLP, K rows, V ids.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.ops.attention import rotate_tokens
from cwdfm.ops.dispatch import fused_rotary, next_power_of_2

MAX_WIDTH = 8192  # limit of the norm, where one program holds a row in registers
BLOCK, ROW_BLOCK = 1024, 4096  # elements per program, and per iteration over a row of logits
HEADS_TOGETHER = 8  # heads per program


def fused_decoder(x: Tensor) -> bool:
    """Whether x is processed by Triton kernels."""
    return not torch.is_grad_enabled() and fused_rotary(x)


def add_rms_norm(h_BMD: Tensor, y_BMD: Tensor | None, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    """Return h' = h + y and norm(h')."""
    if not fused_decoder(h_BMD) or h_BMD.shape[-1] > MAX_WIDTH:
        h_BMD = h_BMD if y_BMD is None else h_BMD + y_BMD
        x_BMD: Tensor = norm(h_BMD)
        return h_BMD, x_BMD
    from cwdfm.ops import triton_decoder

    h_BMD, width = h_BMD.contiguous(), h_BMD.shape[-1]
    total_BMD = h_BMD if y_BMD is None else torch.empty_like(h_BMD)
    x_BMD, y_BMD = torch.empty_like(h_BMD), None if y_BMD is None else y_BMD.contiguous()
    block = next_power_of_2(width)
    with torch.cuda.device_of(h_BMD):
        triton_decoder.add_rms_norm[(h_BMD.numel() // width,)](
            h_BMD, y_BMD, norm.weight, total_BMD, x_BMD, norm.eps, WIDTH=width, BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
    return total_BMD, x_BMD


def silu_product(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [..., F], with gate and up packed as [..., 2 F]."""
    if not fused_decoder(gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    from cwdfm.ops import triton_decoder

    gate_up, width = gate_up.contiguous(), gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    block = min(BLOCK, next_power_of_2(width))
    with torch.cuda.device_of(out):
        triton_decoder.silu_product[(out.numel() // width, -(-width // block))](
            gate_up, out, WIDTH=width, BLOCK=block, num_warps=max(1, block // 256)
        )
    return out


def rotate_heads(x_BMHd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_i, x_{i + d/2}) of all heads by cos and sin [B, M, d], float32."""
    if fused_decoder(x_BMHd) and x_BMHd.shape[2] % 2 == 0:
        return rotate_tokens(x_BMHd, cos, sin)
    cos, sin = (table[:, :, None].to(x_BMHd.dtype) for table in (cos, sin))
    half = x_BMHd.shape[-1] // 2
    sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
    return torch.addcmul(x_BMHd * cos, x_BMHd.roll(half, -1), sin)


def rotate_and_store(
    qkv_BMTd: Tensor, cos: Tensor, sin: Tensor, place_M: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Rotated queries [B, M, H, d] of T = H + 2 G heads; keys and values go to a cache.

    The tokens are the columns place_M of the cache, whose parts are [B, G, N, d]. GPU kernel only.
    """
    from cwdfm.ops import triton_decoder

    batch, tokens, total, width = qkv_BMTd.shape
    kv_heads, columns = keys.shape[1:3]
    heads = total - 2 * kv_heads
    queries = qkv_BMTd.new_empty(batch, tokens, heads, width)
    with torch.cuda.device_of(queries):
        triton_decoder.rotate_and_store[(batch * tokens, -(-total // HEADS_TOGETHER))](
            qkv_BMTd.contiguous(), cos.contiguous(), sin.contiguous(), place_M, queries, keys,
            values, tokens, columns, HEADS=heads, KV_HEADS=kv_heads, HALF=width // 2,
            BLOCK_HALF=next_power_of_2(width // 2), GROUP=HEADS_TOGETHER, num_warps=2,
        )  # fmt: skip
    return queries


def softcap(raw: Tensor, cap: float, temperature: float) -> tuple[Tensor, Tensor]:
    """Logits cap * tanh(raw / cap), float32, and the same divided by `temperature`, in raw's dtype.

    `raw` may be overwritten, to save a copy of the vocabulary's width.
    """
    if not fused_decoder(raw) or not raw.is_contiguous():
        logits = (raw.float() / cap).tanh_().mul_(cap)
        return logits, (logits / temperature).to(raw.dtype)
    from cwdfm.ops import triton_decoder

    logits = torch.empty_like(raw, dtype=torch.float32)
    with torch.cuda.device_of(raw):
        triton_decoder.softcap[(-(-raw.numel() // BLOCK),)](
            raw, logits, cap, 1.0 / temperature, raw.numel(), BLOCK=BLOCK
        )
    return logits, raw


def row_summary(logits_KV: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy in nats and largest probability [K] of softmax(logits), float32; GPU kernel only."""
    from cwdfm.ops import triton_decoder

    logits_KV = logits_KV if logits_KV.stride(1) == 1 else logits_KV.contiguous()
    rows, vocab = logits_KV.shape
    entropy, confidence = torch.empty(2, rows, dtype=torch.float32, device=logits_KV.device)
    block = min(ROW_BLOCK, next_power_of_2(vocab))
    if rows:
        with torch.cuda.device_of(logits_KV):
            triton_decoder.summarize_row[(rows,)](
                logits_KV, entropy, confidence, logits_KV.stride(0), vocab, BLOCK=block,
                num_warps=min(16, max(1, block // 256)),
            )  # fmt: skip
    return entropy, confidence
