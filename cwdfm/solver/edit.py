"""Token editing: replace revealed tokens by those that the model prefers in their context."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_integer, is_number, require
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.solver.base import Info, Solver, State, advance
from cwdfm.solver.step import Step, StepSolver
from cwdfm.source import Source


@dataclass(frozen=True)
class Edit(StepSolver):
    """A solver that also replaces tokens it has revealed, as LLaDA2.1 does; for a mask source.

    Each step also predicts the tokens that were revealed before it. Where another token has a
    probability of at least `edit_threshold`, the most likely token takes its place. Once nothing is
    masked, editing continues until nothing changes; all remaining edits belong to the last step.

    `Edit(Threshold(0.7, temperature=0.0), 0.5)` is the algorithm of LLaDA2.1. The model
    must predict revealed tokens too: it was trained with a loss on all coordinates. Edits favor
    likely tokens, so the law is not the target's even for a perfect model.

    - `solver`: reveals the tokens. Its temperature does not apply to edits.
    - `edit_threshold`: the minimum probability at which another token replaces a revealed one. With
      0, the most likely token always replaces it.
    - `post_steps`: the maximum number of evaluations of a sequence after all tokens are revealed.
    """

    solver: Solver
    edit_threshold: float = 0.9
    post_steps: int = 16

    def __post_init__(self) -> None:
        check_instance("solver", self.solver, Solver, "Threshold(0.7)")
        if isinstance(self.solver, Edit):
            raise InputError(f"the solver of Edit must not edit tokens itself, got {self.solver}")
        valid = is_number(self.edit_threshold) and 0 <= self.edit_threshold <= 1
        require(valid, "edit_threshold", "be a probability from 0 to 1", self.edit_threshold)
        check_integer("post_steps", self.post_steps, 0)

    def unfinished(self, source: Source, state: State) -> Tensor | None:
        masked_B = source.movable(state.tokens, state.fixed).any(1)
        return masked_B if state.memory is None else masked_B | (state.memory[1] > 0)

    def take(self, step: Step) -> tuple[State, Info]:
        source, state = step.source, step.state
        if not source.marks_noise:
            raise InputError(
                f"Edit replaces revealed tokens, and {source} does not mark which tokens are "
                f"revealed; use a MaskSource, or Gibbs, which supports every source"
            )
        masked_B, free_BN = step.movable.any(1), ~state.fixed
        # What the solver remembers, and how many evaluations without masks are left.
        memory, left_B = state.memory or (None, torch.full_like(state.index, self.post_steps))
        open_BN = free_BN & ~step.movable & (masked_B | (left_B > 0))[:, None]
        model = _EditingModel(step.model, source, state.tokens, open_BN)
        after, info = self.solver.step(
            model, source, step.schedule, replace(state, memory=memory), step.t, step.t_next
        )
        memory, evaluated_B, logits = after.memory, info.evaluated.long(), info.logit_evaluations
        while True:
            tokens_BN = model.edit(after.tokens, torch.where(masked_B, step.t, 1.0), self)
            evaluated_B, logits = evaluated_B + model.evaluated, logits + model.logit_evaluations
            edited_B = (tokens_BN != after.tokens).any(1)
            after = replace(advance(source, after, tokens_BN), step=after.step)
            left_B = torch.where(masked_B, left_B, (left_B - 1) * edited_B)
            if not step.last or not bool((left_B > 0).any()):
                break
            masked_B = torch.zeros_like(masked_B)
            model = _EditingModel(step.model, source, tokens_BN, free_BN & (left_B > 0)[:, None])
        changed_BN = tokens_BN != state.tokens
        return replace(after, memory=(memory, left_B)), replace(
            info,
            forward=changed_BN & ~info.backward,
            backward=changed_BN & info.backward,
            evaluated=evaluated_B,
            logit_evaluations=logits,
        )


class _EditingModel:
    """A model that also predicts the tokens that may be edited, in the first call of a step."""

    returns_logits = True  # the logits were checked

    def __init__(self, model: Model, source: Source, x_BN: Tensor, open_BN: Tensor) -> None:
        self.model, self.source, self.x_BN, self.open_BN = model, source, x_BN, open_BN
        self.best_BN, self.log_p_BN = x_BN.clone(), torch.zeros(x_BN.shape, device=x_BN.device)
        self.called = False
        # What was evaluated for edits alone.
        self.evaluated, self.logit_evaluations = torch.zeros_like(x_BN[:, 0]), 0

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.model(x_t, t)

    def logits_at(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Iterator[Tensor]:
        """Logits [k, V] of the data tokens at `rows`, in order, in chunks."""
        arguments = (self.model, self.source, x_BN, t_B)
        if self.called:  # a second prediction, of other tokens than those of the step
            yield from (logits_kV for _, logits_kV in predict_logits(*arguments, rows))
            return
        self.called = True
        only_BN = self.open_BN & ~rows.mask
        self.evaluated = (only_BN.any(1) & ~rows.mask.any(1)).long()
        self.logit_evaluations = int(only_BN.sum())
        every = Positions.of(rows.mask | self.open_BN)
        asked_K = every.take(rows.mask)
        for k, logits_kV in predict_logits(*arguments, every):
            top_k, best_k = logits_kV.float().max(-1)
            self._store(self.best_BN, every.flat[k], best_k)
            self._store(self.log_p_BN, every.flat[k], top_k - logits_kV.float().logsumexp(-1))
            asked_kV = logits_kV[asked_K[k]]
            if len(asked_kV):
                yield asked_kV

    @staticmethod
    def _store(x_BN: Tensor, flat_k: Tensor, value_k: Tensor) -> None:
        x_BN.view(-1).index_copy_(0, flat_k, value_k)

    def edit(self, tokens_BN: Tensor, t_B: Tensor, options: Edit) -> Tensor:
        """The edited tokens after the step."""
        if not self.called:
            nothing = Positions.of(torch.zeros_like(self.open_BN))
            for _ in self.logits_at(self.x_BN, t_B, nothing):
                pass
        sure_BN = self.log_p_BN.exp() >= options.edit_threshold
        kept_BN = tokens_BN == self.x_BN  # not masked again by the solver
        return torch.where(self.open_BN & sure_BN & kept_BN, self.best_BN, tokens_BN)
