"""The evidence lower bound of a discrete flow, as an upper bound on -log p(x_1).

The bound belongs to a definite generative process: the chain with the model's rates up to the time
t* at which kappa = KAPPA_END, then one draw of every position from p_{1|t*}, as in the last step of
the sampler. By the chain rule for relative entropy,

    -log p(x_1) <= integral_0^{KAPPA_END} E sum_i alpha^i D^i / (1 - kappa) dkappa
                   + E sum_i -log p^i(x_1^i | x_t*)

where D^i is the rate divergence over lambda_t (Shaul et al. 2025; with weights, the paper's fourth
proposition). Stopping before kappa = 1 keeps the integrand bounded. The second term accounts for
the last draw, so the sum is still a bound.

The integral is estimated over v = sqrt(1 - kappa), where dkappa / (1 - kappa) = 2 dv / v. The
number of masked positions has mean and variance near N v^2 as v -> 0, so the variance of the
integrand is flat in v. With uniform kappa it would grow as 1 / (1 - kappa): rare, huge terms, which
a standard error misses.
"""

import math

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.likelihood.bound import END_DRAWS, Bound, BoundTerms, estimate_bound, stratum_offsets
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
    seed: int = 0,
    draws: int = 16,
    weight: Weight | None = None,
    fixed: Tensor | None = None,
    index: Tensor | None = None,
    batch_size: int = 256,
) -> Bound:
    """An upper bound on -log p(x_1) of sequences [B, N], in nats per free token.

    - `draws`: the number of random times per sequence, at least 2.
    - `weight`: bound the likelihood of the context-weighted chain; the path uses the same weight.
    - `fixed` [B, N]: given tokens. The bound is on the likelihood of the others given these.
    - `index` [B]: global indices of the sequences, which determine their noise. A subset of a
      dataset then has the same estimates as in the whole.

    The result does not depend on `batch_size`.
    """
    check_flow_network(model)
    path = path_for(source, schedule, weight)
    if weight is not None and not source.marks_noise:
        raise InputError(
            f"a context-weighted bound needs a source whose state shows which tokens are revealed, "
            f"and {source} does not: alpha is then not a function of x_t, the rates of data and "
            f"model have different weights, and the sum is not a bound; omit weight, or use a mask "
            f"source"
        )

    def terms(x_1: Tensor, fixed: Tensor, index_B: Tensor) -> BoundTerms:
        return flow_terms(model, path, x_1, fixed, index_B, seed=seed, draws=draws)

    return estimate_bound(
        model,
        x_1,
        terms,
        vocab_size=source.vocab_size,
        draws=draws,
        fixed=fixed,
        index=index,
        batch_size=batch_size,
    )


def flow_terms(
    model: Model,
    path: Path,
    x_1: Tensor,
    fixed: Tensor,
    index_B: Tensor,
    *,
    seed: int,
    draws: int,
) -> BoundTerms:
    """The terms of the bound for one batch; x_1 and `fixed` are [B, N]."""
    batch = (model, path, x_1, fixed, index_B)
    integral = _integral(*batch, seed=seed, draws=draws)
    return BoundTerms(integral, _end(*batch, seed=seed, first_step=draws))


def _integral(
    model: Model,
    path: Path,
    x_1: Tensor,
    fixed: Tensor,
    index_B: Tensor,
    *,
    seed: int,
    draws: int,
) -> Tensor:
    """Estimates [draws, B] of the integral, one per stratum of v = sqrt(1 - kappa)."""
    estimates = []
    v_end = math.sqrt(1 - KAPPA_END)
    for d in range(draws):
        v_B = v_end + (1 - v_end) * (d + stratum_offsets(seed, d, index_B)) / draws
        t_B = path.schedule.inverse(1 - v_B**2)
        batch = path.sample(x_1, t_B, seed=seed, step=d, index=index_B, fixed=fixed)
        alpha_BN = 1.0 if batch.weight is None else batch.weight(batch.revealed)
        log_p1_BN, log_pt_BN, rows_BN = _log_probs(model, batch)
        divergence_BN = rate_divergence(log_p1_BN, log_pt_BN, batch.x_t == batch.x_1)
        divergence_BN = alpha_BN * torch.where(rows_BN, divergence_BN, 0.0)
        estimates.append((1 - v_end) * 2 / v_B * divergence_BN.sum(1))
    return torch.stack(estimates)


def _end(
    model: Model,
    path: Path,
    x_1: Tensor,
    fixed: Tensor,
    index_B: Tensor,
    *,
    seed: int,
    first_step: int,
) -> Tensor:
    """Estimates [END_DRAWS, B] of the cross-entropy of the last step, at KAPPA_END."""
    estimates = []
    t_B = path.schedule.inverse(KAPPA_END).to(x_1.device).expand(len(x_1))
    for step in range(first_step, first_step + END_DRAWS):
        batch = path.sample(x_1, t_B, seed=seed, step=step, index=index_B, fixed=fixed)
        estimates.append(-_log_probs(model, batch)[0].sum(1))
    return torch.stack(estimates)


def _log_probs(model: Model, batch: PathSample) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x_1^i), log p(x_t^i) and the positions where they count, each [B, N].

    The log-probabilities are 0 elsewhere. With a mask source revealed tokens stay with
    probability 1, so only masked positions count.
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
