"""The Euler solver, with an optional context weight and correction.

One step from t to t' draws an exponential clock E^i ~ Exp(1) for each coordinate. A masked
coordinate jumps to its proposal xhat_1^i ~ p_{1|t}^i if E^i < alpha^i H, that is, with probability
1 - exp(-alpha^i H): the paper's update rule. H is the hazard of the step.

If alpha does not depend on the logits of this step, the jumps are drawn before the model is
evaluated. Logits are then computed only at coordinates that jump, and sequences without a jump are
skipped, without changing the distribution. With a mask source the jumps of all steps can be drawn
in advance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import expm1, inf
from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_bool, check_choice, is_builtin
from cwdfm.model.positions import Positions
from cwdfm.ops.cuda_graph import replay_loop
from cwdfm.ops.random import Purpose
from cwdfm.schedule import Schedule
from cwdfm.solver.base import DrawOptions, Info, Reveals, State
from cwdfm.solver.correction import Correction, Corrector, Remask
from cwdfm.solver.step import Step, StepSolver
from cwdfm.solver.unmasking_order import MIN_LOG_WEIGHT, first_of
from cwdfm.source import Source
from cwdfm.weight import Weight
from cwdfm.weight.base import check_weight, terms

DENSE = 5.0  # expected jumps per sequence from which on nearly every sequence has a jump


@dataclass(frozen=True)
class Euler(DrawOptions, StepSolver):
    """First-order simulation of jumps to the model's proposals, with rates alpha^i(x_t) lambda_t.

    - `weight`: None for the plain Euler solver; Neighbor or Entropy for the paper's solvers.
    - `hazard`: "euler" for H = (t' - t) lambda_t, as in the paper; "integrated" for
      H = log((1 - kappa_t) / (1 - kappa_t')), which is exact for constant alpha at no extra cost.
    - `counted`: False is the paper's rule: each coordinate jumps independently with probability
      1 - exp(-alpha H). Unless alpha H is small, fewer coordinates jump than without a weight, and
      the last step reveals all remaining ones at once. True keeps the number of jumps that would
      occur without a weight, and moves the coordinates with the smallest E / alpha.
    - `corrector`: re-noises tokens (see `Corrector` and `Remask`). The weight multiplies the
      forward rates only.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    weight: Weight | None = None
    hazard: Literal["euler", "integrated"] = "euler"
    counted: bool = False
    corrector: Correction | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("hazard", self.hazard, ("euler", "integrated"))
        check_bool("counted", self.counted)
        check_weight(self.weight)
        if self.corrector is not None and not isinstance(self.corrector, Correction):
            raise InputError(
                f"corrector must be a Corrector, a Remask or None, got {self.corrector!r}"
            )
        if isinstance(self.corrector, Remask) and self.hazard != "integrated":
            raise InputError(
                "Remask requires hazard='integrated': its probabilities preserve the fraction of "
                "revealed tokens of exact steps, not of Euler's"
            )
        if isinstance(self.corrector, Corrector) and self.corrector.weight and self.weight:
            raise InputError(
                f"a corrector with a weight is exact only in a solver without one, got weight="
                f"{self.weight}; omit one of the two"
            )
        if self.counted and self.corrector is not None:
            raise InputError(
                "counted=True does not support a corrector, because the number of forward jumps "
                "would depend on the backward jumps; omit one of the two"
            )

    def take(self, step: Step) -> tuple[State, Info]:
        source, state, x_BN = step.source, step.state, step.tokens
        correction = None if step.last else self.corrector
        t, t_next, exact = step.t, step.t_next, self.hazard == "integrated"
        score = None
        if correction is not None:
            correction.check(source)
            t, t_next = correction.times(step.schedule, t, t_next)
            score = correction.score(source, float(step.schedule.kappa(t)))
        forward = self._hazard(step.schedule, t, t_next)
        marked = source.marks_noise
        survival = float(step.schedule.survival(t)) if marked else 1.0

        def jumps(
            masked_BN: Tensor, prediction: Tensor | float, score: Tensor
        ) -> tuple[Tensor, Tensor, Tensor | None]:
            hazards: tuple[float | Tensor, Tensor | None] = (forward, None)
            if correction is not None:
                hazards = correction.hazards(step, (t, t_next), forward, exact, score)
            return self._jumps(state, masked_BN, prediction, *hazards)

        weight = self.weight if self.weight is not None and self.weight.needs_logits else None
        scores = [item for item in (weight, score) if item is not None]
        needs_prediction = correction is not None and correction.needs_prediction
        if (self.weight is None or (marked and weight is None)) and not needs_prediction:
            # Draw the jumps first, then evaluate the model only there.
            jump_BN, back_BN, alpha_BN = jumps(step.movable, 0.0, x_BN)
            expected = survival * -expm1(-forward) * state.max_free
            rows = Positions.of(jump_BN & step.movable, dense=expected >= DENSE)
            proposal_BN, scored = step.propose(step.times(t), rows, self, scores)
            jump_BN = proposal_BN != x_BN
        else:
            # The weight needs logits, or proposals to identify revealed tokens: model first.
            rows = Positions.of(step.movable, dense=survival * state.max_free >= DENSE)
            proposal_BN, scored = step.propose(step.times(t), rows, self, scores)
            masked_BN = step.movable if marked else step.movable & (proposal_BN != x_BN)
            prediction = 0.0 if weight is None else scored[0]
            jump_BN, back_BN, alpha_BN = jumps(masked_BN, prediction, scored[-1] if score else x_BN)
            jump_BN = jump_BN & masked_BN

        back_BN = back_BN & ~jump_BN
        tokens_BN = torch.where(jump_BN, proposal_BN, x_BN)
        if correction is not None:
            renoised_BN = source.renoise(x_BN, state.uniform(Purpose.RENOISE))
            tokens_BN = torch.where(back_BN, renoised_BN, tokens_BN)
        after, info = step.finish(tokens_BN, rows, backward=back_BN, alpha=alpha_BN)
        if correction is not None and score is not None:
            after = replace(after, memory=correction.remember(state, jump_BN, scored[-1]))
        return after, info

    def precompute_reveals(
        self, source: Source, schedule: Schedule, state: State, times: Sequence[float]
    ) -> Reveals | None:
        needs_logits = self.weight is not None and self.weight.needs_logits
        if not source.marks_noise or needs_logits or self.corrector is not None:
            return None
        movable_BN = source.movable(state.tokens, state.fixed)
        reveal_BN = torch.full_like(state.tokens, -1)
        hazards = [self._hazard(schedule, t, t_next) for t, t_next in pairwise(times)]
        reveals_all = hazards[-1] == inf
        hazard_S = torch.tensor(hazards, dtype=torch.float64).to(reveal_BN.device)

        def step(k: Tensor) -> None:
            current = replace(state, step=(state.step + k).expand(len(state.index)))
            jump_BN, _, _ = self._jumps(current, movable_BN, 0.0, hazard_S.index_select(0, k), None)
            reveal_BN.copy_(torch.where(jump_BN, k, reveal_BN))
            movable_BN.logical_and_(~jump_BN)

        sync_free = is_builtin(*terms(self.weight))  # other weights may synchronize
        replay_loop(step, len(hazards) - reveals_all, reveal_BN.device, sync_free=sync_free)
        last = len(hazards) - 1
        return Reveals(reveal_BN.masked_fill(movable_BN, last) if reveals_all else reveal_BN, self)

    def _jumps(
        self,
        state: State,
        masked_BN: Tensor,
        prediction_score: Tensor | float,
        forward_hazard: float | Tensor,
        backward_BN: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw which coordinates jump within the step.

        Returns the forward and the backward jumps, both bool [B, N], and alpha [B, N], or None if
        alpha was not computed. `prediction_score` is the contribution of the logits to the
        log-weight, [B, N] or 0. In the last step, whose forward hazard is infinite, all coordinates
        jump, regardless of alpha.
        """
        if isinstance(forward_hazard, float) and forward_hazard == inf:
            return torch.ones_like(state.fixed), torch.zeros_like(state.fixed), None
        if self.weight is None:
            return *_race(state, masked_BN.double(), forward_hazard, backward_BN), None
        if self.counted:
            log_weight_BN = self.weight.log_weight(~masked_BN, prediction_score, state.prompted)
            jump_BN = _counted(state, masked_BN, log_weight_BN, forward_hazard)
            return jump_BN, torch.zeros_like(state.fixed), None
        alpha_BN = self.weight.alpha(~masked_BN, prediction_score, state.prompted)
        return *_race(state, alpha_BN, forward_hazard, backward_BN), alpha_BN

    def _hazard(self, schedule: Schedule, t: float, t_next: float) -> float:
        """The hazard of the step without a correction; infinite for the last step."""
        if t_next == 1:
            return inf
        if self.hazard == "integrated":
            return float(schedule.integrated_hazard(t, t_next))
        return (t_next - t) * float(schedule.hazard(t))


def _race(
    state: State, alpha_BN: Tensor, forward_hazard: float | Tensor, backward_BN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Draw forward and backward jumps; a forward jump after the backward jump does not count.

    A jump with hazard H happens at the fraction E / H of the step, with E ~ Exp(1).
    """
    forward_BN = alpha_BN * forward_hazard
    forward_clock_BN = state.exponential(Purpose.FORWARD)
    forward_jump_BN = forward_clock_BN < forward_BN
    if backward_BN is None:
        return forward_jump_BN, torch.zeros_like(state.fixed)
    backward_clock_BN = state.exponential(Purpose.BACKWARD)
    backward_jump_BN = backward_clock_BN < backward_BN
    earlier_BN = backward_clock_BN * forward_BN < forward_clock_BN * backward_BN
    return forward_jump_BN & ~(backward_jump_BN & earlier_BN), backward_jump_BN


def _counted(
    state: State, masked_BN: Tensor, log_weight_BN: Tensor, hazard: float | Tensor
) -> Tensor:
    """Draw m of the n masked coordinates, with m ~ Binomial(n, 1 - exp(-H)) as without a weight.

    The m coordinates with the smallest E / alpha are a draw without replacement, with probabilities
    proportional to alpha. Log-weights are used because the alpha of steep weights underflows in
    float64.
    """
    clock_BN = state.exponential(Purpose.FORWARD)
    count_B = ((state.exponential(Purpose.COUNT) < hazard) & masked_BN).sum(1)
    time_BN = clock_BN.log() - log_weight_BN.clamp(min=MIN_LOG_WEIGHT)
    return first_of(torch.where(masked_BN, time_BN, inf).argsort(dim=1), count_B)
