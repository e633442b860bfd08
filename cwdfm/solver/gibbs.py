"""Gibbs correction: after each step of a solver, redraw some tokens given all others."""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_instance, check_integer
from cwdfm.model.positions import Positions
from cwdfm.ops.random import Purpose
from cwdfm.solver.base import DrawOptions, Info, Solver, State, advance
from cwdfm.solver.correction import leave_out
from cwdfm.solver.step import Step, StepSolver


@dataclass(frozen=True)
class Gibbs(StepSolver):
    """A solver with a Gibbs correction after every step except the last (informed correctors,
    Zhao et al. 2024). It costs one more model evaluation per step.

    The correction redraws coordinates of the state x_t given all others:

        mask source:     revealed x^i ~ p_{1|t}^i(. | x with i masked)
        uniform source:  x^i ~ kappa_t p(x_1^i = . | x^-i) + (1 - kappa_t) / V.

    With one random token this is a Gibbs step, which leaves p_t invariant. With several tokens,
    they are redrawn independently of each other.

    - `solver`: any solver of a flow. Its temperature and top_p also apply to the correction.
    - `tokens`: number of tokens per step.
    - `select`: "random" tokens, or, with a uniform source, those with the lowest probability given
      the others ("unlikely"), which corrects more errors but does not leave p_t invariant.
    - `begin`: the first time of a correction.
    """

    solver: Solver
    tokens: int = 1
    select: Literal["random", "unlikely"] = "random"
    begin: float = 0.0

    def __post_init__(self) -> None:
        check_instance("solver", self.solver, Solver, "Euler()")
        check_integer("tokens", self.tokens)
        check_choice("select", self.select, ("random", "unlikely"))
        if not isinstance(self.begin, int | float) or not 0 <= self.begin < 1:
            raise InputError(f"begin must be a time in [0, 1), got {self.begin!r}")

    def take(self, step: Step) -> tuple[State, Info]:
        source, state = step.source, step.state
        if source.marks_noise and self.select == "unlikely":
            raise InputError(
                f"select='unlikely' needs the prediction of every token from the others, which a "
                f"model with {source} provides at masks only; use select='random', or PathPlanning"
            )
        flow = (step.model, source, step.schedule)
        after, info = self.solver.step(*flow, state, step.t, step.t_next)
        if step.last or step.t_next < self.begin:
            return after, info
        correction = Step(*flow, after, step.t_next, 1.0)
        tokens_BN, rows = (self._redraw_masked if source.marks_noise else self._redraw_uniform)(
            correction
        )
        changed_BN = tokens_BN != state.tokens
        corrected = replace(advance(source, after, tokens_BN), step=after.step)
        return corrected, replace(
            info,
            forward=changed_BN & ~info.backward,
            backward=changed_BN & info.backward,
            evaluated=info.evaluated + rows.mask.any(1).long(),
            logit_evaluations=info.logit_evaluations + len(rows),
        )

    def _draw(self, logits_KV: Tensor, u_K: Tensor) -> Tensor:
        options = self.solver if isinstance(self.solver, DrawOptions) else DrawOptions()
        return options.draw(logits_KV, u_K)

    def _choose(self, rank_BN: Tensor, allowed_BN: Tensor) -> Tensor:
        """The `tokens` allowed coordinates of lowest rank, bool [B, N]."""
        rank_BN = torch.where(allowed_BN, rank_BN, inf)
        low_BK, position_BK = rank_BN.topk(min(self.tokens, rank_BN.shape[1]), largest=False)
        return torch.zeros_like(allowed_BN).scatter(1, position_BK, low_BK < inf)

    def _redraw_masked(self, step: Step) -> tuple[Tensor, Positions]:
        revealed_BN = ~step.movable & ~step.state.fixed
        chosen_BN = self._choose(step.state.uniform(Purpose.SELECT), revealed_BN)
        rows = Positions.of(chosen_BN)
        hidden_BN = torch.where(chosen_BN, step.source.vocab_size, step.tokens)
        logits_KV = step.logits(hidden_BN, step.times(step.t), rows)
        token_K = self._draw(logits_KV, rows.take(step.state.uniform(Purpose.REDRAW)))
        return rows.replace(step.tokens, token_K), rows

    def _redraw_uniform(self, step: Step) -> tuple[Tensor, Positions]:
        free_BN, kappa = ~step.state.fixed, float(step.schedule.kappa(step.t))
        vocab = step.source.vocab_size
        rank_BN = step.state.uniform(Purpose.SELECT)
        rows = Positions.of(self._choose(rank_BN, free_BN) if self.select == "random" else free_BN)
        x_K = rows.take(step.tokens)
        logits_KV = step.logits(step.tokens, step.times(step.t), rows)
        others_KV = leave_out(logits_KV, x_K, kappa, step.source)
        if self.select == "unlikely":
            p_K = others_KV.double().softmax(-1).gather(1, x_K[:, None])[:, 0]
            chosen_BN = self._choose(rows.scatter(p_K) + 1e-12 * rank_BN, free_BN)
        else:
            chosen_BN = rows.mask
        token_K = self._draw(others_KV, rows.take(step.state.uniform(Purpose.REDRAW)))
        u_BN = step.state.uniform(Purpose.KEEP)
        # The token is noise if u >= kappa; (u - kappa) / (1 - kappa) is then uniform.
        noise_BN = ((u_BN - kappa) / (1 - kappa) * vocab).long().clamp(0, vocab - 1)
        drawn_BN = torch.where(u_BN < kappa, rows.replace(step.tokens, token_K), noise_BN)
        return torch.where(chosen_BN, drawn_BN, step.tokens), rows
