"""The evidence lower bound of a discrete flow, as an upper bound on -log p(x_1).

The bound holds for a specific generative process: the chain with the model's rates up to the time
t* at which kappa = KAPPA_END, then one draw of every position from p_{1|t*}, as in the last step of
the sampler. By the chain rule for relative entropy,

    -log p(x_1) <= integral_0^{KAPPA_END} E sum_i alpha^i D^i / (1 - kappa) dkappa
                   + E sum_i -log p^i(x_1^i | x_t*)

where D^i is the rate divergence divided by lambda_t (Shaul et al. 2025; with weights, the paper's
fourth proposition). Stopping before kappa = 1 keeps the integrand bounded, and the second term
accounts for the last draw, so the sum is still a bound.

The integral is estimated over v = sqrt(1 - kappa), where dkappa / (1 - kappa) = 2 dv / v. As v -> 0
the number of masked positions has mean and variance near N v^2, so the variance of the integrand
stays constant in v. With uniform kappa it would grow as 1 / (1 - kappa): rare, huge terms would
make the standard error unreliable.
"""

import math
import warnings
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, describe
from cwdfm.likelihood.bound import Bound, BoundBatch, BoundTerms, LikelihoodOptions, estimate_bound
from cwdfm.loss.bregman import rate_divergence
from cwdfm.loss.prediction import token_log_prob
from cwdfm.model.positions import Positions
from cwdfm.model.predict import check_flow_network, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.path import Path, PathSample, path_for
from cwdfm.schedule import Schedule
from cwdfm.source import Source
from cwdfm.weight import Weight

KAPPA_END = 1 - 1e-3


def elbo(
    model: Model,
    source: Source,
    schedule: Schedule,
    x_1: Tensor,
    *,
    weight: Weight | None = None,
    **options: Unpack[LikelihoodOptions],
) -> Bound:
    """An upper bound on -log p(x_1) of sequences [B, N], in nats per free token.

    - `weight`: bound the likelihood under the context-weighted chain; the path has the same weight.
    - `seed` (0), `draws` (16): the random seed, and the number of random times per sequence.
    - `fixed` [B, N]: tokens to condition on. The bound is on the likelihood of the others.
    - `index` [B]: global indices of the sequences, which determine their noise, so that a subset of
      a dataset has the same estimates as in the full dataset.
    - `batch_size` (256): does not affect the result.
    """
    check_flow_network(model)
    trained_length = getattr(model, "trained_length", None)
    if isinstance(x_1, Tensor) and trained_length not in (None, *x_1.shape[1:]):
        warnings.warn(
            f"x_1 is {describe(x_1)}, but the model was trained on sequences of {trained_length} "
            f"tokens, including start, end and padding tokens; to bound the likelihood of texts "
            f"use the model's likelihood(texts)",
            stacklevel=2,
        )
    path = path_for(source, schedule, weight)
    if weight is not None and not source.marks_noise:
        raise InputError(
            f"a context-weighted bound needs a source whose state shows which tokens are revealed, "
            f"and {source} does not: alpha is then not a function of x_t, the rates of data and "
            f"model have different weights, and the sum is not a bound; omit weight, or use a mask "
            f"source"
        )
    terms = partial(flow_terms, model, path)
    return estimate_bound(model, x_1, terms, source.vocab_size, **options)


def flow_terms(model: Model, path: Path, batch: BoundBatch) -> BoundTerms:
    """The terms of the bound for one batch."""
    integral = []
    v_end = math.sqrt(1 - KAPPA_END)
    for d, v_B in batch.strata(v_end, 1.0):
        x = path.sample(batch.x_1, path.schedule.inverse(1 - v_B**2), **batch.noise(d))
        alpha_BN = 1.0 if x.weight is None else x.weight(x.revealed)
        log_p1_BN, log_pt_BN, rows_BN = _log_probs(model, x)
        divergence_BN = rate_divergence(log_p1_BN, log_pt_BN, x.x_t == x.x_1)
        # A coordinate with rate 0 contributes nothing, even if its token has probability zero.
        divergence_BN = alpha_BN * torch.where(rows_BN & (alpha_BN > 0), divergence_BN, 0.0)
        integral.append((1 - v_end) * 2 / v_B * divergence_BN.sum(1))
    t_B = path.schedule.inverse(KAPPA_END).to(batch.x_1.device).expand(len(batch.x_1))
    last = [path.sample(batch.x_1, t_B, **batch.noise(step)) for step in batch.end_steps]
    end = [-_log_probs(model, x)[0].sum(1) for x in last]
    return BoundTerms(torch.stack(integral), torch.stack(end))


def _log_probs(model: Model, batch: PathSample) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x_1^i), log p(x_t^i) and a mask of the positions that contribute, each [B, N].

    The log-probabilities are 0 elsewhere. With a mask source revealed tokens stay with probability
    1, so only masked positions contribute.
    """
    positions = Positions.of(batch.source.movable(batch.x_t, batch.fixed))
    tokens_K2 = torch.stack([positions.take(batch.x_1), positions.take(batch.x_t)], dim=-1)
    log_p_K2 = torch.zeros(tokens_K2.shape, dtype=torch.float64, device=tokens_K2.device)
    for k, logits_kV in predict_logits(model, batch.source, batch.x_t, batch.t, positions):
        logits = logits_kV.double()
        log_z = logits.logsumexp(-1)
        for j in range(2):
            log_p_K2[k, j] = token_log_prob(logits, log_z, tokens_K2[k, j])
    return positions.scatter(log_p_K2[:, 0]), positions.scatter(log_p_K2[:, 1]), positions.mask
