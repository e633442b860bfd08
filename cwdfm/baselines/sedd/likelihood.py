"""The likelihood bound of a score.

The bound belongs to the process that sampling simulates in the limit of many steps: a start at
s = 1, the reverse chain of the network's score down to s = TIME_EPSILON, then one step of Tweedie's
rule to data. By the chain rule for relative entropy, as for flows (`cwdfm.elbo`),

    -log p(x_1) <= KL(p_sigma(1)(. | x_1) || start) + integral E sum_i score entropy^i dsigma
                   + E sum_i -log p^i(x_1^i | x at TIME_EPSILON).

The start. With the uniform graph it is uniform noise, and the divergence has a closed form. With
the absorbing graph each token is a mask, or with probability exp(-sigma(1)) a draw from
softmax(logits) of the fully masked sequence. The divergence is then exp(-sigma(1)) times the
cross-entropy of that draw. A start from masks alone would make it infinite, and uniform tokens in
the start would leave noise in the samples.

The integral is estimated over a variable v in which the variance of the integrand is flat. For the
absorbing graph v = sqrt(1 - exp(-sigma)), since entropies scale with 1 / expm1(sigma) times the
number of masks, as in `cwdfm.elbo`. For the uniform graph v = sqrt(log(1 + sigma)): it behaves
the same way for small noise, and an error of the score in pure noise contributes equally at every
sigma, so large sigmas must be covered. The noise schedule matters only through its ends.

Shapes: B batch, N length, k positions of a chunk, V data tokens.
"""

import math

import torch
from torch import Tensor

from cwdfm.baselines.sedd.graph import Graph, LogitSums
from cwdfm.baselines.sedd.noise import Noise
from cwdfm.likelihood.bound import BoundBatch, BoundTerms, PositionTerm, position_sum
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.model.protocol import Model


def score_terms(model: Model, graph: Graph, noise: Noise, batch: BoundBatch) -> BoundTerms:
    """The terms of the bound for a batch, each summed over the free tokens of a sequence."""
    source, x_1, fixed = graph.source, batch.x_1, batch.fixed
    high, low = noise.sigma_at(1.0), noise.sigma_at(TIME_EPSILON)

    def total(x_BN: Tensor, sigma_B: Tensor, term: PositionTerm) -> Tensor:
        """The sum [B] of a term over the movable positions."""
        free_BN = source.movable(x_BN, fixed)
        return position_sum(model, source, x_BN, x_1, free_BN, sigma_B, sigma_B, term)

    def constant(sigma: float) -> Tensor:
        return torch.full_like(batch.index, sigma, dtype=torch.float64)

    def entropy(logits_kV: Tensor, x_k: Tensor, x_1_k: Tensor, sigma_k: Tensor) -> Tensor:
        sums = LogitSums.of(logits_kV, x_k, x_1_k)
        return graph.score_entropy(sums, x_k == x_1_k, sigma_k)

    def last_step(sigma: float) -> PositionTerm:
        """-log p(x_1) of a step of Tweedie's rule from sigma to data."""

        def term(logits_kV: Tensor, x_k: Tensor, x_1_k: Tensor, _: Tensor) -> Tensor:
            return -graph.tweedie(logits_kV, x_k, sigma, 0.0).log_prob(x_k, x_1_k)

        return term

    kept = graph.unmasked_fraction(high)
    if kept == 0:
        start_B = (~fixed).sum(1).double() * _divergence_from_uniform(graph.vocab_size, high)
    else:
        x_BN = source.noise(batch.index, x_1.shape[1], seed=batch.seed)
        x_BN = torch.where(fixed, x_1, x_BN)
        start_B = kept * total(x_BN, constant(high), last_step(high))
    v_low, v_high = graph.v_of(low), graph.v_of(high)
    integral = []
    for d, v_B in batch.strata(v_low, v_high):
        sigma_B, slope_B = graph.sigma_of(v_B)
        x_BN = graph.corrupt(x_1, sigma_B, **batch.noise(d))
        integral.append((v_high - v_low) * slope_B * total(x_BN, sigma_B, entropy))
    sigma_B = constant(low)
    last = [graph.corrupt(x_1, sigma_B, **batch.noise(step)) for step in batch.end_steps]
    end = [total(x_BN, sigma_B, last_step(low)) for x_BN in last]
    return BoundTerms(torch.stack(integral), torch.stack(end), start_B)


def _divergence_from_uniform(vocab_size: int, sigma: float) -> float:
    """KL(exp(sigma Q)(x, .) || uniform), the same for every x."""
    other = -math.expm1(-sigma)  # V times the probability of each other token
    own = math.exp(-sigma) * vocab_size + other  # V times the probability of x
    return (own * math.log(own) + (vocab_size - 1) * other * math.log(other)) / vocab_size
