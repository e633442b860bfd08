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
number of masks, as in `cwdfm.elbo`. For the uniform graph v = sqrt(log(1 + sigma)): small noise
behaves alike, and an error of the score in pure noise costs the same at every sigma, so large
sigmas must be covered. The noise schedule matters only through its ends.

Shapes: B batch, N length, K positions, k positions of a chunk, V data tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.baselines.sedd.graph import Graph, LogitSums
from cwdfm.baselines.sedd.noise import Noise
from cwdfm.likelihood.bound import BoundBatch, BoundTerms
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model

# (logits [k, V] float64, x [k], x_1 [k], sigma [k]) -> term [k]
PositionTerm = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ScoreBound:
    """The terms of the bound for a batch, each summed over the free tokens of a sequence."""

    model: Model
    graph: Graph
    noise: Noise
    batch: BoundBatch

    def terms(self) -> BoundTerms:
        """All three terms."""
        return BoundTerms(self.integral(), self.end(), self.start())

    def start(self) -> Tensor:
        """The divergence [B] of the noised data from the start, without sampling error."""
        x_1, fixed = self.batch.x_1, self.batch.fixed
        sigma = self.noise.sigma_at(1.0)
        kept = self.graph.unmasked_fraction(sigma)
        if kept == 0:
            divergence = _divergence_from_uniform(self.graph.vocab_size, sigma)
            return (~fixed).sum(1).double() * divergence
        x_BN = self.graph.source.noise(self.batch.index, x_1.shape[1], seed=self.batch.seed)
        x_BN = torch.where(fixed, x_1, x_BN)
        return kept * self._sum(x_BN, self._full(sigma), self._last_step(sigma))

    def integral(self) -> Tensor:
        """Estimates [draws, B] of the integral, one per stratum of v."""
        low, high = (self.graph.v_of(self.noise.sigma_at(s)) for s in (TIME_EPSILON, 1.0))
        estimates = []
        for d, v_B in self.batch.strata(low, high):
            sigma_B, slope_B = self.graph.sigma_of(v_B)
            entropy_B = self._sum(self._corrupt(sigma_B, d), sigma_B, self._entropy)
            estimates.append((high - low) * slope_B * entropy_B)
        return torch.stack(estimates)

    def end(self) -> Tensor:
        """Estimates [END_DRAWS, B] of the cross-entropy of the last step."""
        sigma = self.noise.sigma_at(TIME_EPSILON)
        sigma_B, term = self._full(sigma), self._last_step(sigma)
        corrupted = [self._corrupt(sigma_B, step) for step in self.batch.end_steps]
        return torch.stack([self._sum(x_BN, sigma_B, term) for x_BN in corrupted])

    def _full(self, sigma: float) -> Tensor:
        return torch.full_like(self.batch.index, sigma, dtype=torch.float64)

    def _corrupt(self, sigma_B: Tensor, step: int) -> Tensor:
        return self.graph.corrupt(self.batch.x_1, sigma_B, **self.batch.noise(step))

    def _entropy(self, logits_kV: Tensor, x_k: Tensor, x_1_k: Tensor, sigma_k: Tensor) -> Tensor:
        sums = LogitSums.of(logits_kV, x_k, x_1_k)
        return self.graph.score_entropy(sums, x_k == x_1_k, sigma_k)

    def _last_step(self, sigma: float) -> PositionTerm:
        """-log p(x_1) of a step of Tweedie's rule from sigma to data."""

        def term(logits_kV: Tensor, x_k: Tensor, x_1_k: Tensor, _: Tensor) -> Tensor:
            return -self.graph.tweedie(logits_kV, x_k, sigma, 0.0).log_prob(x_k, x_1_k)

        return term

    def _sum(self, x_BN: Tensor, sigma_B: Tensor, term: PositionTerm) -> Tensor:
        """The sum [B] of a term over the movable positions."""
        positions = Positions.of(self.graph.source.movable(x_BN, self.batch.fixed))
        x_K, x_1_K = positions.take(x_BN), positions.take(self.batch.x_1)
        sigma_K = sigma_B[positions.sequence]
        term_K = torch.zeros(len(x_K), dtype=torch.float64, device=x_K.device)
        for k, logits_kV in predict_logits(self.model, self.graph.source, x_BN, sigma_B, positions):
            term_K[k] = term(logits_kV.double(), x_K[k], x_1_K[k], sigma_K[k])
        return positions.scatter(term_K).sum(1)


def _divergence_from_uniform(vocab_size: int, sigma: float) -> float:
    """KL(exp(sigma Q)(x, .) || uniform), the same for every x."""
    other = -math.expm1(-sigma)  # V times the probability of each other token
    own = math.exp(-sigma) * vocab_size + other  # V times the probability of x
    return (own * math.log(own) + (vocab_size - 1) * other * math.log(other)) / vocab_size
