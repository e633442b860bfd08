"""Unmasking orders: solvers that choose which coordinates to reveal next.

With a mask source and the true posterior, revealing one coordinate at a time samples the data
distribution, whatever the order. The order may depend on everything known before the token is
drawn, such as the model's prediction, but not on the proposed tokens.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice, is_number
from cwdfm.model.positions import Positions
from cwdfm.ops.random import Purpose
from cwdfm.solver.base import DrawOptions, Info, Solver, State
from cwdfm.solver.step import Step, StepSolver
from cwdfm.source import Source
from cwdfm.weight import Confidence, Entropy, Margin, PredictionWeight, Weight

Score = Literal["confidence", "margin", "entropy"]
Order = Score | Weight
MIN_LOG_WEIGHT = -1e13  # replaces -inf: below the negative of the largest scale times any length

# Confidence scores of a prediction p: max p, p(best) - p(second best), -H(p). Higher is better.
SCORES: dict[Score, PredictionWeight] = {
    "confidence": Confidence(),
    "margin": Margin(),
    "entropy": Entropy(),
}


@dataclass(frozen=True)
class BestFirst(DrawOptions, StepSolver):
    """Reveal the best masked coordinates, by a score or by a random order weighted by alpha.

    The model is conditioned on t = kappa^-1(revealed fraction of the free coordinates), separately
    for each sequence. The last step, to t_next = 1, reveals all remaining coordinates. Finished
    sequences are not evaluated.

    Some solvers support a uniform source. Every step then reconsiders all free coordinates:
    revealed ones take their proposals, and the others fresh noise.
    """

    renoises: ClassVar[bool] = False  # whether a uniform source is supported
    even: ClassVar[bool] = False  # whether all sequences finish in the same step
    scores: ClassVar[tuple[Score, ...]] = ()  # the scores that `count` needs

    @property
    @abstractmethod
    def order(self) -> Order:
        """The score or weight that sorts the coordinates."""

    @abstractmethod
    def count(self, free_B: Tensor, masked_B: Tensor, scored: list[Tensor], stay: float) -> Tensor:
        """The number of the masked_B [B] coordinates that a step to t_next < 1 reveals, int64 [B].

        `scored` holds the `scores` [B, N], sorted in the order of revealing, with coordinates that
        are not masked last. `stay` is the fraction of the free_B [B] coordinates that the path
        leaves masked at t_next.
        """

    def unfinished(self, source: Source, state: State) -> Tensor | None:
        masked_BN = source.movable(state.tokens, state.fixed)
        return masked_BN.any(1) if source.marks_noise else None

    def take(self, step: Step) -> tuple[State, Info]:
        state, marked = step.state, step.source.marks_noise
        renoises = self.renoises and not marked
        masked_BN = step.movable if renoises else masked_positions(self, step)
        masked_B, free_B = masked_BN.sum(1), (~state.fixed).sum(1)
        unknown_B = masked_B if marked or state.memory is None else masked_B - state.memory
        t_B = revealed_time(step, unknown_B, free_B)
        rows, order = Positions.of(masked_BN, dense=self.even or renoises), self.order
        names = dict.fromkeys((*self.scores, *([order] if isinstance(order, str) else [])))
        weights: list[Weight] = [SCORES[name] for name in names]
        if isinstance(order, Weight) and order.needs_logits:
            weights.append(order)
        proposal_BN, scored = step.propose(t_B, rows, self, weights)
        if isinstance(order, Weight):
            prediction = scored[-1] if order.needs_logits else 0.0
            score_BN = order.log_weight(~masked_BN, prediction, state.prompted)
            score_BN = score_BN.clamp(min=MIN_LOG_WEIGHT) - state.exponential(Purpose.ORDER).log()
        else:
            score_BN = scored[list(names).index(order)]
        order_BN = best_first(state, score_BN, masked_BN)
        count_B = masked_B
        if not step.last:
            scored = [x_BN.gather(1, order_BN) for x_BN in scored[: len(self.scores)]]
            stay = float(step.schedule.survival(step.t_next)) / state.start_survival
            count_B = self.count(free_B, masked_B, scored, stay).minimum(masked_B)
        chosen_BN = first_of(order_BN, count_B)
        if not renoises:
            return step.finish(torch.where(chosen_BN, proposal_BN, state.tokens), rows)
        noise_BN = step.source.renoise(state.tokens, state.uniform(Purpose.RENOISE))
        same_BN = state.uniform(Purpose.KEEP) * step.source.vocab_size < 1
        noise_BN = torch.where(same_BN, state.tokens, noise_BN)
        tokens_BN = torch.where(masked_BN & ~chosen_BN, noise_BN, state.tokens)
        tokens_BN = torch.where(chosen_BN, proposal_BN, tokens_BN)
        after, info = step.finish(tokens_BN, rows, backward=~chosen_BN)
        return replace(after, memory=count_B), info


@dataclass(frozen=True)
class TopK(BestFirst):
    """Reveal the k masked coordinates with the highest scores (Chang et al. 2022; Kim et al. 2025
    for the margin).

    After a step to t' at most floor(F (1 - kappa_t')) of a sequence's F free coordinates remain
    masked, the expected number under the path. The grid "kappa" therefore reveals equally many per
    step, and Cosine with the grid "t" is MaskGIT's schedule. Every step reveals at least one
    coordinate.

    - `score`: the largest probability, its margin over the second largest, or the negative entropy
      of the prediction. The score never uses the drawn token: that would favor likely tokens. A
      weight reveals k coordinates without replacement, with probabilities proportional to alpha.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    even = True

    score: Order = "confidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order("score", self.score)

    @property
    def order(self) -> Order:
        return self.score

    def count(self, free_B: Tensor, masked_B: Tensor, scored: list[Tensor], stay: float) -> Tensor:
        return (masked_B - remaining(free_B, stay)).clamp(min=1)


@dataclass(frozen=True)
class EntropyBound(BestFirst):
    """Reveal the longest prefix of the sorted masked coordinates with sum H - max H <= gamma
    (Ben-Hamu et al. 2025), where H are the entropies of the model's predictions in nats.

    sum H - max H bounds the error of drawing these tokens independently, because their joint
    entropy is at least the largest single entropy. gamma = 0 reveals one coordinate per step, plus
    those with zero entropy. gamma = inf reveals everything at once. The step size does not matter,
    but the bound holds in the last step only with at least as many steps as free coordinates.

    With a uniform source a step applies the bound to all free coordinates, reveals the prefix and
    replaces all other tokens by fresh noise, as DiffusionGemma's sampler does.

    - `error`: the score that sorts the coordinates, most confident first: entropy, confidence or
      margin; or a weight.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    renoises = True
    scores = ("entropy",)

    gamma: float
    error: Order = "entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.gamma) or not self.gamma >= 0:
            raise InputError(
                f"gamma must be a number >= 0, in nats, got {self.gamma!r}; 0 reveals one "
                f"coordinate per step, inf everything at once",
                fields=("gamma",),
            )
        check_order("error", self.error)

    @property
    def order(self) -> Order:
        return self.error

    def count(self, free_B: Tensor, masked_B: Tensor, scored: list[Tensor], stay: float) -> Tensor:
        entropy_BN = -scored[0]
        # sum - max over a prefix is 0 for one coordinate, and nondecreasing in the length.
        error_BN = entropy_BN.cumsum(1) - entropy_BN.cummax(1).values
        return (error_BN <= self.gamma).long().cumprod(1).sum(1)


@dataclass(frozen=True)
class Threshold(BestFirst):
    """Reveal all masked coordinates whose largest probability is at least `threshold`, and at
    least one (Wu et al. 2025).

    The step size does not matter. A threshold above 1/2 bounds the error of simultaneous draws: if
    n tokens have probabilities of at least 1 - epsilon, taking all of them at once is wrong with a
    probability of at most n epsilon.

    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    order = "confidence"
    scores = ("confidence",)

    threshold: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("threshold", self.threshold)

    def count(self, free_B: Tensor, masked_B: Tensor, scored: list[Tensor], stay: float) -> Tensor:
        return (scored[0] >= self.threshold).long().cumprod(1).sum(1).clamp(min=1)


def remaining(free_B: Tensor, stay: float) -> Tensor:
    """The number of masked coordinates: the fraction `stay` of free_B [B], rounded down."""
    # The tolerance keeps floor() exact when rounding puts an integer slightly below itself.
    return (free_B.double() * stay + 1e-6).floor().long()


def check_order(name: str, order: Order) -> None:
    """Raise an InputError unless `order` is a weight or the name of a score."""
    if not isinstance(order, Weight):
        check_choice(name, order, tuple(SCORES))


def check_probability(name: str, value: float) -> None:
    """Raise an InputError unless the value is a probability in (0, 1]."""
    if not is_number(value) or not 0 < value <= 1:
        raise InputError(f"{name} must be a probability in (0, 1], got {value!r}", fields=(name,))


def revealed_time(step: Step, masked_B: Tensor, free_B: Tensor) -> Tensor:
    """The time [B] at which the path leaves masked_B of free_B coordinates masked on average."""
    fraction_B = masked_B.double() / free_B.clamp(min=1)
    return step.schedule.inverse(1 - step.state.start_survival * fraction_B)


def masked_positions(solver: Solver, step: Step) -> Tensor:
    """The coordinates that are still masked, bool [B, N]. Raises InputError for other sources."""
    if not step.source.marks_noise:
        raise InputError(
            f"{type(solver).__name__} reveals each token once, and {step.source} does not mark "
            f"which tokens are masked; use a MaskSource, or Euler or EntropyBound"
        )
    return step.movable


def best_first(state: State, score_BN: Tensor, masked_BN: Tensor) -> Tensor:
    """The coordinates sorted by descending score, int64 [B, N], masked coordinates first.

    Ties are broken at random.
    """
    shuffled_BN = state.uniform(Purpose.TIE).argsort(dim=1)
    score_BN = score_BN.masked_fill(~masked_BN, -torch.inf).gather(1, shuffled_BN)
    return shuffled_BN.gather(1, score_BN.argsort(dim=1, descending=True, stable=True))


def first_of(order_BN: Tensor, count_B: Tensor) -> Tensor:
    """Mark the first count_B coordinates of each sequence's order, bool [B, N]."""
    rank_N = torch.arange(order_BN.shape[1], device=order_BN.device)
    first_BN = rank_N < count_B[:, None]
    return torch.zeros_like(first_BN).scatter(1, order_BN, first_BN)
