"""Likelihoods that need no bound: one call tells what each token has to pay."""

import torch
from torch import Tensor

from cwdfm.loss.prediction import token_log_prob
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.source import Source


def sequence_nats(
    model: Model, source: Source, read_BN: Tensor, x_BN: Tensor, free_BN: Tensor
) -> Tensor:
    """-sum of log p(x^i) over free places, [B] float64, from what the model makes of read_BN."""
    rows = Positions.of(free_BN)
    token_K = rows.take(x_BN)
    t_B = torch.zeros(len(x_BN), device=x_BN.device)
    log_p_K = torch.empty(len(token_K), dtype=torch.float64, device=x_BN.device)
    for k, logits_kV in predict_logits(model, source, read_BN, t_B, rows):
        logits = logits_kV.double()
        log_p_K[k] = token_log_prob(logits, logits.logsumexp(-1), token_K[k])
    return -rows.scatter(log_p_K).sum(1)
