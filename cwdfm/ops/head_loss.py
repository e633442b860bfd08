"""Log-probabilities and cross-entropy under softmax(hidden @ W^T + b), without storing all logits.

    log p_j = l[token_j] - log Z

Logits are computed for one chunk of rows at a time. `head_log_prob` stores log Z, and its backward
pass recomputes the logits. `head_cross_entropy` avoids that: its weights are known in advance, and
with them the gradient of the logits,

    d/dl_k = w_k (p_k - onehot(token_k)),

up to the scalar factor of the backward pass. Its forward pass therefore overwrites the logits of a
chunk with their gradient and immediately multiplies it by W and by the hidden vectors: three matrix
products instead of four.

Shapes: K rows, k rows of a chunk, D width, V data tokens, J tokens per row.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cwdfm.ops.head_rows import GradientSums, aligned_head, chunks, softmax_rows
from cwdfm.ops.precision import product_dtype, sum_dtype


def head_log_prob(hidden_KD: Tensor, readout: nn.Linear, tokens_KJ: Tensor, vocab: int) -> Tensor:
    """log p(tokens) [K, J] over the first `vocab` ids; -inf for other ids.

    Products are in autocast's dtype or that of `hidden_KD`, everything else in at least float32.
    """
    hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
    arguments = (hidden_KD, readout.weight, readout.bias, tokens_KJ, vocab)
    log_p_KJ: Tensor = _HeadLogProb.apply(*arguments)  # type: ignore[no-untyped-call]
    return log_p_KJ


class _HeadLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_KD: Tensor, *rest: Any) -> Tensor:
        weight, bias, tokens_KJ, vocab = rest
        head = aligned_head(weight, bias, vocab, hidden_KD.dtype)
        inside_KJ = tokens_KJ < vocab
        token_KJ = torch.where(inside_KJ, tokens_KJ, 0)
        dtype = sum_dtype(hidden_KD)
        log_z_K = hidden_KD.new_empty(len(hidden_KD), dtype=dtype)
        log_p_KJ = hidden_KD.new_empty(tokens_KJ.shape, dtype=dtype)
        rows = chunks(vocab, hidden_KD, token_KJ, log_z_K, log_p_KJ)
        for hidden_kD, token_kJ, log_z_k, log_p_kJ in rows:
            logits_kV = F.linear(hidden_kD, *head)
            log_z_k.copy_(softmax_rows(logits_kV, vocab))
            log_p_kJ.copy_(logits_kV.gather(1, token_kJ)).sub_(log_z_k[:, None])
        ctx.save_for_backward(hidden_KD, weight, bias, tokens_KJ, log_z_K)
        ctx.vocab = vocab
        return log_p_KJ.masked_fill_(~inside_KJ, -torch.inf)

    @staticmethod
    def backward(ctx: Any, grad_KJ: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden_KD, weight, bias, tokens_KJ, log_z_K = ctx.saved_tensors
        vocab: int = ctx.vocab
        head = aligned_head(weight, bias, vocab, hidden_KD.dtype)
        # An id outside the vocabulary has constant log p = -inf: use token 0 with gradient 0.
        inside_KJ = tokens_KJ < vocab
        token_KJ = torch.where(inside_KJ, tokens_KJ, 0)
        grad_KJ = torch.where(inside_KJ, grad_KJ, 0.0)
        sums = GradientSums(hidden_KD, weight, bias, head[0])
        rows = chunks(vocab, hidden_KD, token_KJ, grad_KJ, log_z_K)
        for hidden_kD, token_kJ, grad_kJ, log_z_k in rows:
            logits_kV = F.linear(hidden_kD, *head)
            softmax_rows(logits_kV, vocab, log_z_k, targets=(token_kJ, grad_kJ))
            sums.add(logits_kV, hidden_kD)
        size, width = weight.shape
        d_weight = sums.total[:size, :width].to(weight.dtype).contiguous()
        d_bias = None if bias is None else sums.total[:size, width].to(bias.dtype).contiguous()
        return sums.d_hidden_KD, d_weight, d_bias, None, None


def head_cross_entropy(
    hidden_KD: Tensor, readout: nn.Linear, tokens_K: Tensor, weights_K: Tensor, vocab: int
) -> Tensor:
    """sum_k w_k (-log p(token_k)) over the first `vocab` ids, a scalar in at least float32.

    Rows of weight 0 contribute nothing. An id outside the vocabulary has log p = -inf and no
    gradient. Weights are not differentiated. Products are in autocast's dtype or that of
    `hidden_KD`.
    """
    hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
    head = (readout.weight, readout.bias)
    # Queried here, because gradients are always disabled inside a Function.
    arguments = (hidden_KD, *head, tokens_K, weights_K, vocab, torch.is_grad_enabled())
    value: Tensor = _HeadCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return value


class _HeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_KD: Tensor, *rest: Any) -> Tensor:
        weight, bias, tokens_K, weights_K, vocab, needs_grad = rest
        needs_grad = needs_grad and any(ctx.needs_input_grad)
        head = aligned_head(weight, bias, vocab, hidden_KD.dtype)
        inside_K = tokens_K < vocab
        token_K1 = torch.where(inside_K, tokens_K, 0)[:, None]
        dtype = sum_dtype(hidden_KD)
        weights_K = weights_K.to(dtype)
        grad_K1 = torch.where(inside_K, -weights_K, 0.0)[:, None]
        log_p_K1 = hidden_KD.new_empty(token_K1.shape, dtype=dtype)
        sums = GradientSums(hidden_KD, weight, bias, head[0]) if needs_grad else None
        rows = chunks(vocab, hidden_KD, token_K1, grad_K1, log_p_K1)
        for hidden_kD, token_k1, grad_k1, log_p_k1 in rows:
            logits_kV = F.linear(hidden_kD, *head)
            log_p_k1.copy_(logits_kV.gather(1, token_k1))
            targets = None if sums is None else (token_k1, grad_k1)
            log_p_k1.sub_(softmax_rows(logits_kV, vocab, targets=targets)[:, None])
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
    # reshape(1), because CUDA would round a zero-dimensional factor to the half precision of x.
    scaled = torch.empty(x.shape, dtype=dtype, device=x.device)
    return torch.mul(x, factor.reshape(1), out=scaled)
