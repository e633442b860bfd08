"""Two-stage solvers (Ren et al. 2025): a second prediction within the step corrects the first.

Time is measured by the integrated hazard, in which a coordinate jumps at rate alpha^i to a token
drawn from p^i = p_{1|t}^i(. | x). Stage one jumps from x to y with the rates of x, for a fraction
theta of the hazard H. Stage two combines the rates of x with those of y at the intermediate time:

    trapezoidal:  from y, for (1 - theta) H:   (a alpha*^i p*^i - (a - 1) alpha^i p^i)_+,
                  a = 1 / (2 theta (1 - theta))
    RK2:          from x, for H:               c alpha*^i p*^i + (1 - c) alpha^i p^i,
                  c = 1 / (2 theta)

where * marks the quantities of y. The last step reveals everything with one prediction.

The logits of the K coordinates that may jump are stored: [K, V].
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cwdfm.errors import InputError, is_number
from cwdfm.model.positions import Positions
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.random import Purpose
from cwdfm.solver.base import DrawOptions, Info, State
from cwdfm.solver.step import Step, StepSolver
from cwdfm.weight import Weight
from cwdfm.weight.base import check_weight


@dataclass(frozen=True)
class TwoStage(DrawOptions, StepSolver):
    """A step with two predictions."""

    # Whether the second stage starts from y and covers the rest of the step. Otherwise it starts
    # again from x and covers the entire step.
    continues: ClassVar[bool]

    theta: float = 0.5
    weight: Weight | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight(self.weight)

    @property
    @abstractmethod
    def coefficients(self) -> tuple[float, float]:
        """The coefficients (of y, of x) of the rates in the second stage."""

    def take(self, step: Step) -> tuple[State, Info]:
        source, x_BN = step.source, step.tokens
        if step.last:
            rows = Positions.of(step.movable)
            return step.finish(step.propose(step.times(step.t), rows, self)[0], rows)
        if self.weight is not None and not source.marks_noise:
            raise InputError(
                f"{type(self).__name__} supports a weight with a mask source only, because {source}"
                f" does not show which coordinates are masked; omit the weight, or use Euler"
            )
        hazard = float(step.schedule.integrated_hazard(step.t, step.t_next))
        first, second = self.theta * hazard, (1 - self.theta if self.continues else 1.0) * hazard
        factor_y, factor_x = self.coefficients
        needs_logits = self.weight is not None and self.weight.needs_logits
        survival = step.schedule.survival(step.t) * torch.tensor(-first).exp()
        middle = float(step.schedule.inverse(1 - survival))
        clock_BN = step.state.exponential(Purpose.BACKWARD)
        rows_x = Positions.of(step.movable)
        if needs_logits:
            logits_KV = step.logits(x_BN, step.times(step.t), rows_x)
            alpha_x_BN = self._alpha(step, step.movable, rows_x, logits_KV)
        else:
            alpha_x_BN = self._alpha(step, step.movable)
        jump_BN = step.movable & (step.state.exponential(Purpose.FORWARD) < alpha_x_BN * first)
        movable_y_BN = step.movable & ~jump_BN if source.marks_noise else step.movable
        # The coordinates that may jump in the second stage. If alpha needs no logits, it bounds the
        # rates before the model is evaluated, which excludes some of them.
        second_BN = movable_y_BN if self.continues else step.movable
        if not needs_logits:
            alpha_y_BN = self._alpha(step, movable_y_BN).where(movable_y_BN, alpha_x_BN)
            bound_BN = factor_y * alpha_y_BN + max(factor_x, 0.0) * alpha_x_BN
            second_BN = second_BN & (clock_BN < bound_BN * second)
            rows_x = Positions.of(jump_BN | second_BN)
            logits_KV = step.logits(x_BN, step.times(step.t), rows_x)
        u_K = rows_x.take(step.state.uniform(Purpose.PROPOSAL))
        y_BN = torch.where(jump_BN, rows_x.replace(x_BN, self.draw(logits_KV, u_K)), x_BN)

        rows = Positions.of(second_BN)
        p_KV = self.probabilities(logits_KV[torch.searchsorted(rows_x.flat, rows.flat)])
        q_KV, rows_y = p_KV.clone(), rows
        if not self.continues:  # a jump of the first stage does not change its own rate
            rows_y = Positions.of(second_BN & ~jump_BN)
        logits_y_KV = step.logits(y_BN, step.times(middle), rows_y)
        q_KV[torch.searchsorted(rows.flat, rows_y.flat)] = self.probabilities(logits_y_KV)
        if needs_logits:
            alpha_y_BN = self._alpha(step, movable_y_BN, rows_y, logits_y_KV)
            alpha_y_BN = alpha_y_BN.where(movable_y_BN, alpha_x_BN)
        rate_x_KV = rows.take(alpha_x_BN)[:, None] * p_KV
        rate_y_KV = rows.take(alpha_y_BN)[:, None] * q_KV
        rate_KV = (factor_y * rate_y_KV + factor_x * rate_x_KV).clamp(min=0)
        moves_K = rows.take(clock_BN) < rate_KV.sum(1) * second
        # Rows that do not jump may have no positive rate; ones keep their draw well-defined.
        mass_KV = torch.where(moves_K[:, None], rate_KV, 1.0)
        u_K = rows.take(step.state.uniform(Purpose.RENOISE))
        token_K = sample_categorical(mass_KV.log(), u_K, dtype=self.dtype)
        base_BN = y_BN if self.continues else x_BN
        token_K = torch.where(moves_K, token_K, rows.take(base_BN))
        return step.finish(rows.replace(base_BN, token_K), rows_x, rows_y)

    def _alpha(
        self,
        step: Step,
        masked_BN: Tensor,
        rows: Positions | None = None,
        logits_KV: Tensor | None = None,
    ) -> Tensor:
        """alpha [B, N] of the masked coordinates, from the logits at `rows` if they are needed."""
        if self.weight is None:
            return masked_BN.double()
        score: Tensor | float = 0.0
        if rows is not None and logits_KV is not None:
            score = rows.scatter(self.weight.prediction_score(logits_KV).double())
        return self.weight.alpha(~masked_BN, score, step.state.prompted)


@dataclass(frozen=True)
class ThetaTrapezoidal(TwoStage):
    """The theta-trapezoidal method; see the module docstring.

    It has order two as long as no rate of the second stage is negative, that is, as long as one
    jump changes the probabilities of other tokens by less than a factor of about two. Otherwise it
    has order one, with a much smaller error than Euler for the same number of evaluations.

    - `theta`: in (0, 1). 1/2 makes negative rates least likely.
    - `weight`: any context weight, with a mask source.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    continues = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.theta) or not 0 < self.theta < 1:
            raise InputError(
                f"theta must be in (0, 1), got {self.theta!r}; try 0.5", fields=("theta",)
            )

    @property
    def coefficients(self) -> tuple[float, float]:
        a = 1 / (2 * self.theta * (1 - self.theta))
        return a, 1 - a


@dataclass(frozen=True)
class ThetaRK2(TwoStage):
    """The theta-RK2 method; see the module docstring. The second stage starts again from x; a
    coordinate that jumped in the first stage keeps its rate.

    Its order is one: simultaneous jumps of the second stage are independent (see docs/method.md).
    Prefer `ThetaTrapezoidal`.

    - `theta`: in [1/2, 1], where no rate is negative. 1/2 is the midpoint rule, 1 is Heun's.
    - `weight`: any context weight, with a mask source.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    continues = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.theta) or not 0.5 <= self.theta <= 1:
            raise InputError(
                f"theta must be in [0.5, 1], got {self.theta!r}; below 0.5 rates may be negative",
                fields=("theta",),
            )

    @property
    def coefficients(self) -> tuple[float, float]:
        c = 1 / (2 * self.theta)
        return c, 1 - c
