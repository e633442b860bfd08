"""The likelihood bound of a score.

The bound belongs to the process that sampling with many steps simulates: a start at s = 1, the
reverse chain of the network's score down to s = TIME_EPSILON, then one step of Tweedie's rule to
data. By the chain rule for relative entropy, as for flows (`cwdfm.elbo`),

    -log p(x_1) <= KL(p_sigma(1)(. | x_1) || start) + integral E sum_i score entropy^i dsigma
                   + E sum_i -log p^i(x_1^i | x at TIME_EPSILON).

The start. Uniform graph: uniform tokens; the divergence is a formula. Absorbing graph: each token
is a mask, or with probability exp(-sigma(1)) drawn from softmax(logits) of the fully masked
sequence; the divergence is exp(-sigma(1)) times the cross-entropy of that draw. A start from masks
alone would make it infinite, and one with uniform tokens would leave some noise in every sample.

The integral is taken over a variable v at whose uniform values the integrand's variance is flat:
v = sqrt(1 - exp(-sigma)) for the absorbing graph, where entropies go with 1 / expm1(sigma) times
the number of masks, as in `cwdfm.elbo`; v = sqrt(log(1 + sigma)) for the uniform one, where small
noise acts alike, and where a score that is wrong in pure noise costs the same at every sigma, so
that large ones must not be left out. The noise's schedule does not enter but for its ends.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.baselines.sedd.graph import Graph
from cwdfm.baselines.sedd.noise import Noise
from cwdfm.baselines.sedd.sums import sums_of_logits
from cwdfm.errors import check_integer
from cwdfm.likelihood.bound import END_DRAWS, Bound, Terms, free_tokens, stratum_places
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.model.positions import Positions
from cwdfm.model.predict import evaluating, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.random import sample_index

# logits [k, V] in float64, x [k], x_1 [k], sigma [k] -> one number a row
RowTerm = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@torch.no_grad()
def score_bound(
    model: Model,
    graph: Graph,
    noise: Noise,
    x_1: Tensor,
    *,
    seed: int = 0,
    draws: int = 16,
    fixed: Tensor | None = None,
    index: Tensor | None = None,
    batch_size: int = 256,
) -> Bound:
    """An upper bound on -log p(x_1), with all arguments as in `cwdfm.elbo`."""
    x_1, fixed, tokens = free_tokens(model, x_1, fixed, graph.vocab_size, batch_size)
    check_integer("draws", draws, 2)  # for a standard error
    index_B = sample_index(index, len(x_1), x_1.device)
    parts = []
    with evaluating(model):
        for rows in torch.arange(len(x_1), device=x_1.device).split(batch_size):
            some = Sequences(model, graph, noise, x_1[rows], fixed[rows], index_B[rows], seed)
            parts.append(Terms(some.integral(draws), some.end(draws), some.start()))
    return Bound.estimated(parts, tokens)


@dataclass(frozen=True)
class Sequences:
    """The three terms for some sequences, each summed over their free tokens."""

    model: Model
    graph: Graph
    noise: Noise
    x_1: Tensor  # [B, N]
    fixed: Tensor  # [B, N]
    index: Tensor  # [B]
    seed: int

    def start(self) -> Tensor:
        """The divergence [B] of the noised data from where sampling starts: no randomness."""
        sigma = self.noise.sigma_at(1.0)
        kept = self.graph.unmasked(sigma)
        if kept == 0:
            return (~self.fixed).sum(1).double() * _divergence_from_uniform(
                self.graph.vocab_size, sigma
            )
        x_BN = self.graph.source.noise(self.index, self.x_1.shape[1], seed=self.seed)
        x_BN = torch.where(self.fixed, self.x_1, x_BN)
        return kept * self._sum(x_BN, self._constant(sigma), self._cost_of_draw(sigma))

    def integral(self, draws: int) -> Tensor:
        """Estimates [draws, B] of the integral, each on its own stratum of v, as in `elbo`."""
        low, high = (self.graph.place(self.noise.sigma_at(s)) for s in (TIME_EPSILON, 1.0))
        estimates = []
        for d in range(draws):
            place_B = stratum_places(self.seed, d, self.index)
            sigma_B, slope_B = self.graph.noise_at(low + (high - low) * (d + place_B) / draws)
            entropy_B = self._sum(self._corrupted(sigma_B, d), sigma_B, self._entropy)
            estimates.append((high - low) * slope_B * entropy_B)
        return torch.stack(estimates)

    def end(self, first_step: int) -> Tensor:
        """Estimates [END_DRAWS, B] of the last step's cross-entropy."""
        sigma = self.noise.sigma_at(TIME_EPSILON)
        sigma_B, term = self._constant(sigma), self._cost_of_draw(sigma)
        return torch.stack(
            [
                self._sum(self._corrupted(sigma_B, first_step + j), sigma_B, term)
                for j in range(END_DRAWS)
            ]
        )

    def _constant(self, sigma: float) -> Tensor:
        return torch.full((len(self.x_1),), sigma, dtype=torch.float64, device=self.x_1.device)

    def _corrupted(self, sigma_B: Tensor, step: int) -> Tensor:
        return self.graph.corrupt(
            self.x_1, sigma_B, self.fixed, seed=self.seed, step=step, index=self.index
        )

    def _entropy(self, logits_kV: Tensor, x_k: Tensor, x_1_k: Tensor, sigma_k: Tensor) -> Tensor:
        sums = sums_of_logits(logits_kV, x_k, x_1_k)
        return self.graph.entropy(sums, x_k == x_1_k, sigma_k)

    def _cost_of_draw(self, sigma: float) -> RowTerm:
        """-log p(x_1) of Tweedie's step from sigma to data."""

        def term(logits_kV: Tensor, x_k: Tensor, x_1_k: Tensor, _: Tensor) -> Tensor:
            return -self.graph.tweedie(logits_kV, x_k, sigma, 0.0).log_prob(x_k, x_1_k)

        return term

    def _sum(self, x_BN: Tensor, sigma_B: Tensor, term: RowTerm) -> Tensor:
        """The sums [B] of a term over the coordinates that can move."""
        rows = Positions.of(self.graph.rows(x_BN, self.fixed))
        x_K, x_1_K, sigma_K = rows.take(x_BN), rows.take(self.x_1), sigma_B[rows.sequence]
        term_K = torch.zeros(len(x_K), dtype=torch.float64, device=x_K.device)
        for k, logits_kV in predict_logits(self.model, self.graph.source, x_BN, sigma_B, rows):
            term_K[k] = term(logits_kV.double(), x_K[k], x_1_K[k], sigma_K[k])
        return rows.scatter(term_K).sum(1)


def _divergence_from_uniform(vocab: int, sigma: float) -> float:
    """KL(exp(sigma Q)(x, .) || uniform), the same for every x."""
    touched = -math.expm1(-sigma)
    own = math.exp(-sigma) * vocab + touched  # times 1 / vocab
    return (own * math.log(own) + (vocab - 1) * touched * math.log(touched)) / vocab
