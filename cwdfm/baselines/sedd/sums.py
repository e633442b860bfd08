"""What score entropy needs of a row of logits: three numbers, whatever the vocabulary.

Shapes: K rows, k rows of a chunk, D width, V data tokens.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cwdfm.ops.head_loss import head_log_prob
from cwdfm.ops.head_rows import MAX_ELEMENTS
from cwdfm.ops.precision import sum_dtype


class Sums(NamedTuple):
    """Of the logits l_y of the data tokens y other than the present one, each [K]."""

    log_sum: Tensor  # log sum_y exp(l_y)
    total: Tensor  # sum_y l_y
    target: Tensor  # l at x_1, the present token or not


def sums_of_logits(logits_KV: Tensor, x_K: Tensor, x_1_K: Tensor) -> Sums:
    """The sums of logits at hand. The present token x may be the mask, which has no logit here."""
    logits_KV = logits_KV.to(sum_dtype(logits_KV))
    vocab = logits_KV.shape[1]
    present_KV = torch.arange(vocab, device=x_K.device) == x_K[:, None]
    return Sums(
        log_sum=logits_KV.masked_fill(present_KV, -torch.inf).logsumexp(-1),
        total=logits_KV.masked_fill(present_KV, 0.0).sum(-1),
        target=logits_KV.gather(1, x_1_K[:, None])[:, 0],
    )


def sums_of_head(
    hidden_KD: Tensor, readout: nn.Linear, x_K: Tensor, x_1_K: Tensor, vocab: int
) -> Sums:
    """The sums of readout(hidden), differentiable; no more than a chunk's logits are ever stored.

    Each chunk's logits are forgotten after the forward pass and computed again in the backward.
    """
    rows = max(1, MAX_ELEMENTS.get(hidden_KD.device.type, MAX_ELEMENTS["cpu"]) // vocab)
    parts = [
        checkpoint(
            _chunk_sums,
            hidden_kD,
            readout.weight,
            readout.bias,
            x_k,
            x_1_k,
            vocab,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for hidden_kD, x_k, x_1_k in zip(
            *(x.split(rows) for x in (hidden_KD, x_K, x_1_K)), strict=True
        )
    ]
    return Sums(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _chunk_sums(
    hidden_kD: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    x_k: Tensor,
    x_1_k: Tensor,
    vocab: int,
) -> Sums:
    kind = hidden_kD.dtype
    data = (weight[:vocab].to(kind), None if bias is None else bias[:vocab].to(kind))
    return sums_of_logits(F.linear(hidden_kD, *data), x_k, x_1_k)


def masked_sums_of_head(hidden_KD: Tensor, readout: nn.Linear, x_1_K: Tensor, vocab: int) -> Sums:
    """The same where every present token is the mask, by `head_log_prob`; `total` is left out.

    log sum_y exp(l_y) = l_{x_1} - log p(x_1), and the logit of one token is a product of vectors.
    """
    log_p_K = head_log_prob(hidden_KD, readout, x_1_K[:, None], vocab)[:, 0]
    kind, full = hidden_KD.dtype, sum_dtype(hidden_KD)
    weight_KD = F.embedding(x_1_K, readout.weight).to(kind)
    target_K = (hidden_KD.to(full) * weight_KD.to(full)).sum(-1)
    if readout.bias is not None:
        target_K = target_K + F.embedding(x_1_K, readout.bias[:, None])[:, 0].to(kind).to(full)
    target_K = target_K.to(kind).to(log_p_K.dtype)  # rounded as the logits inside log p are
    return Sums(target_K - log_p_K, torch.full_like(target_K, torch.nan), target_K)
