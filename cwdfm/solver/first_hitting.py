"""First hitting: the chain itself, without a time grid, one token a model call."""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw, first_above
from cwdfm.ops.random import Purpose, uniform
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Info, Solver, State
from cwdfm.solver.proposal import check_step, propose
from cwdfm.solver.unmasking_order import masked_coordinates, unmask
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class FirstHitting(Solver):
    """Exact simulation of the chain with rates alpha^i(x_t) lambda_t (Zheng et al. 2024).

    With m masked coordinates the next jump comes at rate m lambda_t, since alpha averages to 1 over
    them: the weight does not show in when, only in where. So, with S = 1 - kappa,

        S <- S u^(1/m),   u uniform,   t = kappa^-1(1 - S),

    is the time of the next jump, and alpha^i / m the chance that it is i's. The token comes from
    the model's prediction at that time. There is no discretisation error.

    - `weight`: None is the masked diffusion of the paper; else any context weight, those that need
      logits included: they cost a prediction at every masked coordinate, others at one.
    - `temperature`, `top_p`, `dtype`: of the categorical draws.

    One step is one token of each sequence, whatever t and t_next: times are the sampler's own, one
    a sequence. A finished sequence costs nothing. The last step, to t_next = 1, unmasks all that is
    left, so be exact and give at least as many steps as there are free coordinates.
    """

    weight: Weight | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_draw(self.temperature, self.top_p, self.dtype)
        if self.weight is not None and not isinstance(self.weight, Weight):
            raise InputError(f"weight must be a context weight or None, got {self.weight!r}")

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
        masked_BN = masked_coordinates(self, source, state)
        t_B = hitting_times(schedule, state, masked_BN)
        if t_next == 1:
            chosen_BN, rows = masked_BN, Positions.of(masked_BN)
            proposal_BN, _ = propose(model, source, state, t_B, rows, self)
        elif self.weight is None or not self.weight.needs_logits:
            # The coordinate first, then the model, there alone.
            alpha_BN = masked_BN.double() if self.weight is None else self.weight(~masked_BN)
            chosen_BN = _next(state, alpha_BN, masked_BN)
            rows = Positions.of(chosen_BN)
            proposal_BN, _ = propose(model, source, state, t_B, rows, self)
        else:
            rows = Positions.of(masked_BN)
            asked = (model, source, state, t_B, rows, self)
            proposal_BN, (score_BN,) = propose(*asked, (self.weight,))
            chosen_BN = _next(state, self.weight.alpha(~masked_BN, score_BN), masked_BN)
        return unmask(source, state, proposal_BN, chosen_BN, rows, (t, t_next))


def hitting_times(schedule: Schedule, state: State, masked_BN: Tensor) -> Tensor:
    """When each sequence's next jump comes, [B].

    S at that time is what was left at the start, times u_k^(1/k) for k = F, F - 1, ..., m: one
    factor for each jump so far, of the F free coordinates, and one for the next. The uniforms are
    counted by k, so the number of masked coordinates is all that need be known of the past.
    """
    k_N = torch.arange(1, masked_BN.shape[1] + 1, device=masked_BN.device)
    u_BN = uniform(state.seed, Purpose.HITTING, state.index[:, None], 0, k_N[None, :])
    masked_B1, free_B1 = masked_BN.sum(1, keepdim=True), (~state.fixed).sum(1, keepdim=True)
    happened_BN = (masked_B1 <= k_N) & (k_N <= free_B1)
    log_survival_B = torch.where(happened_BN, torch.log1p(-u_BN) / k_N, 0.0).sum(1)
    return schedule.inverse(-torch.expm1(log_survival_B + log(state.left))).clamp(0.0, 1.0)


def _next(state: State, alpha_BN: Tensor, masked_BN: Tensor) -> Tensor:
    """One coordinate of each unfinished sequence, with probability alpha^i / m; bool [B, N]."""
    active_A = masked_BN.any(1).nonzero()[:, 0]
    index_A = state.index[active_A]
    u_A = uniform(state.seed, Purpose.NEXT, index_A, state.step, torch.zeros_like(index_A))
    place_A, _ = first_above(alpha_BN[active_A], u_A)
    chosen_BN = torch.zeros_like(masked_BN)
    chosen_BN[active_A, place_A] = True
    return chosen_BN
