"""log p(tokens) under softmax(hidden @ W^T + b), differentiable, a few rows' logits at a time.

    log p_j = l[token_j] - log Z,      d/dl sum_j g_j log p_j = sum_j g_j (onehot(token_j) - p)

Neither pass stores the logits of all rows: the forward pass keeps log Z, and the backward pass
computes the logits again, a chunk of rows at a time, and turns them into their own gradient in
place. Gradients of W and b are summed over chunks in at least float32.

Shapes: K rows, k rows of a chunk, D width, V data tokens, J tokens a row.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.kernel import HALF, fused_elementwise, product_dtype

# Logits held at once: few enough for a CPU's memory bus, enough to keep a GPU busy.
MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}
# Rows of logits begin at multiples of this, without which matrix products in half precision leave
# the fast path; and chunks are whole tiles.
ALIGN = 64
ROW_BLOCK, GRADIENT_BLOCK = 4096, 2048  # tokens that a program of the kernels works on at once


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
        head = _aligned_head(weight, bias, vocab, hidden_KD.dtype)
        inside_KJ = tokens_KJ < vocab
        token_KJ = torch.where(inside_KJ, tokens_KJ, 0)
        kind = torch.promote_types(hidden_KD.dtype, torch.float32)
        log_z_K = hidden_KD.new_empty(len(hidden_KD), dtype=kind)
        log_p_KJ = hidden_KD.new_empty(tokens_KJ.shape, dtype=kind)
        rows = _chunks(vocab, hidden_KD, token_KJ, log_z_K, log_p_KJ)
        for hidden_kD, token_kJ, log_z_k, log_p_kJ in rows:
            logits_kV = F.linear(hidden_kD, *head)
            log_z_k.copy_(_log_z(logits_kV, vocab))
            log_p_kJ.copy_(logits_kV.gather(1, token_kJ)).sub_(log_z_k[:, None])
        ctx.save_for_backward(hidden_KD, weight, bias, tokens_KJ, log_z_K)
        ctx.vocab = vocab
        return log_p_KJ.masked_fill_(~inside_KJ, -torch.inf)

    @staticmethod
    def backward(ctx: Any, grad_KJ: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden_KD, weight, bias, tokens_KJ, log_z_K = ctx.saved_tensors
        vocab: int = ctx.vocab
        head = _aligned_head(weight, bias, vocab, hidden_KD.dtype)
        # An id behind the vocabulary has log p = -inf, a constant.
        inside_KJ = tokens_KJ < vocab
        token_KJ = torch.where(inside_KJ, tokens_KJ, -1)
        grad_KJ = torch.where(inside_KJ, grad_KJ, 0.0).contiguous()
        total = torch.promote_types(weight.dtype, torch.float32)
        d_hidden_KD = torch.empty_like(hidden_KD)
        d_weight = torch.zeros(head[0].shape, dtype=total, device=weight.device)
        d_bias = torch.zeros(len(head[0]), dtype=total, device=weight.device)
        rows = _chunks(vocab, hidden_KD, token_KJ, grad_KJ, log_z_K, d_hidden_KD)
        for hidden_kD, token_kJ, grad_kJ, log_z_k, d_hidden_kD in rows:
            change_kV = F.linear(hidden_kD, *head)
            _logits_to_gradient(change_kV, log_z_k, token_kJ, grad_kJ, vocab)
            torch.mm(change_kV, head[0], out=d_hidden_kD)
            d_weight += change_kV.T @ hidden_kD
            if bias is not None:
                d_bias += change_kV.sum(0, dtype=total)
        size = len(weight)
        d_weight = _fit(d_weight, vocab, size).to(weight.dtype)
        if bias is None:
            return d_hidden_KD, d_weight, None, None, None
        return d_hidden_KD, d_weight, _fit(d_bias, vocab, size).to(bias.dtype), None, None


def _chunks(vocab: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors cut along their rows alike, into chunks of a bounded number of logits."""
    elements = MAX_ELEMENTS.get(tensors[0].device.type, MAX_ELEMENTS["cpu"])
    rows = max(1, elements // vocab)
    rows = rows // ALIGN * ALIGN if rows > ALIGN else rows
    return zip(*(x.split(rows) for x in tensors), strict=True)


def _aligned_head(
    weight: Tensor, bias: Tensor | None, vocab: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the data tokens in `dtype`, filled up with zero rows to the alignment."""
    size = vocab + -vocab % ALIGN if dtype in HALF else vocab
    return _fit(weight.to(dtype), vocab, size), (
        None if bias is None else _fit(bias.to(dtype), vocab, size)
    )


def _fit(x: Tensor, keep: int, size: int) -> Tensor:
    """The first `keep` rows of x, and zeros up to `size` rows."""
    if keep == size == len(x):
        return x
    fitted = x.new_zeros(size, *x.shape[1:])
    fitted[:keep] = x[:keep]
    return fitted


def _log_z(logits_kV: Tensor, vocab: int) -> Tensor:
    """log sum exp [k] of the data tokens' logits, in at least float32."""
    if not fused_elementwise(logits_kV):
        full = logits_kV.to(torch.promote_types(logits_kV.dtype, torch.float32))
        return full[:, :vocab].logsumexp(-1)
    from cwdfm.kernel.triton_head import row_log_z

    log_z_k = torch.empty(len(logits_kV), dtype=torch.float32, device=logits_kV.device)
    row_log_z[(len(logits_kV),)](
        logits_kV, log_z_k, logits_kV.stride(0), VOCAB=vocab, BLOCK=ROW_BLOCK, num_warps=8
    )
    return log_z_k


def _logits_to_gradient(
    logits_kV: Tensor, log_z_k: Tensor, token_kJ: Tensor, grad_kJ: Tensor, vocab: int
) -> None:
    """Overwrite logits by d/dl sum_j g_j log p(token_j); token -1 stands for none."""
    grad_sum_k = grad_kJ.sum(1)
    if fused_elementwise(logits_kV):
        from cwdfm.kernel.triton_head import softmax_gradient

        softmax_gradient[(len(logits_kV), -(-logits_kV.shape[1] // GRADIENT_BLOCK))](
            logits_kV,
            log_z_k,
            grad_sum_k,
            token_kJ.contiguous(),
            grad_kJ,
            logits_kV.stride(0),
            vocab,
            J=token_kJ.shape[1],
            BLOCK=GRADIENT_BLOCK,
            num_warps=4,
        )
        return
    change = (logits_kV[:, :vocab].to(log_z_k.dtype) - log_z_k[:, None]).exp()
    change *= -grad_sum_k[:, None]
    change.scatter_add_(1, token_kJ.clamp(min=0), grad_kJ.to(change.dtype))  # none has gradient 0
    logits_kV[:, :vocab] = change
