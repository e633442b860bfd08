"""The evidence lower bound on log p(x_1): test perplexity.

The bound belongs to a definite generative process: the chain with the model's rates up to the time
t* at which kappa = KAPPA_END, then one draw of every coordinate from p_{1|t*}, as in the sampler's
last step. By the chain rule for relative entropy,

    -log p(x_1) <= integral_0^{KAPPA_END} E sum_i alpha^i D^i / (1 - kappa) dkappa
                   + E sum_i -log p^i(x_1^i | x_t*)

with D^i the rate divergence over lambda_t (Shaul et al. 2025; with weights, the paper's fourth
proposition). Stopping before kappa = 1 keeps the integrand bounded, and the second term keeps the
bound a bound: nothing is thrown away.

The integral is taken over v = sqrt(1 - kappa), where dkappa / (1 - kappa) = 2 dv / v. The number of
masked coordinates has mean and variance near N v^2 as v -> 0, so that at uniform v the integrand's
variance stays flat. At uniform kappa it grows as 1 / (1 - kappa): rare, huge terms, and a standard
error that misses them.
"""

import math

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer
from cwdfm.likelihood.bound import END_DRAWS, Bound, Terms, free_tokens, stratum_places
from cwdfm.loss.bregman import rate_divergence
from cwdfm.loss.prediction import token_log_prob
from cwdfm.model.positions import Positions
from cwdfm.model.predict import check_flow_network, evaluating, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.random import sample_index
from cwdfm.path import Path, PathSample, path_for
from cwdfm.schedule import Schedule
from cwdfm.source import Source
from cwdfm.weight import Weight

KAPPA_END = 1 - 1e-3


@torch.no_grad()
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
    """An upper bound on -log p(x_1) in nats per free token, by `draws` times a sequence.

    `fixed` [B, N] marks given tokens: the bound is then on the conditional likelihood of the rest.
    `weight` bounds the likelihood of the context-weighted chain instead; the path follows it.
    `index` [B] numbers the sequences, so that a part of a data set gives what the whole gives for
    it. The result does not depend on `batch_size`.
    """
    check_flow_network(model)
    path = path_for(source, schedule, weight)
    if weight is not None and not source.marks_noise:
        raise InputError(
            f"a context-weighted bound needs a source whose state tells what is revealed, and "
            f"{source} does not: alpha is then no function of x_t, data and model rates carry "
            f"different weights, and the sum is no bound; leave weight out, or use a mask source"
        )
    x_1, fixed, tokens = free_tokens(model, x_1, fixed, source.vocab_size, batch_size)
    check_integer("draws", draws, 2)  # for a standard error
    index_B = sample_index(index, len(x_1), x_1.device)
    parts = []
    with evaluating(model):
        for rows in torch.arange(len(x_1), device=x_1.device).split(batch_size):
            chunk = (x_1[rows], fixed[rows], index_B[rows])
            integral = _integral(model, path, *chunk, seed=seed, draws=draws)
            end = _end(model, path, *chunk, seed=seed, first_step=draws)
            parts.append(Terms(integral, end))
    return Bound.estimated(parts, tokens)


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
    """Estimates [draws, B] of the integral, each on its own stratum of v = sqrt(1 - kappa)."""
    estimates = []
    v_end = math.sqrt(1 - KAPPA_END)
    for d in range(draws):
        v_B = v_end + (1 - v_end) * (d + stratum_places(seed, d, index_B)) / draws
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
    """Estimates [END_DRAWS, B] of the last step's cross-entropy at KAPPA_END."""
    estimates = []
    t_B = path.schedule.inverse(KAPPA_END).to(x_1.device).expand(len(x_1))
    for step in range(first_step, first_step + END_DRAWS):
        batch = path.sample(x_1, t_B, seed=seed, step=step, index=index_B, fixed=fixed)
        estimates.append(-_log_probs(model, batch)[0].sum(1))
    return torch.stack(estimates)


def _log_probs(model: Model, batch: PathSample) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x_1^i), log p(x_t^i), and where they count, each [B, N]; 0 where they do not.

    A mask source carries revealed tokens over, with probability 1: only masked ones count.
    """
    rows = Positions.of(batch.source.movable(batch.x_t, batch.fixed))
    tokens_K2 = torch.stack([rows.take(batch.x_1), rows.take(batch.x_t)], dim=-1)
    log_p_K2 = torch.zeros(tokens_K2.shape, dtype=torch.float64, device=tokens_K2.device)
    for k, logits_kV in predict_logits(model, batch.source, batch.x_t, batch.t, rows):
        logits = logits_kV.double()
        log_z = logits.logsumexp(-1)
        for j in range(2):
            log_p_K2[k, j] = token_log_prob(logits, log_z, tokens_K2[k, j])
    return rows.scatter(log_p_K2[:, 0]), rows.scatter(log_p_K2[:, 1]), rows.mask
