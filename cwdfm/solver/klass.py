"""KLASS: reveal the coordinates whose predictions are confident and no longer change."""

from dataclasses import dataclass, replace

import torch

from cwdfm.errors import check_integer, is_number, require
from cwdfm.model.positions import Positions
from cwdfm.ops.random import Purpose
from cwdfm.solver.base import DrawOptions, Info, State
from cwdfm.solver.step import Step, StepSolver
from cwdfm.solver.unmasking_order import (
    best_first,
    check_probability,
    first_of,
    masked_positions,
    revealed_time,
)


@dataclass(frozen=True)
class KLASS(DrawOptions, StepSolver):
    """Reveal all masked coordinates with max p >= threshold and KL(p || previous p) < kl in each of
    the last `history` steps; if there is none, reveal the most confident one (Kim et al. 2025).

    The step size does not matter; the model is conditioned on the revealed fraction, as for `TopK`.
    The predictions of the previous step are stored: [B, N, V].

    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    """

    threshold: float = 0.9
    kl: float = 0.01
    history: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("threshold", self.threshold)
        check_integer("history", self.history)
        require(is_number(self.kl) and self.kl >= 0, "kl", "be a number >= 0, in nats", self.kl)

    def take(self, step: Step) -> tuple[State, Info]:
        state, masked_BN = step.state, masked_positions(self, step)
        masked_B, rows = masked_BN.sum(1), Positions.of(masked_BN)
        t_B = revealed_time(step, masked_B, (~state.fixed).sum(1))
        logits_KV = step.logits(state.tokens, t_B, rows)
        u_K = rows.take(state.uniform(Purpose.PROPOSAL))
        proposal_BN = rows.replace(state.tokens, self.draw(logits_KV, u_K))
        log_p_KV = logits_KV.log_softmax(-1)
        confidence_BN = rows.scatter(log_p_KV.amax(-1).exp().double())
        if state.memory is None:  # nothing to compare with yet
            log_p_MV = log_p_KV.new_zeros(masked_BN.numel(), log_p_KV.shape[1])
            stable_K = torch.zeros_like(rows.flat)
        else:
            log_p_MV, stable_M = state.memory
            change_KV = log_p_KV.exp() * (log_p_KV - log_p_MV[rows.flat])
            divergence_K = torch.where(log_p_KV > -torch.inf, change_KV, 0.0).sum(-1)
            stable_K = torch.where(divergence_K < self.kl, stable_M[rows.flat] + 1, 0)
        ready_BN = rows.scatter(stable_K >= self.history) & (confidence_BN >= self.threshold)
        count_B = masked_B if step.last else ready_BN.sum(1).clamp(min=1).minimum(masked_B)
        order_BN = best_first(state, confidence_BN + 2 * ready_BN, masked_BN)
        tokens_BN = torch.where(first_of(order_BN, count_B), proposal_BN, state.tokens)
        after, info = step.finish(tokens_BN, rows)
        log_p_MV = log_p_MV.index_copy(0, rows.flat, log_p_KV.to(log_p_MV))
        return replace(after, memory=(log_p_MV, rows.scatter(stable_K).flatten())), info
