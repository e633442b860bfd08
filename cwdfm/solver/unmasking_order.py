"""Unmasking orders: solvers that choose which coordinates to reveal next.

With a mask source and the true posterior, revealing one coordinate at a time samples the data
distribution in any order. The order may depend on anything known before the tokens are drawn: on
the model's prediction, but not on the proposed tokens.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import DrawOptions, Info, Solver, State, check_step, update
from cwdfm.solver.proposal import propose
from cwdfm.source import Source
from cwdfm.weight import Confidence, Entropy, Margin, PredictionWeight

Score = Literal["confidence", "margin", "entropy"]

# Confidence scores of a prediction p: max p, p(best) - p(second best), -H(p). Higher is better.
SCORES: dict[Score, PredictionWeight] = {
    "confidence": Confidence(),
    "margin": Margin(),
    "entropy": Entropy(),
}


@dataclass(frozen=True)
class BestFirst(DrawOptions, Solver):
    """Reveal the masked coordinates with the most confident predictions first.

    The model is conditioned on t = kappa^-1(fraction of the free coordinates that is revealed),
    separately for each sequence. The last step, to t_next = 1, reveals all remaining coordinates.
    A finished sequence needs no further evaluations.
    """

    @property
    @abstractmethod
    def scores(self) -> tuple[Score, ...]:
        """The scores that a step needs. The last one sorts the coordinates."""

    @abstractmethod
    def count(self, free_B: Tensor, masked_B: Tensor, scored: list[Tensor], stay: float) -> Tensor:
        """How many of the masked_B [B] coordinates a step to t_next < 1 reveals, int64 [B].

        `scored` are the `scores` [B, N], sorted; those of coordinates not masked come last. `stay`
        is the fraction of the free_B [B] coordinates that the path leaves masked at t_next.
        """

    @torch.no_grad()
    def step(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        state: State,
        t: float,
        t_next: float,
    ) -> tuple[State, Info]:
        check_step(model, source, schedule, state, t, t_next)
        masked_BN = masked_positions(self, source, state)
        masked_B, free_B = masked_BN.sum(1), (~state.fixed).sum(1)
        t_B = schedule.inverse(1 - state.start_survival * masked_B.double() / free_B.clamp(min=1))
        rows = Positions.of(masked_BN)
        scores = [SCORES[name] for name in self.scores]
        proposal_BN, scored = propose(model, source, state, t_B, rows, self, scores)
        order_BN = best_first(state, scored[-1], masked_BN)
        count_B = masked_B
        if t_next < 1:
            scored = [score_BN.gather(1, order_BN) for score_BN in scored]
            stay = float(schedule.survival(t_next)) / state.start_survival
            count_B = self.count(free_B, masked_B, scored, stay).minimum(masked_B)
        tokens_BN = torch.where(first_of(order_BN, count_B), proposal_BN, state.tokens)
        return update(source, state, tokens_BN, rows, t, t_next)


@dataclass(frozen=True)
class TopK(BestFirst):
    """Reveal the k masked coordinates with the highest scores (Chang et al. 2022; Kim et al. 2025
    for the margin).

    After a step to t' at most floor(F (1 - kappa_t')) of a sequence's F free coordinates remain
    masked, the expected number under the path. The grid "kappa" therefore reveals equally many per
    step, and Cosine with the grid "t" is MaskGIT's schedule. Every step reveals at least one
    coordinate.

    - `score`: the largest probability, its margin over the second largest, or the negative entropy
      of the prediction. The score never uses the drawn token: that would favor likely tokens.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    score: Score = "confidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("score", self.score, tuple(SCORES))

    @property
    def scores(self) -> tuple[Score, ...]:
        return (self.score,)

    def count(self, free_B: Tensor, masked_B: Tensor, scored: list[Tensor], stay: float) -> Tensor:
        # The tolerance keeps floor() exact when rounding puts an integer slightly below itself.
        remaining_B = (free_B.double() * stay + 1e-6).floor().long()
        return (masked_B - remaining_B).clamp(min=1)


@dataclass(frozen=True)
class EntropyBound(BestFirst):
    """Reveal the longest prefix of the sorted masked coordinates with sum H - max H <= gamma
    (Ben-Hamu et al. 2025), where H are the entropies of the model's predictions in nats.

    sum H - max H bounds the error of drawing these tokens independently, because their joint
    entropy is at least the largest single entropy. gamma = 0 reveals one coordinate per step, plus
    those with zero entropy. gamma = inf reveals everything at once. The step size does not matter,
    but the bound holds in the last step only with at least as many steps as free coordinates.

    - `error`: the score that sorts the coordinates, most confident first: entropy, confidence or
      margin.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    gamma: float
    error: Score = "entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.gamma, int | float) and not isinstance(self.gamma, bool)
        if not number or not self.gamma >= 0:
            raise InputError(
                f"gamma must be a number >= 0, in nats, got {self.gamma!r}; 0 reveals one "
                f"coordinate per step, inf everything at once",
                fields=("gamma",),
            )
        check_choice("error", self.error, tuple(SCORES))

    @property
    def scores(self) -> tuple[Score, ...]:
        return ("entropy",) if self.error == "entropy" else ("entropy", self.error)

    def count(self, free_B: Tensor, masked_B: Tensor, scored: list[Tensor], stay: float) -> Tensor:
        entropy_BN = -scored[0]
        # sum - max over a prefix is 0 for one coordinate, and nondecreasing in the length.
        error_BN = entropy_BN.cumsum(1) - entropy_BN.cummax(1).values
        return (error_BN <= self.gamma).long().cumprod(1).sum(1)


def masked_positions(solver: Solver, source: Source, state: State) -> Tensor:
    """The coordinates that are still masked, bool [B, N]. Requires a mask source."""
    if not source.marks_noise:
        raise InputError(
            f"{type(solver).__name__} reveals each token once, and {source} does not mark which "
            f"tokens are masked; use a MaskSource, or the Euler solver"
        )
    return source.movable(state.tokens, state.fixed)


def best_first(state: State, score_BN: Tensor, masked_BN: Tensor) -> Tensor:
    """Sort the coordinates by descending score, int64 [B, N], masked coordinates first.

    Ties are broken at random.
    """
    u_BN = uniform_BN(state.seed, Purpose.TIE, state.index, state.step, score_BN.shape[1])
    shuffled_BN = u_BN.argsort(dim=1)
    score_BN = score_BN.masked_fill(~masked_BN, -torch.inf).gather(1, shuffled_BN)
    return shuffled_BN.gather(1, score_BN.argsort(dim=1, descending=True, stable=True))


def first_of(order_BN: Tensor, count_B: Tensor) -> Tensor:
    """Mark the first count_B coordinates of each sequence's order, bool [B, N]."""
    place_N = torch.arange(order_BN.shape[1], device=order_BN.device)
    first_BN = place_N < count_B[:, None]
    return torch.zeros_like(first_BN).scatter(1, order_BN, first_BN)
