"""Path planning (P2): a step keeps the best of the revealed and the newly drawn tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import is_number, require
from cwdfm.model.positions import Positions
from cwdfm.solver.base import DrawOptions, Info, State
from cwdfm.solver.step import Step, StepSolver
from cwdfm.solver.unmasking_order import (
    best_first,
    first_of,
    masked_positions,
    remaining,
    revealed_time,
)


@dataclass(frozen=True)
class PathPlanning(DrawOptions, StepSolver):
    """P2 with the model as its own planner (Peng et al. 2025), for a mask source.

    A step draws a token at every masked coordinate and keeps the F - floor(F (1 - kappa_t')) best
    of a sequence's F free coordinates, by log p(drawn token) for masked ones and eta log p(current
    token) for revealed ones. All others are masked, even if they were revealed before.

    The model must also predict revealed tokens, that is, be trained with a loss on all coordinates.
    The selection favors likely tokens, so even a perfect model does not sample its target
    distribution.

    - `eta`: how easily revealed tokens are masked again; 0 for never.
    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    eta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_number(self.eta) and self.eta >= 0, "eta", "be a number >= 0", self.eta)

    def take(self, step: Step) -> tuple[State, Info]:
        state, masked_BN, mask_id = step.state, masked_positions(self, step), step.source.vocab_size
        free_BN = ~state.fixed
        free_B = free_BN.sum(1)

        def score(logits_kV: Tensor, current_k: Tensor, drawn_k: Tensor) -> Tensor:
            masked_k = current_k == mask_id
            token_k = torch.where(masked_k, drawn_k, current_k)
            log_p_k = logits_kV.double().log_softmax(-1).gather(1, token_k[:, None])[:, 0]
            return torch.where(masked_k, log_p_k, self.eta * log_p_k)

        rows = Positions.of(masked_BN if step.last else free_BN)
        t_B = revealed_time(step, masked_BN.sum(1), free_B)
        proposal_BN, (score_BN,) = step.propose(t_B, rows, self, [score])
        if step.last:
            return step.finish(proposal_BN, rows)
        stay = float(step.schedule.survival(step.t_next)) / state.start_survival
        order_BN = best_first(state, score_BN, free_BN)
        kept_BN = first_of(order_BN, free_B - remaining(free_B, stay))
        tokens_BN = torch.where(kept_BN & masked_BN, proposal_BN, state.tokens)
        tokens_BN = torch.where(free_BN & ~kept_BN, mask_id, tokens_BN)
        return step.finish(tokens_BN, rows, backward=free_BN & ~kept_BN)
