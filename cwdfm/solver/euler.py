"""The Euler solver of the chain, with context weights, and with a corrector.

One step from t to t' works with exponential clocks E ~ Exp(1), one a coordinate. A masked
coordinate moves to its proposal xhat_1^i ~ p_{1|t}^i if E^i < alpha^i H, so with probability
1 - exp(-alpha^i H): the paper's update rule. H is the hazard of the step.

Whenever alpha does not depend on this step's logits, the jumps are drawn before the model is
asked. Then logits are needed only where something jumps, and not at all for a sequence in which
nothing does; the law is the same.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cwdfm.categorical import check_draw, sample_categorical
from cwdfm.errors import InputError, check_choice
from cwdfm.kernel.head_draw import head_draw
from cwdfm.model.predict import fusible_rows, predict_rows
from cwdfm.model.protocol import Model
from cwdfm.random import Purpose, uniform, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Info, Solver, State, moved
from cwdfm.solver.corrector import Corrector
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class Euler(Solver):
    """First-order simulation of rates alpha^i(x_t) lambda_t towards the model's proposals.

    - `weight`: None is the plain Euler solver; Neighbor and Entropy give the paper's two.
    - `hazard`: H = (t' - t) lambda_t for "euler", the paper's; H = log((1 - kappa_t) /
      (1 - kappa_t')) for "integrated", which is exact for constant alpha and costs nothing.
    - `corrector`: None, or re-noising (see Corrector); the weight acts on the forward part.
    - `temperature`, `top_p`, `dtype`: of the categorical draws. Weights see the model's own logits.
    """

    weight: Weight | None = None
    hazard: Literal["euler", "integrated"] = "euler"
    corrector: Corrector | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_choice("hazard", self.hazard, ("euler", "integrated"))
        check_draw(self.temperature, self.top_p, self.dtype)
        if self.weight is not None and not isinstance(self.weight, Weight):
            raise InputError(f"weight must be a context weight or None, got {self.weight!r}")
        if self.corrector is not None and not isinstance(self.corrector, Corrector):
            raise InputError(f"corrector must be a Corrector or None, got {self.corrector!r}")

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
        if not 0 <= t < t_next <= 1:
            raise InputError(f"a step needs 0 <= t < t_next <= 1, got t={t}, t_next={t_next}")
        x_BN = state.tokens
        known_BN = source.revealed(x_BN)
        movable_BN = ~state.fixed if known_BN is None else ~(state.fixed | known_BN)
        forward_hazard, backward_hazard = self._hazards(schedule, t, t_next)
        # The part p_0(x^i) of the backward velocity falls on the present token: no jump at all.
        backward_BN = backward_hazard * source.renoise_probability(x_BN) * ~state.fixed

        if self.weight is None or (known_BN is not None and not self.weight.needs_logits):
            # The jumps first, then the model, where they are.
            alpha_BN = movable_BN.double() if self.weight is None else self.weight(~movable_BN)
            jump_BN, back_BN = _race(state, alpha_BN, forward_hazard, backward_BN)
            rows_BN = jump_BN & movable_BN
            proposal_BN, _ = self._propose(model, source, state, t, rows_BN)
            jump_BN = rows_BN & (proposal_BN != x_BN)
        else:
            # The weight reads logits, or needs proposals to tell what is revealed: the model first.
            rows_BN = movable_BN
            proposal_BN, score_BN = self._propose(model, source, state, t, rows_BN)
            revealed_BN = state.fixed | (proposal_BN == x_BN if known_BN is None else known_BN)
            alpha_BN = self.weight.alpha(revealed_BN, score_BN)
            jump_BN, back_BN = _race(state, alpha_BN, forward_hazard, backward_BN)
            jump_BN = jump_BN & ~revealed_BN

        back_BN = back_BN & ~jump_BN
        tokens_BN = torch.where(jump_BN, proposal_BN, x_BN)
        if backward_hazard > 0:
            u_BN = uniform_BN(state.seed, Purpose.RENOISE, state.index, state.step, x_BN.shape[1])
            tokens_BN = torch.where(back_BN, source.renoise(x_BN, u_BN), tokens_BN)
        info = Info(t, t_next, jump_BN, back_BN, int(rows_BN.sum()), rows_BN.any(1))
        return moved(source, state, tokens_BN), info

    def _hazards(self, schedule: Schedule, t: float, t_next: float) -> tuple[float, float]:
        """The hazards of the step, forward and backward; the last step is forward alone."""
        if t_next == 1:
            return float("inf"), 0.0
        exact = self.hazard == "integrated"
        if exact:
            forward = float(schedule.integrated_hazard(t, t_next))
        else:
            forward = (t_next - t) * float(schedule.hazard(t))
        if self.corrector is None:
            return forward, 0.0
        forward *= 1 + self.corrector.strength(t)
        return forward, self.corrector.backward_hazard(schedule, t, t_next, exact)

    @property
    def _fusible(self) -> bool:
        """Whether draws and weight can do without logits: see `head_draw`."""
        summed = self.weight is None or self.weight.needs_summary_alone
        return summed and self.top_p == 1 and self.dtype == torch.float64

    def _propose(
        self,
        model: Model,
        source: Source,
        state: State,
        t: float,
        rows_BN: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Proposals xhat_1 ~ p_{1|t} and the weight's prediction scores at rows_BN, each [B, N].

        Elsewhere the proposal is the present token and the score 0.
        """
        b_K, i_K = rows_BN.nonzero(as_tuple=True)
        u_K = uniform(state.seed, Purpose.PROPOSAL, state.index[b_K], state.step, i_K)
        proposal_BN = state.tokens.clone()
        score_BN = torch.zeros(rows_BN.shape, dtype=torch.float64, device=rows_BN.device)
        t_B = torch.full((len(rows_BN),), t, dtype=torch.float32, device=rows_BN.device)
        asked = (model, source, state.tokens, t_B, rows_BN)
        scored = self.weight is not None and self.weight.needs_logits
        if self._fusible and (found := fusible_rows(*asked)) is not None:
            drawn = head_draw(
                *found, u_K, source.vocab_size, temperature=self.temperature, scores=scored
            )
            proposal_BN[b_K, i_K] = drawn.tokens
            if self.weight is not None and drawn.entropy is not None:
                assert drawn.confidence is not None
                score_BN[b_K, i_K] = self.weight.summary_score(drawn.entropy, drawn.confidence)
            return proposal_BN, score_BN
        first = 0
        for logits_kV in predict_rows(*asked):
            k = slice(first, first + len(logits_kV))
            proposal_BN[b_K[k], i_K[k]] = sample_categorical(
                logits_kV,
                u_K[k],
                temperature=self.temperature,
                top_p=self.top_p,
                dtype=self.dtype,
            )
            if self.weight is not None and scored:
                score_BN[b_K[k], i_K[k]] = self.weight.prediction_score(logits_kV).double()
            first = k.stop
        return proposal_BN, score_BN


def _race(
    state: State, alpha_BN: Tensor, forward_hazard: float, backward_BN: Tensor
) -> tuple[Tensor, Tensor]:
    """Which forward clocks ring within the step, and before the backward ones; which of these do.

    A clock of hazard H rings at time E / H of the step, E ~ Exp(1). An infinite forward hazard, the
    last step's, moves everything, whatever its alpha.
    """
    if forward_hazard == float("inf"):
        return torch.ones_like(state.fixed), torch.zeros_like(state.fixed)
    forward_BN = alpha_BN * forward_hazard
    forward_clock_BN = _exponential(state, Purpose.FORWARD)
    forward_rings_BN = forward_clock_BN < forward_BN
    if not bool((backward_BN > 0).any()):
        return forward_rings_BN, torch.zeros_like(state.fixed)
    backward_clock_BN = _exponential(state, Purpose.BACKWARD)
    backward_rings_BN = backward_clock_BN < backward_BN
    earlier_BN = backward_clock_BN * forward_BN < forward_clock_BN * backward_BN
    return forward_rings_BN & ~(backward_rings_BN & earlier_BN), backward_rings_BN


def _exponential(state: State, purpose: Purpose) -> Tensor:
    """Exp(1) draws [B, N]."""
    length = state.tokens.shape[1]
    return -torch.log1p(-uniform_BN(state.seed, purpose, state.index, state.step, length))
