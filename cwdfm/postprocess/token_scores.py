"""Token scores: the model's probability of each token of a finished sequence, given the others.

With noise_fraction = 1 - kappa_t, the probability of the token at position i is

    uniform source:  p_{1|t}(x^i | x), because the model has learned to tell data from noise;
    mask source:     p_{1|t}(x^i | x with all tokens of i's group masked), for a random partition
                     of the positions into 1 / noise_fraction groups.

This takes one evaluation with a uniform source, and one per group with a mask source.

Shapes: A sequences, N length, K positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.random import Purpose, derive_seed, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import DrawOptions
from cwdfm.source import Source


@dataclass(frozen=True)
class TokenScores:
    """Probabilities of the tokens of finished sequences, and proposals to replace them."""

    probability: Tensor  # [A, N] float64: probability of the current token; 1 where it is fixed
    proposal: Tensor  # [A, N] int64: a draw from the same prediction
    evaluations: Tensor  # [A] int64: number of model evaluations
    logit_evaluations: int


class TokenScorer:
    """Computes the token scores of sequences of `length` tokens, and proposals to replace them.

    Without `draw`, the proposals are the current tokens.
    """

    def __init__(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        length: int,
        noise_fraction: float,
        seed: int,
        draw: DrawOptions | None = None,
    ) -> None:
        self.model, self.source, self.seed, self.draw = model, source, derive_seed(seed, 0), draw
        # With a uniform source the model scores the tokens in its input. With a mask source it
        # predicts masked tokens only, so they are masked in groups.
        groups = min(length, max(1, round(1 / noise_fraction)))
        self.groups = groups if source.marks_noise else None
        kappa = 1 - (noise_fraction if self.groups is None else 1 / self.groups)
        self.t = float(schedule.inverse(torch.tensor(kappa, dtype=torch.float64)))

    def score(
        self, x_AN: Tensor, free_AN: Tensor, index_A: Tensor, step: int, *, unit: int = 1
    ) -> TokenScores:
        """Score the free tokens of the sequences x_AN with global sample numbers index_A [A].

        `step` seeds the random draws. The batch is padded to a multiple of `unit` sequences.
        """
        size, padding = len(x_AN), -len(x_AN) % unit
        x_AN, free_AN, index_A = (_pad(x, padding) for x in (x_AN, free_AN, index_A))
        u_AN = self.uniform(Purpose.PROPOSAL, x_AN, index_A, step)
        t_A = torch.full((len(x_AN),), self.t, dtype=torch.float64, device=x_AN.device)
        probability_AN, proposal_AN = torch.ones_like(u_AN), x_AN
        evaluations_A, logit_evaluations = torch.zeros_like(index_A), 0
        for scored_AN, input_AN in self._inputs(x_AN, free_AN, index_A, step):
            rows = Positions.of(scored_AN, dense=True)
            x_K, u_K = rows.take(x_AN), rows.take(u_AN)
            probabilities, drawn = [u_K[:0]], [x_K[:0]]
            for k, logits_kV in predict_logits(self.model, self.source, input_AN, t_A, rows):
                current_k = logits_kV.gather(1, x_K[k, None])[:, 0].double()
                probabilities.append((current_k - logits_kV.double().logsumexp(1)).exp())
                drawn.append(self.draw.draw(logits_kV, u_K[k]) if self.draw else x_K[k])
            probability_AN = rows.replace(probability_AN, torch.cat(probabilities))
            proposal_AN = rows.replace(proposal_AN, torch.cat(drawn))
            evaluations_A = evaluations_A + scored_AN.any(1).long()
            logit_evaluations += int(scored_AN[:size].sum())
        return TokenScores(
            probability_AN[:size], proposal_AN[:size], evaluations_A[:size], logit_evaluations
        )

    def uniform(self, purpose: Purpose, x_AN: Tensor, index_A: Tensor, step: int) -> Tensor:
        """Uniform draws [A, N]."""
        return uniform_BN(self.seed, purpose, index_A, step, x_AN.shape[1])

    def _inputs(
        self, x_AN: Tensor, free_AN: Tensor, index_A: Tensor, step: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield masks of positions to score and the model's input for each, both [A, N]."""
        if self.groups is None:
            yield free_AN, x_AN
            return
        rank_AN = self.uniform(Purpose.TIE, x_AN, index_A, step).argsort(1).argsort(1)
        noise_AN = self.source.noise(index_A, x_AN.shape[1], seed=self.seed, step=step)
        for group in range(self.groups):
            masked_AN = free_AN & (rank_AN % self.groups == group)
            yield masked_AN, torch.where(masked_AN, noise_AN, x_AN)


def _pad(x_A: Tensor, count: int) -> Tensor:
    """Repeat the last sequence `count` times."""
    return torch.cat([x_A, x_A[-1:].expand(count, *x_A.shape[1:])]) if count else x_A
