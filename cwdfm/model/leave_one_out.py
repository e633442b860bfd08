"""Networks that predict a token from the other positions, p(x_1^i | x_t^-i).

Duo and UDLM train the posterior q(x_s^i | x_t^i, x_1^i) with the prediction in place of x_1^i. The
posterior already accounts for x_t^i, so the optimal prediction ignores it. By Bayes' rule,

    p_{1|t}(x | x_t) ~ p(x_1^i = x | x_t^-i) p_t(x_t^i | x_1^i = x),

so with V uniform tokens the evidence log(1 + V kappa_t / (1 - kappa_t)) is added to the logit of
the current token. A head receives hidden vectors only, so the trunk appends the current token and
its evidence to them.

Shapes: B batch, N length, D width, V tokens.
"""

from math import log1p

import torch
from torch import Tensor, nn

MAX_KAPPA = 1 - 1e-6  # the evidence is infinite at kappa = 1


def evidence(kappa: float, vocab_size: int) -> float:
    """The evidence of the current token, log(1 + V kappa / (1 - kappa))."""
    kappa = min(kappa, MAX_KAPPA)
    return log1p(vocab_size * kappa / (1 - kappa))


def append_evidence(hidden_BND: Tensor, x_BN: Tensor, kappa_B: Tensor, vocab_size: int) -> Tensor:
    """Append the current token and its evidence to hidden vectors, [B, N, D + 2].

    The dtype is at least float32, which represents all ids below 2^24 exactly.
    """
    kappa_B = kappa_B.double().clamp(max=MAX_KAPPA)
    evidence_B = torch.log1p(vocab_size * kappa_B / (1 - kappa_B))
    columns_BN2 = torch.stack([x_BN, evidence_B[:, None].expand_as(x_BN)], dim=-1)
    dtype = torch.promote_types(hidden_BND.dtype, torch.float32)
    return torch.cat([hidden_BND.to(dtype), columns_BN2.to(dtype)], dim=-1)


def add_evidence(hidden: Tensor, readout: nn.Linear) -> Tensor:
    """Logits [..., V] of hidden vectors with evidence [..., D + 2]."""
    logits: Tensor = readout(hidden[..., :-2].to(readout.weight.dtype))
    token, evidence = hidden[..., -2:-1].long(), hidden[..., -1:].to(logits.dtype)
    return logits.scatter_add(-1, token, evidence)
