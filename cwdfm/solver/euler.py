"""The Euler solver, with an optional context weight and corrector.

One step from t to t' draws an exponential clock E^i ~ Exp(1) for each coordinate. A masked
coordinate jumps to its proposal xhat_1^i ~ p_{1|t}^i if E^i < alpha^i H, that is, with probability
1 - exp(-alpha^i H): the paper's update rule. H is the hazard of the step.

If alpha does not depend on the logits of this step, the jumps are drawn before the model is
evaluated. Logits are then computed only at coordinates that jump, and sequences without a jump are
skipped; the distribution is the same. With a mask source the jumps of all steps can be drawn first.
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
from cwdfm.model.protocol import Model
from cwdfm.ops.cuda_graph import replay_loop
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import DrawOptions, Info, Reveals, Solver, State, advance, check_step
from cwdfm.solver.proposal import propose
from cwdfm.solver.unmasking_order import first_of
from cwdfm.source import Source
from cwdfm.weight import Weight
from cwdfm.weight.base import terms

DENSE = 5.0  # expected jumps per sequence above which nearly every sequence has a jump
MIN_LOG_WEIGHT = -1e13  # stands in for -inf: lower than the largest scale times any length


@dataclass(frozen=True)
class Corrector:
    """Multiply the forward rates by a_t and the backward rates by a_t - 1 (Gat et al. 2024), where

        a_t = 1 + scale t^a (1 - t)^b.

    The backward velocity is kappa'_t / kappa_t [p_0 - delta(x_t)]; with a mask source it re-masks
    tokens. Without a context weight the marginals p_t do not depend on the scale, but errors get
    more chances to be corrected. A weight multiplies the forward rates only (see docs/method.md).
    """

    scale: float = 1.0
    a: float = 0.5
    b: float = 0.5

    def __post_init__(self) -> None:
        values = (self.scale, self.a, self.b)
        if not all(isinstance(v, int | float) and 0 <= v < inf for v in values):
            raise InputError(
                f"corrector must have a finite scale, a and b >= 0, got {self}; a negative scale "
                f"would make rates negative",
                fields=("corrector",),
            )

    def strength(self, t: float) -> float:
        """a_t - 1."""
        return float(self.scale * t**self.a * (1 - t) ** self.b)

    def backward_hazard(self, schedule: Schedule, t: float, t_next: float, exact: bool) -> float:
        """(a_t - 1) kappa'_t / kappa_t, multiplied by the step size, or integrated if `exact`.

        At kappa_t = 0 the state is pure noise, which re-noising does not change: the hazard is 0.
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
class Euler(DrawOptions, Solver):
    """First-order simulation of jumps to the model's proposals, with rates alpha^i(x_t) lambda_t.

    - `weight`: None for the plain Euler solver; Neighbor or Entropy for the paper's solvers.
    - `hazard`: "euler" for H = (t' - t) lambda_t, as in the paper; "integrated" for
      H = log((1 - kappa_t) / (1 - kappa_t')), which is exact for constant alpha at no extra cost.
    - `counted`: True lets as many coordinates jump as without a weight: those with the smallest
      E / alpha. False is the paper's rule: each coordinate jumps independently with probability
      1 - exp(-alpha H). Fewer coordinates then jump than without a weight if alpha H is not small,
      and the last step reveals all remaining ones at once.
    - `corrector`: re-noises tokens (see Corrector). The weight multiplies the forward rates only.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    weight: Weight | None = None
    hazard: Literal["euler", "integrated"] = "euler"
    counted: bool = False
    corrector: Corrector | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("hazard", self.hazard, ("euler", "integrated"))
        check_bool("counted", self.counted)
        if self.weight is not None and not isinstance(self.weight, Weight):
            raise InputError(f"weight must be a context weight or None, got {self.weight!r}")
        if self.corrector is not None and not isinstance(self.corrector, Corrector):
            raise InputError(f"corrector must be a Corrector or None, got {self.corrector!r}")
        if self.counted and self.corrector is not None:
            raise InputError(
                "counted=True does not support a corrector, because the number of forward jumps "
                "would depend on the backward jumps; omit one of the two"
            )

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
        x_BN = state.tokens
        t_B = torch.full((len(x_BN),), t, dtype=torch.float32, device=x_BN.device)
        marked, movable_BN = source.marks_noise, source.movable(x_BN, state.fixed)
        forward_hazard, backward_hazard = self._hazards(schedule, t, t_next)
        backward_BN = None
        if backward_hazard > 0:
            # The part p_0(x^i) of the backward velocity keeps the current token: no jump.
            backward_BN = backward_hazard * source.renoise_probability(x_BN) * ~state.fixed

        survival = float(schedule.survival(t)) if marked else 1.0
        if self.weight is None or (marked and not self.weight.needs_logits):
            # Draw the jumps first, then evaluate the model only there.
            jump_BN, back_BN, alpha_BN = self._jumps(
                state, movable_BN, 0.0, forward_hazard, backward_BN
            )
            expected = survival * -expm1(-forward_hazard) * state.max_free
            rows = Positions.of(jump_BN & movable_BN, dense=expected >= DENSE)
            proposal_BN, _ = propose(model, source, state, t_B, rows, self)
            jump_BN = proposal_BN != x_BN
        else:
            # The weight needs logits, or proposals to identify revealed tokens: model first.
            rows = Positions.of(movable_BN, dense=survival * state.max_free >= DENSE)
            scores = (self.weight,) if self.weight.needs_logits else ()
            proposal_BN, scored = propose(model, source, state, t_B, rows, self, scores)
            masked_BN = movable_BN if marked else movable_BN & (proposal_BN != x_BN)
            score = scored[0] if scored else 0.0
            jump_BN, back_BN, alpha_BN = self._jumps(
                state, masked_BN, score, forward_hazard, backward_BN
            )
            jump_BN = jump_BN & masked_BN

        back_BN = back_BN & ~jump_BN
        tokens_BN = torch.where(jump_BN, proposal_BN, x_BN)
        if backward_hazard > 0:
            u_BN = uniform_BN(state.seed, Purpose.RENOISE, state.index, state.step, x_BN.shape[1])
            tokens_BN = torch.where(back_BN, source.renoise(x_BN, u_BN), tokens_BN)
        info = Info(t, t_next, jump_BN, back_BN, len(rows), rows.mask.any(1), alpha_BN)
        return advance(source, state, tokens_BN), info

    def precompute_reveals(
        self, source: Source, schedule: Schedule, state: State, times: Sequence[float]
    ) -> Reveals | None:
        needs_logits = self.weight is not None and self.weight.needs_logits
        if not source.marks_noise or needs_logits or self.corrector is not None:
            return None
        movable_BN = source.movable(state.tokens, state.fixed)
        reveal_BN = torch.full_like(state.tokens, -1)
        hazards = [self._hazards(schedule, t, t_next)[0] for t, t_next in pairwise(times)]
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
        """Draw which coordinates jump forward and backward within the step, each bool [B, N].

        The third value is alpha [B, N], or None if it was not computed.
        `prediction_score` is the contribution of the logits to the log-weight, [B, N] or 0. The
        infinite forward hazard of the last step moves all coordinates, independently of alpha.
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

    def _hazards(self, schedule: Schedule, t: float, t_next: float) -> tuple[float, float]:
        """The forward and backward hazards of the step. The last step has no backward jumps."""
        if t_next == 1:
            return inf, 0.0
        exact = self.hazard == "integrated"
        if exact:
            forward = float(schedule.integrated_hazard(t, t_next))
        else:
            forward = (t_next - t) * float(schedule.hazard(t))
        if self.corrector is None:
            return forward, 0.0
        forward *= 1 + self.corrector.strength(t)
        return forward, self.corrector.backward_hazard(schedule, t, t_next, exact)


def _race(
    state: State, alpha_BN: Tensor, forward_hazard: float | Tensor, backward_BN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Draw forward jumps that precede any backward jump of the step, and backward jumps.

    A jump with hazard H happens at time E / H of the step, E ~ Exp(1).
    """
    forward_BN = alpha_BN * forward_hazard
    forward_clock_BN = _exponential(state, Purpose.FORWARD)
    forward_jump_BN = forward_clock_BN < forward_BN
    if backward_BN is None:
        return forward_jump_BN, torch.zeros_like(state.fixed)
    backward_clock_BN = _exponential(state, Purpose.BACKWARD)
    backward_jump_BN = backward_clock_BN < backward_BN
    earlier_BN = backward_clock_BN * forward_BN < forward_clock_BN * backward_BN
    return forward_jump_BN & ~(backward_jump_BN & earlier_BN), backward_jump_BN


def _counted(
    state: State, masked_BN: Tensor, log_weight_BN: Tensor, hazard: float | Tensor
) -> Tensor:
    """The m coordinates with the smallest E / alpha, where m jumps occur without a weight.

    m ~ Binomial(n, 1 - exp(-H)) for n masked coordinates. This draws m coordinates without
    replacement, with probabilities proportional to alpha. It works with log-weights, because the
    alpha of steep weights underflow in float64.
    """
    clock_BN = _exponential(state, Purpose.FORWARD)
    count_B = ((_exponential(state, Purpose.COUNT) < hazard) & masked_BN).sum(1)
    time_BN = clock_BN.log() - log_weight_BN.clamp(min=MIN_LOG_WEIGHT)
    return first_of(torch.where(masked_BN, time_BN, inf).argsort(dim=1), count_B)


def _exponential(state: State, purpose: Purpose) -> Tensor:
    """Draw Exp(1) variables [B, N]."""
    length = state.tokens.shape[1]
    return -torch.log1p(-uniform_BN(state.seed, purpose, state.index, state.step, length))
