"""sum_k w_k (-log p(token_k)) under softmax(hidden @ W^T + b), with gradients in one pass.

The weights are known before the logits are, and with them the gradient of the logits,

    d/dl_k = w_k (p_k - onehot(token_k)),

up to the one factor that the backward pass brings. So the forward pass, which has a chunk's logits
at hand, turns them into it and takes their products with W and the hidden vectors at once: three
products in all, where `head_log_prob` needs a fourth to compute the logits again.

Shapes: K rows, k rows of a chunk, D width, V data tokens.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cwdfm.ops import product_dtype, sum_dtype
from cwdfm.ops.head_rows import GradientSums, aligned_head, chunks, softmax_rows


def head_cross_entropy(
    hidden_KD: Tensor, readout: nn.Linear, tokens_K: Tensor, weights_K: Tensor, vocab: int
) -> Tensor:
    """sum_k w_k (-log p(token_k)) over the first `vocab` ids, a scalar in at least float32.

    A row of weight 0 adds nothing; an id behind the vocabulary has log p = -inf, and no gradient.
    Nor have the weights. Products work in autocast's dtype or the hidden vectors' own.
    """
    hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
    head = (readout.weight, readout.bias)
    # Told from here, since inside a Function gradients are always off.
    arguments = (hidden_KD, *head, tokens_K, weights_K, vocab, torch.is_grad_enabled())
    value: Tensor = _HeadCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return value


class _HeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_KD: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens_K: Tensor,
        weights_K: Tensor,
        vocab: int,
        trains: bool,
    ) -> Tensor:
        trains = trains and any(ctx.needs_input_grad)
        head = aligned_head(weight, bias, vocab, hidden_KD.dtype)
        inside_K = tokens_K < vocab
        token_K1 = torch.where(inside_K, tokens_K, 0)[:, None]
        kind = sum_dtype(hidden_KD)
        weights_K = weights_K.to(kind)
        grad_K1 = torch.where(inside_K, -weights_K, 0.0)[:, None]
        log_p_K1 = hidden_KD.new_empty(token_K1.shape, dtype=kind)
        sums = GradientSums(hidden_KD, weight, bias, head[0]) if trains else None
        rows = chunks(vocab, hidden_KD, token_K1, grad_K1, log_p_K1)
        for hidden_kD, token_k1, grad_k1, log_p_k1 in rows:
            logits_kV = F.linear(hidden_kD, *head)
            log_p_k1.copy_(logits_kV.gather(1, token_k1))
            change = None if sums is None else (token_k1, grad_k1)
            log_p_k1.sub_(softmax_rows(logits_kV, vocab, change=change)[:, None])
            if sums is not None:
                sums.add(logits_kV, hidden_kD)
        if sums is not None:
            ctx.save_for_backward(sums.d_hidden_KD, sums.total)
            ctx.shape, ctx.dtype, ctx.has_bias = weight.shape, weight.dtype, bias is not None
        log_p_K = log_p_K1[:, 0].masked_fill_(~inside_K, -torch.inf)
        return torch.where(weights_K == 0, 0.0, -weights_K * log_p_K).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_KD, total = ctx.saved_tensors
        (size, width), dtype = ctx.shape, ctx.dtype
        d_hidden_KD = _scaled(d_hidden_KD, factor, d_hidden_KD.dtype)
        d_weight = _scaled(total[:size, :width], factor, dtype)
        d_bias = _scaled(total[:size, width], factor, dtype) if ctx.has_bias else None
        return d_hidden_KD, d_weight, d_bias, None, None, None, None


def _scaled(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """x times a scalar, in `dtype`."""
    # Of one dimension, since CUDA would first round a factor of none to x's half precision.
    scaled = torch.empty(x.shape, dtype=dtype, device=x.device)
    return torch.mul(x, factor.reshape(1), out=scaled)
