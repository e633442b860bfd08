"""Corrections: backward jumps in an Euler step, which re-noise revealed tokens to correct errors.

A correction raises the rate of forward jumps and adds backward jumps that return tokens to the
source. The two compensate each other, so the marginals p_t stay the same.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf, log, log1p
from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_instance, is_number, require
from cwdfm.model.leave_one_out import evidence
from cwdfm.schedule import Schedule
from cwdfm.solver.base import State
from cwdfm.solver.proposal import RowScore
from cwdfm.solver.step import Step
from cwdfm.source import Source, UniformSource
from cwdfm.weight import PredictionWeight
from cwdfm.weight.base import checked_prediction_score

MAX_HAZARD = 700.0  # exp(-700) is the smallest probability of a float64 without denormals


class Correction(ABC):
    """The backward jumps of an `Euler` step. Subclasses are frozen dataclasses."""

    @property
    def needs_prediction(self) -> bool:
        """Whether `hazards` needs this step's scores."""
        return False

    def check(self, source: Source) -> None:  # noqa: B027 (most corrections support all sources)
        """Raise an InputError if the correction does not support this source."""

    def times(self, schedule: Schedule, t: float, t_next: float) -> tuple[float, float]:
        """Map the grid times t and t_next to times of the path."""
        return t, t_next

    def score(self, source: Source, kappa: float) -> RowScore | None:
        """A score of the model's predictions that `hazards` or `remember` needs, if any."""
        return None

    @abstractmethod
    def hazards(
        self, step: Step, span: tuple[float, float], forward: float, exact: bool, score: Tensor
    ) -> tuple[float | Tensor, Tensor]:
        """The forward and backward hazards of a step over `span` = (t, t_next).

        Both broadcast to [B, N]. `forward` is the hazard without a correction, integrated over the
        step if `exact`.
        """

    def remember(self, state: State, jump_BN: Tensor, score_BN: Tensor) -> Tensor | None:
        """The value of `State.memory` for the next step, from the scores of this step's jumps."""
        return None


@dataclass(frozen=True)
class Corrector(Correction):
    """Multiply the forward rates by a_t and the backward rates by a_t - 1 (Gat et al. 2024), where

        a_t = 1 + scale t^a (1 - t)^b.

    The backward velocity is kappa'_t / kappa_t [p_0 - delta(x_t)]; with a mask source it re-masks
    tokens. Without a context weight the marginals p_t do not depend on the scale, but errors are
    more likely to be corrected.

    With a `weight`, for a uniform source, coordinate i has a_t^i = 1 + scale t^a (1 - t)^b w^i with
    w^i = exp(score of p(x_1^i | x_t^-i)), the prediction from the other coordinates. The weight is
    not normalized: w^i must not depend on x_t^i. Forward and backward jumps of coordinate i then
    balance for any w^i, so the marginals p_t are exact (see docs/method.md). A weight of the solver
    multiplies the forward rates only, and is biased with a uniform source.
    """

    scale: float = 1.0
    a: float = 0.5
    b: float = 0.5
    weight: PredictionWeight | None = None

    def __post_init__(self) -> None:
        values = (self.scale, self.a, self.b)
        if not all(isinstance(v, int | float) and 0 <= v < inf for v in values):
            raise InputError(
                f"corrector must have a finite scale, a and b >= 0, got {self}; a negative scale "
                f"would make rates negative",
                fields=("corrector",),
            )
        if self.weight is not None:
            check_instance("weight", self.weight, PredictionWeight, "Entropy(1.0)")

    def check(self, source: Source) -> None:
        if self.weight is not None and source.marks_noise:
            raise InputError(
                f"a corrector with a weight needs the prediction of every token from the others, "
                f"which a model with {source} provides at masks only; use a uniform source, or "
                f"Euler(weight=...), which is exact with a mask source"
            )

    @property
    def needs_prediction(self) -> bool:
        return self.weight is not None

    def score(self, source: Source, kappa: float) -> RowScore | None:
        weight = self.weight
        if weight is None:
            return None

        def score(logits_kV: Tensor, current_k: Tensor, drawn_k: Tensor) -> Tensor:
            others_kV = leave_out(logits_kV, current_k, kappa, source)
            return checked_prediction_score(weight, others_kV)

        return score

    def strength(self, t: float) -> float:
        """a_t - 1."""
        return float(self.scale * t**self.a * (1 - t) ** self.b)

    def hazards(
        self, step: Step, span: tuple[float, float], forward: float, exact: bool, score: Tensor
    ) -> tuple[float | Tensor, Tensor]:
        # With probability p_0(x^i) the source returns the current token, which is no jump.
        renoise_BN = step.source.renoise_probability(step.tokens)
        backward_BN = self.backward_hazard(step.schedule, *span, exact) * renoise_BN
        backward_BN = backward_BN * ~step.state.fixed
        if self.weight is None:
            return forward * (1 + self.strength(span[0])), backward_BN
        w_BN = score.exp()
        return forward * (1 + self.strength(span[0]) * w_BN), backward_BN * w_BN

    def backward_hazard(self, schedule: Schedule, t: float, t_next: float, exact: bool) -> float:
        """(a_t - 1) kappa'_t / kappa_t, times the step size, or integrated if `exact`.

        0 at kappa_t = 0, where the state is pure noise, whose distribution re-noising preserves.
        """
        kappa = float(schedule.kappa(t))
        if kappa == 0:
            return 0.0
        if exact:
            rate = float(schedule.kappa(t_next).log() - schedule.kappa(t).log())
        else:
            rate = (t_next - t) * float(schedule.kappa_dot(t)) / kappa
        return self.strength(t) * rate


@dataclass(frozen=True)
class Remask(Correction):
    """Remask revealed tokens in each step (ReMDM, Wang et al. 2025); for a mask source.

    In a step from kappa to kappa' a revealed token is masked with probability sigma, and a masked
    one is revealed with probability (kappa' - (1 - sigma) kappa) / (1 - kappa). The expected
    revealed fraction is then kappa' for every sigma up to sigma_max = min(1, (1 - kappa') / kappa).

    - `rule`: "cap" for sigma = min(eta, sigma_max), "rescale" for sigma = eta sigma_max. With
      "confidence", sigma = eta sigma_max is divided among the revealed tokens in proportion to
      exp(-p), where p is the probability with which a token was drawn: on average a sequence loses
      at most one token per step, which the forward jumps do not replace.
    - `loop`: None, or (first, last, kappa): remask only between the grid times `first` and `last`,
      while the path stays at kappa. Other steps do not remask.
    """

    rule: Literal["cap", "rescale", "confidence"] = "cap"
    eta: float = 0.02
    loop: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        check_choice("rule", self.rule, ("cap", "rescale", "confidence"))
        valid = is_number(self.eta) and 0 <= self.eta <= 1
        require(valid, "eta", "be a number from 0 to 1", self.eta)
        if self.loop is not None:
            valid = isinstance(self.loop, tuple) and len(self.loop) == 3
            if not valid or not (0 < self.loop[0] < self.loop[1] < 1 and 0 < self.loop[2] < 1):
                raise InputError(
                    f"loop must be (first, last, kappa) with 0 < first < last < 1 and 0 < kappa < "
                    f"1, got {self.loop!r}; for example (0.45, 0.95, 0.9)"
                )

    def check(self, source: Source) -> None:
        if not source.marks_noise:
            raise InputError(
                f"Remask needs a mask token, and {source} has none; use Corrector, which re-noises "
                f"tokens"
            )

    def times(self, schedule: Schedule, t: float, t_next: float) -> tuple[float, float]:
        if self.loop is None:
            return t, t_next
        first, last, kappa = self.loop
        wait = float(schedule.inverse(kappa))

        def warp(t: float) -> float:
            if t <= first:
                return wait * t / first
            return wait if t <= last else wait + (1 - wait) * (t - last) / (1 - last)

        return warp(t), warp(t_next)

    def score(self, source: Source, kappa: float) -> RowScore | None:
        return _drawn_probability if self.rule == "confidence" else None

    def hazards(
        self, step: Step, span: tuple[float, float], forward: float, exact: bool, score: Tensor
    ) -> tuple[float | Tensor, Tensor]:
        kappa, stay = float(step.schedule.kappa(span[0])), float(step.schedule.survival(span[1]))
        inside = self.loop is None or (self.loop[0] <= step.t and step.t_next <= self.loop[1])
        largest = min(1.0, stay / kappa) if kappa > 0 and inside else 0.0
        sigma = min(self.eta, largest) if self.rule == "cap" else self.eta * largest
        revealed_BN = (~step.movable & ~step.state.fixed).double()
        if self.rule != "confidence":
            masked = float(step.schedule.survival(span[0]))
            left = (stay - sigma * kappa) / masked  # probability that a mask stays masked
            forward = min(-log(left), MAX_HAZARD) if left > 0 else MAX_HAZARD
            return forward, _hazard(sigma) * revealed_BN
        if step.state.memory is None:
            return forward, torch.zeros_like(revealed_BN)
        share_BN = torch.exp(-step.state.memory) * revealed_BN
        share_BN = share_BN / share_BN.sum(1, keepdim=True).clamp(min=1e-300)
        return forward, -torch.log1p(-(sigma * share_BN).clamp(max=1 - 1e-15))

    def remember(self, state: State, jump_BN: Tensor, score_BN: Tensor) -> Tensor | None:
        if self.rule != "confidence":
            return None
        before_BN = torch.zeros_like(score_BN) if state.memory is None else state.memory
        return torch.where(jump_BN, score_BN, before_BN)


def leave_out(logits_kV: Tensor, current_k: Tensor, kappa: float, source: Source) -> Tensor:
    """Convert logits of p(x_1^i | x_t) to logits of p(x_1^i | x_t^-i), for a uniform source.

    By Bayes' rule, the current token's logit decreases by log(1 + V kappa / (1 - kappa)).
    """
    check_instance("source", source, UniformSource, "UniformSource(vocab_size=30)")
    current_k1 = current_k[:, None]
    evidence_kappa = evidence(kappa, source.vocab_size)
    change_k1 = torch.full_like(current_k1, -evidence_kappa, dtype=logits_kV.dtype)
    return logits_kV.scatter_add(1, current_k1, change_k1)


def _drawn_probability(logits_kV: Tensor, current_k: Tensor, drawn_k: Tensor) -> Tensor:
    return logits_kV.double().log_softmax(-1).gather(1, drawn_k[:, None])[:, 0].exp()


def _hazard(probability: float) -> float:
    """The hazard H of an event with probability 1 - exp(-H), at most MAX_HAZARD."""
    return MAX_HAZARD if probability >= 1 else min(-log1p(-probability), MAX_HAZARD)
