"""First hitting: exact simulation without a time grid, one token per model evaluation."""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.ops.categorical import first_above
from cwdfm.ops.random import Purpose, uniform
from cwdfm.schedule import Schedule
from cwdfm.solver.base import DrawOptions, Info, State
from cwdfm.solver.step import Step, StepSolver
from cwdfm.solver.unmasking_order import masked_positions
from cwdfm.weight import Weight
from cwdfm.weight.base import check_weight


@dataclass(frozen=True)
class FirstHitting(DrawOptions, StepSolver):
    """Exact simulation of the chain with rates alpha^i(x_t) lambda_t (Zheng et al. 2024).

    With m masked coordinates the next jump has rate m lambda_t, because alpha averages to 1 over
    them: the weight affects where the next jump happens, not when. With S = 1 - kappa, the time of
    the next jump is

        S <- S u^(1/m),   u uniform,   t = kappa^-1(1 - S),

    and coordinate i jumps with probability alpha^i / m. Its token is drawn from the model's
    prediction at that time. There is no discretization error.

    - `weight`: None for plain masked diffusion, or any context weight. Weights that need logits
      require them at every masked coordinate; otherwise they are computed at one.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.

    One step reveals one token of each sequence, regardless of t and t_next. Finished sequences are
    not evaluated. The last step, to t_next = 1, reveals all remaining coordinates, so the
    simulation is exact only with at least as many steps as free coordinates.
    """

    weight: Weight | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight(self.weight)

    def take(self, step: Step) -> tuple[State, Info]:
        state, masked_BN = step.state, masked_positions(self, step)
        t_B = hitting_times(step.schedule, state, masked_BN)
        if self.weight is not None and self.weight.needs_logits and not step.last:
            rows = Positions.of(masked_BN)
            proposal_BN, (score_BN,) = step.propose(t_B, rows, self, (self.weight,))
            alpha_BN = self.weight.alpha(~masked_BN, score_BN, state.prompted)
            chosen_BN = _choose_next(state, alpha_BN, masked_BN)
        else:
            # Choose the coordinates first, then evaluate the model only there.
            chosen_BN = masked_BN
            if not step.last:
                alpha_BN = masked_BN.double()
                if self.weight is not None:
                    alpha_BN = self.weight.alpha(~masked_BN, 0.0, state.prompted)
                chosen_BN = _choose_next(state, alpha_BN, masked_BN)
            rows = Positions.of(chosen_BN)
            proposal_BN, _ = step.propose(t_B, rows, self)
        return step.finish(torch.where(chosen_BN, proposal_BN, state.tokens), rows)


def hitting_times(schedule: Schedule, state: State, masked_BN: Tensor) -> Tensor:
    """The time [B] of each sequence's next jump.

    At that time, S is start_survival times the product of u_k^(1/k) over k = F, F - 1, ..., m, with
    one factor for each past jump of the F free coordinates and one for the next jump. The uniforms
    are indexed by k, so the time depends on the past only through the number m of masked
    coordinates.
    """
    k_N = torch.arange(1, masked_BN.shape[1] + 1, device=masked_BN.device)
    u_BN = uniform(state.seed, Purpose.HITTING, state.index[:, None], 0, k_N[None, :])
    masked_B1, free_B1 = masked_BN.sum(1, keepdim=True), (~state.fixed).sum(1, keepdim=True)
    included_BN = (masked_B1 <= k_N) & (k_N <= free_B1)
    log_survival_B = torch.where(included_BN, torch.log1p(-u_BN) / k_N, 0.0).sum(1)
    kappa_B = -torch.expm1(log_survival_B + log(state.start_survival))
    return schedule.inverse(kappa_B).clamp(0.0, 1.0)


def _choose_next(state: State, alpha_BN: Tensor, masked_BN: Tensor) -> Tensor:
    """Choose one masked coordinate per sequence with probability alpha^i / m, bool [B, N]."""
    active_A = masked_BN.any(1).nonzero()[:, 0]
    index_A = state.index[active_A]
    u_A = uniform(state.seed, Purpose.NEXT, index_A, state.step, torch.zeros_like(index_A))
    position_A, _ = first_above(alpha_BN[active_A], u_A)
    chosen_BN = torch.zeros_like(masked_BN)
    chosen_BN[active_A, position_A] = True
    return chosen_BN
