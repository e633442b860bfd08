"""`Step`: the arguments of one solver step, and the computations that solvers share."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, is_number, require
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.schedule import Schedule
from cwdfm.solver.base import DrawOptions, Info, Solver, State, advance
from cwdfm.solver.proposal import RowScore, propose
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class Step:
    """The arguments of `Solver.step`, with 0 <= t < t_next <= 1."""

    model: Model
    source: Source
    schedule: Schedule
    state: State
    t: float
    t_next: float

    def __post_init__(self) -> None:
        require(callable(self.model), "model", "be a callable (x_t, t) -> logits", self.model)
        check_instance("source", self.source, Source, "MaskSource(vocab_size=30)")
        check_instance("schedule", self.schedule, Schedule, "Polynomial(2.0)")
        check_instance("state", self.state, State, "solver.init(source, torch.arange(4), 12)")
        t, t_next = self.t, self.t_next
        if not (is_number(t) and is_number(t_next) and 0 <= t < t_next <= 1):
            raise InputError(f"a step requires 0 <= t < t_next <= 1, got t={t}, t_next={t_next}")

    @property
    def last(self) -> bool:
        """Whether this is the step to t = 1, which must reveal everything."""
        return self.t_next == 1

    @property
    def tokens(self) -> Tensor:
        """x_t [B, N]."""
        return self.state.tokens

    @cached_property
    def movable(self) -> Tensor:
        """The coordinates that may change, bool [B, N]."""
        return self.source.movable(self.tokens, self.state.fixed)

    def times(self, t: float) -> Tensor:
        """The time t for every sequence, float32 [B]."""
        return torch.full((len(self.tokens),), t, dtype=torch.float32, device=self.tokens.device)

    def propose(
        self,
        t_B: Tensor,
        rows: Positions,
        draw: DrawOptions,
        scores: Sequence[Weight | RowScore] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """Proposals and scores at `rows`: see `proposal.propose`."""
        return propose(self.model, self.source, self.state, t_B, rows, draw, scores)

    def logits(self, tokens_BN: Tensor, t_B: Tensor, rows: Positions) -> Tensor:
        """The logits [K, V] at `rows` for the sequences tokens_BN at times t_B, stored in full."""
        inputs = (self.model, self.source, tokens_BN, t_B, rows)
        chunks = [logits_kV for _, logits_kV in predict_logits(*inputs)]
        empty = torch.empty(0, self.source.vocab_size, device=tokens_BN.device)
        return torch.cat(chunks) if chunks else empty

    def finish(
        self,
        tokens_BN: Tensor,
        *evaluated: Positions,
        backward: Tensor | None = None,
        alpha: Tensor | None = None,
    ) -> tuple[State, Info]:
        """The next state, and the diagnostics of a step that evaluated the model at `evaluated`.

        Changed tokens count as forward jumps, except where `backward` [B, N] is True.
        """
        changed_BN = tokens_BN != self.tokens
        back_BN = torch.zeros_like(changed_BN) if backward is None else backward & changed_BN
        evaluations_B = torch.stack([rows.mask.any(1) for rows in evaluated]).sum(0)
        info = Info(
            self.t,
            self.t_next,
            changed_BN & ~back_BN,
            back_BN,
            sum(map(len, evaluated)),
            evaluations_B,
            alpha,
        )
        return advance(self.source, self.state, tokens_BN), info


class StepSolver(Solver):
    """A solver that implements `take(step)` on a validated `Step`."""

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
        return self.take(Step(model, source, schedule, state, t, t_next))

    @abstractmethod
    def take(self, step: Step) -> tuple[State, Info]:
        """Simulate from t to t_next. A step to t_next = 1 reveals all remaining tokens."""
