"""log p(tokens) under softmax(hidden @ W^T + b), differentiable, a few rows' logits at a time.

    log p_j = l[token_j] - log Z

Neither pass stores the logits of all rows: the forward pass keeps log Z, and the backward pass
computes the logits again, a chunk of rows at a time. `head_cross_entropy` spares that where the
gradient is known beforehand.

Shapes: K rows, k rows of a chunk, D width, V data tokens, J tokens a row.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.ops import product_dtype, sum_dtype
from cwdfm.ops.head_rows import GradientSums, aligned_head, chunks, softmax_rows


def head_log_prob(hidden_KD: Tensor, readout: nn.Linear, tokens_KJ: Tensor, vocab: int) -> Tensor:
    """log p(tokens) [K, J] over the first `vocab` ids; -inf for an id behind them.

    Products work in autocast's dtype or the hidden vectors' own, the rest in at least float32.
    """
    hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
    arguments = (hidden_KD, readout.weight, readout.bias, tokens_KJ, vocab)
    log_p_KJ: Tensor = _HeadLogProb.apply(*arguments)  # type: ignore[no-untyped-call]
    return log_p_KJ


class _HeadLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_KD: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens_KJ: Tensor,
        vocab: int,
    ) -> Tensor:
        head = aligned_head(weight, bias, vocab, hidden_KD.dtype)
        inside_KJ = tokens_KJ < vocab
        token_KJ = torch.where(inside_KJ, tokens_KJ, 0)
        kind = sum_dtype(hidden_KD)
        log_z_K = hidden_KD.new_empty(len(hidden_KD), dtype=kind)
        log_p_KJ = hidden_KD.new_empty(tokens_KJ.shape, dtype=kind)
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
        # An id behind the vocabulary has log p = -inf, a constant: any token, without gradient.
        inside_KJ = tokens_KJ < vocab
        token_KJ = torch.where(inside_KJ, tokens_KJ, 0)
        grad_KJ = torch.where(inside_KJ, grad_KJ, 0.0)
        sums = GradientSums(hidden_KD, weight, bias, head[0])
        rows = chunks(vocab, hidden_KD, token_KJ, grad_KJ, log_z_K)
        for hidden_kD, token_kJ, grad_kJ, log_z_k in rows:
            logits_kV = F.linear(hidden_kD, *head)
            softmax_rows(logits_kV, vocab, log_z_k, change=(token_kJ, grad_kJ))
            sums.add(logits_kV, hidden_kD)
        size, width = weight.shape
        d_weight = sums.total[:size, :width].to(weight.dtype).contiguous()
        d_bias = None if bias is None else sums.total[:size, width].to(bias.dtype)
        return sums.d_hidden_KD, d_weight, d_bias, None, None
