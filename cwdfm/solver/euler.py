"""The Euler solver of the chain, with context weights, and with a corrector.

One step from t to t' works with exponential clocks E ~ Exp(1), one a coordinate. A masked
coordinate moves to its proposal xhat_1^i ~ p_{1|t}^i if E^i < alpha^i H, so with probability
1 - exp(-alpha^i H): the paper's update rule. H is the hazard of the step.

Whenever alpha does not depend on this step's logits, the jumps are drawn before the model is
asked. Then logits are needed only where something jumps, and not at all for a sequence in which
nothing does; the law is the same. With a mask source all steps' jumps can be drawn first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import expm1, inf
from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_bool, check_choice
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw
from cwdfm.ops.cuda_graph import replay_loop
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Info, Reveals, Solver, State, moved
from cwdfm.solver.corrector import Corrector
from cwdfm.solver.proposal import check_step, propose
from cwdfm.solver.unmasking_order import first_of
from cwdfm.source import Source
from cwdfm.weight import Weight
from cwdfm.weight.base import terms

CROWDED = 5.0  # jumps of a sequence to be expected, from where on hardly any has none
LEAST = -1e13  # log-weight, for those that are -inf: below the largest scale times any length


@dataclass(frozen=True)
class Euler(Solver):
    """First-order simulation of rates alpha^i(x_t) lambda_t towards the model's proposals.

    - `weight`: None is the plain Euler solver; Neighbor and Entropy give the paper's two.
    - `hazard`: H = (t' - t) lambda_t for "euler", the paper's; H = log((1 - kappa_t) /
      (1 - kappa_t')) for "integrated", which is exact for constant alpha and costs nothing.
    - `counted`: as many coordinates move as without a weight, those first whose clocks E / alpha
      ring first. Else each moves on its own with probability 1 - exp(-alpha H), the paper's rule,
      by which fewer move than without a weight wherever alpha H is not small: what is left over is
      then revealed all at once in the last step.
    - `corrector`: None, or re-noising (see Corrector); the weight acts on the forward part.
    - `temperature`, `top_p`, `dtype`: of the categorical draws. Weights see the model's own logits.
    """

    weight: Weight | None = None
    hazard: Literal["euler", "integrated"] = "euler"
    counted: bool = False
    corrector: Corrector | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_choice("hazard", self.hazard, ("euler", "integrated"))
        check_bool("counted", self.counted)
        check_draw(self.temperature, self.top_p, self.dtype)
        if self.weight is not None and not isinstance(self.weight, Weight):
            raise InputError(f"weight must be a context weight or None, got {self.weight!r}")
        if self.corrector is not None and not isinstance(self.corrector, Corrector):
            raise InputError(f"corrector must be a Corrector or None, got {self.corrector!r}")
        if self.counted and self.corrector is not None:
            raise InputError(
                "counted=True with a corrector: how many tokens move forward is settled by a race "
                "with those that move back; leave one of the two out"
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
        check_step(t, t_next)
        x_BN = state.tokens
        t_B = torch.full((len(x_BN),), t, dtype=torch.float32, device=x_BN.device)
        marked, movable_BN = source.marks_noise, source.movable(x_BN, state.fixed)
        forward_hazard, backward_hazard = self._hazards(schedule, t, t_next)
        backward_BN = None
        if backward_hazard > 0:
            # The part p_0(x^i) of the backward velocity falls on the present token: no jump at all.
            backward_BN = backward_hazard * source.renoise_probability(x_BN) * ~state.fixed

        left = float(schedule.survival(t)) if marked else 1.0
        if self.weight is None or (marked and not self.weight.needs_logits):
            # The jumps first, then the model, where they are.
            jump_BN, back_BN = self._rings(state, movable_BN, 0.0, forward_hazard, backward_BN)
            expected = left * -expm1(-forward_hazard) * state.free
            rows = Positions.of(jump_BN & movable_BN, dense=expected >= CROWDED)
            proposal_BN, _ = propose(model, source, state, t_B, rows, self)
            jump_BN = proposal_BN != x_BN
        else:
            # The weight reads logits, or needs proposals to tell what is revealed: the model first.
            rows = Positions.of(movable_BN, dense=left * state.free >= CROWDED)
            scores = (self.weight,) if self.weight.needs_logits else ()
            proposal_BN, scored = propose(model, source, state, t_B, rows, self, scores)
            masked_BN = movable_BN if marked else movable_BN & (proposal_BN != x_BN)
            score = scored[0] if scored else 0.0
            jump_BN, back_BN = self._rings(state, masked_BN, score, forward_hazard, backward_BN)
            jump_BN = jump_BN & masked_BN

        back_BN = back_BN & ~jump_BN
        tokens_BN = torch.where(jump_BN, proposal_BN, x_BN)
        if backward_hazard > 0:
            u_BN = uniform_BN(state.seed, Purpose.RENOISE, state.index, state.step, x_BN.shape[1])
            tokens_BN = torch.where(back_BN, source.renoise(x_BN, u_BN), tokens_BN)
        info = Info(t, t_next, jump_BN, back_BN, len(rows), rows.mask.any(1))
        return moved(source, state, tokens_BN), info

    def reveals(
        self, source: Source, schedule: Schedule, state: State, times: Sequence[float]
    ) -> Reveals | None:
        reads_logits = self.weight is not None and self.weight.needs_logits
        if not source.marks_noise or reads_logits or self.corrector is not None:
            return None
        movable_BN = source.movable(state.tokens, state.fixed)
        reveal_BN = torch.full_like(state.tokens, -1)
        hazards = [self._hazards(schedule, t, t_next)[0] for t, t_next in pairwise(times)]
        ends = hazards[-1] == inf
        hazard_S = torch.tensor(hazards, dtype=torch.float64).to(reveal_BN.device)

        def step(k: Tensor) -> None:
            now = replace(state, step=(state.step + k).expand(len(state.index)))
            jump_BN, _ = self._rings(now, movable_BN, 0.0, hazard_S.index_select(0, k), None)
            reveal_BN.copy_(torch.where(jump_BN, k, reveal_BN))
            movable_BN.logical_and_(~jump_BN)

        replay_loop(step, len(hazards) - ends, reveal_BN.device, sync_free=_ours(self.weight))
        last = len(hazards) - 1
        return Reveals(reveal_BN.masked_fill(movable_BN, last) if ends else reveal_BN, self)

    def _rings(
        self,
        state: State,
        masked_BN: Tensor,
        prediction_score: Tensor | float,
        forward_hazard: float | Tensor,
        backward_BN: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Which clocks ring within the step, forward and backward.

        `prediction_score` is what logits add to the log-weight, [B, N] or 0. An infinite forward
        hazard, the last step's, moves everything, whatever its alpha.
        """
        if isinstance(forward_hazard, float) and forward_hazard == inf:
            return torch.ones_like(state.fixed), torch.zeros_like(state.fixed)
        if self.weight is None:
            return _race(state, masked_BN.double(), forward_hazard, backward_BN)
        if self.counted:
            log_weight_BN = self.weight.context_score(~masked_BN).double() + prediction_score
            jump_BN = _counted(state, masked_BN, log_weight_BN, forward_hazard)
            return jump_BN, torch.zeros_like(state.fixed)
        alpha_BN = self.weight.alpha(~masked_BN, prediction_score)
        return _race(state, alpha_BN, forward_hazard, backward_BN)

    def _hazards(self, schedule: Schedule, t: float, t_next: float) -> tuple[float, float]:
        """The hazards of the step, forward and backward; the last step is forward alone."""
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


def _ours(weight: Weight | None) -> bool:
    """Whether all of a weight is the library's own, which does not wait for the device."""
    return all(type(term).__module__.startswith("cwdfm.") for term in terms(weight))


def _race(
    state: State, alpha_BN: Tensor, forward_hazard: float | Tensor, backward_BN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Which forward clocks ring within the step, and before the backward ones; which of these do.

    A clock of hazard H rings at time E / H of the step, E ~ Exp(1).
    """
    forward_BN = alpha_BN * forward_hazard
    forward_clock_BN = _exponential(state, Purpose.FORWARD)
    forward_rings_BN = forward_clock_BN < forward_BN
    if backward_BN is None:
        return forward_rings_BN, torch.zeros_like(state.fixed)
    backward_clock_BN = _exponential(state, Purpose.BACKWARD)
    backward_rings_BN = backward_clock_BN < backward_BN
    earlier_BN = backward_clock_BN * forward_BN < forward_clock_BN * backward_BN
    return forward_rings_BN & ~(backward_rings_BN & earlier_BN), backward_rings_BN


def _counted(
    state: State, masked_BN: Tensor, log_weight_BN: Tensor, hazard: float | Tensor
) -> Tensor:
    """The first m clocks E / alpha to ring, m being how many ring within the step without a weight.

    So m ~ Binomial(n, 1 - exp(-H)) of the n masked coordinates, and they are drawn one by one
    without replacement, each with probability alpha^i over the sum of what is left. By logarithms:
    of steep weights most are 0 in float64, and their coordinates have an order and a number too.
    """
    clock_BN = _exponential(state, Purpose.FORWARD)
    count_B = ((_exponential(state, Purpose.COUNT) < hazard) & masked_BN).sum(1)
    rings_BN = clock_BN.log() - log_weight_BN.clamp(min=LEAST)
    return first_of(torch.where(masked_BN, rings_BN, inf).argsort(dim=1), count_B)


def _exponential(state: State, purpose: Purpose) -> Tensor:
    """Exp(1) draws [B, N]."""
    length = state.tokens.shape[1]
    return -torch.log1p(-uniform_BN(state.seed, purpose, state.index, state.step, length))
