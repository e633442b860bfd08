"""Unmasking orders: solvers that choose which coordinates to reveal next.

With a mask source and the true posterior, revealing one coordinate at a time samples the data
distribution, whatever the order. The order may depend on everything known before the token is
drawn, such as the model's prediction, but not on the proposed tokens.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_integer, is_number
from cwdfm.model.positions import Positions
from cwdfm.ops.random import Purpose
from cwdfm.solver.base import DrawOptions, Info, Solver, State
from cwdfm.solver.step import Step, StepSolver
from cwdfm.source import Source
from cwdfm.weight import Confidence, Entropy, Margin, PredictionWeight, Weight

Score = Literal["confidence", "margin", "entropy"]
Order = Score | Literal["random"] | Weight
MIN_LOG_WEIGHT = -1e13  # replaces -inf: below the negative of the largest scale times any length
CERTAIN = 0.1  # nats: tokens with at most this entropy may be revealed next to each other

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

    - `distance`: Tokens that are drawn at once are independent given x_t, but nearby tokens depend
      on each other most. With a distance, a coordinate is skipped if a better one of the same step
      is at most this far away, unless the model is certain of either (an entropy of at most
      `CERTAIN` nats).
    """

    distance: int = field(default=0, kw_only=True)

    renoises: ClassVar[bool] = False  # whether a uniform source is supported
    even: ClassVar[bool] = False  # whether all sequences finish in the same step
    scores: ClassVar[tuple[Score, ...]] = ()  # the scores that `count` needs

    @property
    @abstractmethod
    def order(self) -> Order:
        """The score or weight that sorts the coordinates; "random" for a uniformly random order."""

    @abstractmethod
    def count(
        self, step: Step, free_B: Tensor, masked_B: Tensor, scored: dict[Score, Tensor]
    ) -> Tensor:
        """The number of the masked_B [B] coordinates that a step to t_next < 1 reveals, int64 [B].

        `scored` holds the `scores` [B, N], sorted in the order of revealing, with coordinates that
        are not masked last. free_B [B] coordinates are not part of the prompt.
        """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("distance", self.distance, least=0)

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
        rows = Positions.of(masked_BN, dense=self.even or renoises)
        proposal_BN, score_BN, scored = self._scores(step, t_B, rows, masked_BN)
        order_BN, count_B = best_first(state, score_BN, masked_BN), masked_B
        most_B = masked_B
        if self.distance:
            uncertain_BN = masked_BN & (-scored["entropy"] > CERTAIN)
            crowded_BN = uncertain_BN & ~spaced(order_BN, uncertain_BN, self.distance)
            order_BN = grouped(order_BN, crowded_BN + 2 * ~masked_BN)
            most_B = masked_B if self.even else masked_B - crowded_BN.sum(1)
        if not step.last:
            scored = {name: x_BN.gather(1, order_BN) for name, x_BN in scored.items()}
            count_B = self.count(step, free_B, masked_B, scored).minimum(most_B)
        chosen_BN = first_of(order_BN, count_B)
        if not renoises:
            return step.finish(torch.where(chosen_BN, proposal_BN, state.tokens), rows)
        noise_BN = step.source.renoise(state.tokens, state.uniform(Purpose.RENOISE))
        same_BN = state.uniform(Purpose.KEEP) < 1 - step.source.renoise_probability(state.tokens)
        noise_BN = torch.where(same_BN, state.tokens, noise_BN)
        tokens_BN = torch.where(masked_BN & ~chosen_BN, noise_BN, state.tokens)
        tokens_BN = torch.where(chosen_BN, proposal_BN, tokens_BN)
        after, info = step.finish(tokens_BN, rows, backward=~chosen_BN)
        return replace(after, memory=count_B), info

    def _scores(
        self, step: Step, t_B: Tensor, rows: Positions, masked_BN: Tensor
    ) -> tuple[Tensor, Tensor, dict[Score, Tensor]]:
        """Proposals, the values that sort the coordinates, and all scores by name, each [B, N]."""
        order = self.order
        names: dict[Score, None] = dict.fromkeys(self.scores)
        if self.distance:
            names["entropy"] = None
        if not isinstance(order, Weight) and order != "random":
            names[order] = None
        weights: list[Weight] = [SCORES[name] for name in names]
        if isinstance(order, Weight) and order.needs_logits:
            weights.append(order)
        proposal_BN, found = step.propose(t_B, rows, self, weights)
        scored = dict(zip(names, found, strict=False))
        if order == "random":  # equal scores: ties are broken at random
            return proposal_BN, torch.zeros_like(masked_BN, dtype=torch.float64), scored
        if not isinstance(order, Weight):
            return proposal_BN, scored[order], scored
        prediction = found[-1] if order.needs_logits else 0.0
        log_BN = order.log_weight(~masked_BN, prediction, step.state.prompted)
        log_BN = log_BN.clamp(min=MIN_LOG_WEIGHT) - step.state.exponential(Purpose.ORDER).log()
        return proposal_BN, log_BN, scored


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
      "random" reveals k random coordinates: ancestral steps without the noise of their number. A
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

    def count(
        self, step: Step, free_B: Tensor, masked_B: Tensor, scored: dict[Score, Tensor]
    ) -> Tensor:
        stay = float(step.schedule.survival(step.t_next)) / step.state.start_survival
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
      margin; or "random", or a weight.
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

    def count(
        self, step: Step, free_B: Tensor, masked_B: Tensor, scored: dict[Score, Tensor]
    ) -> Tensor:
        return longest_prefix(-scored["entropy"], self.gamma)


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

    def count(
        self, step: Step, free_B: Tensor, masked_B: Tensor, scored: dict[Score, Tensor]
    ) -> Tensor:
        sure_BN = scored["confidence"] >= self.threshold
        return sure_BN.long().cumprod(1).sum(1).clamp(min=1)


def longest_prefix(entropy_BN: Tensor, bound: Tensor | float) -> Tensor:
    """The length [B] of the longest prefix with sum H - max H <= bound. It is at least 1."""
    # sum - max over a prefix is 0 for one coordinate, and nondecreasing in the length.
    error_BN = entropy_BN.cumsum(1) - entropy_BN.cummax(1).values
    return (error_BN <= bound).long().cumprod(1).sum(1)


def spaced(order_BN: Tensor, candidates_BN: Tensor, distance: int) -> Tensor:
    """The candidates that remain after each, in this order, removes all later ones within
    `distance`; bool [B, N].
    """
    length, window = order_BN.shape[1], 2 * distance + 1
    # Every round keeps the candidates that come first in their window, and removes their neighbors.
    rank_BN = order_BN.argsort(dim=1)
    priority_BN = torch.where(candidates_BN, length - rank_BN, 0).float()
    kept_BN = torch.zeros_like(candidates_BN)
    while priority_BN.any():
        first_BN = (priority_BN > 0) & (
            priority_BN == F.max_pool1d(priority_BN, window, stride=1, padding=distance)
        )
        kept_BN |= first_BN
        near_BN = F.max_pool1d(first_BN.float(), window, stride=1, padding=distance) > 0
        priority_BN = priority_BN.masked_fill(near_BN, 0)
    return kept_BN


def remaining(free_B: Tensor, stay: float) -> Tensor:
    """The number of masked coordinates: the fraction `stay` of free_B [B], rounded down."""
    # The tolerance keeps floor() exact when rounding puts an integer slightly below itself.
    return (free_B.double() * stay + 1e-6).floor().long()


def check_order(name: str, order: Order) -> None:
    """Raise an InputError unless `order` is a weight or the name of a score."""
    if not isinstance(order, Weight):
        check_choice(name, order, (*SCORES, "random"))


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


def grouped(order_BN: Tensor, group_BN: Tensor) -> Tensor:
    """Sort the coordinates by the number of their group; within a group the order stays."""
    return order_BN.gather(1, group_BN.gather(1, order_BN).argsort(dim=1, stable=True))


def first_of(order_BN: Tensor, count_B: Tensor) -> Tensor:
    """Mark the first count_B coordinates of each sequence's order, bool [B, N]."""
    rank_N = torch.arange(order_BN.shape[1], device=order_BN.device)
    first_BN = rank_N < count_B[:, None]
    return torch.zeros_like(first_BN).scatter(1, order_BN, first_BN)
