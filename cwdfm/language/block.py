"""One block of a canvas as a model that solvers can step.

Shapes: B batch, A sequences that are evaluated, C context columns before the block, L tokens per
block, K predicted tokens, V ids.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, describe
from cwdfm.language.model import LanguageModel
from cwdfm.language.session import Session
from cwdfm.model.predict import check_not_probabilities

# Changes the logits [K, V] of some tokens, in place or not, given their prompt numbers and their
# positions after the prompt, both [K]. Ids are the tokenizer's.
Constraint = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Limits:
    """Which tokens may be drawn."""

    never: Tensor | None = None  # [S] ids that are never drawn
    stop_ids: Tensor | None = None  # [S] ids that are not drawn after an open position
    constraint: Constraint | None = None


class BlockModel(nn.Module):
    """A split model of the block, given the rest of the canvas.

    Its input [B, C + L] has some columns before the block too, for the context weights. Its hidden
    vectors are numbers of rows, so that the head knows which tokens it predicts.
    """

    returns_logits = True  # no test for probabilities is needed

    def __init__(
        self, language: LanguageModel, session: Session, block: slice, context: int, limits: Limits
    ) -> None:
        super().__init__()
        self.language, self.session, self.limits = language, session, limits
        self.start, self.context = block.start, context

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x, t).flatten(0, 1)).view(*x.shape, -1)

    def trunk(self, x: Tensor, t: Tensor, rows_A: Tensor | None = None) -> Tensor:
        """Numbers [A, C + L, 1] of the rows of hidden vectors of the last call."""
        x_AL = x[:, self.context :]
        hidden_ALD = self.session.hidden(x_AL, rows_A)
        self.rows_A, self.hidden, self.length = rows_A, hidden_ALD.flatten(0, 1), x_AL.shape[1]
        if self.limits.stop_ids is not None:
            open_AL = x_AL == self.language.source.num_tokens - 1
            self.late_AL = open_AL.int().cumsum(1) - open_AL.int() > 0
        row_AL = torch.arange(len(self.hidden), device=x.device).view_as(x_AL)
        before_AC = row_AL[:, :1].expand(-1, self.context)  # not predicted
        return torch.cat([before_AC, row_AL], dim=1)[..., None].float()

    def select(self, active_B: Tensor) -> "PartialBlock":
        """The model for a subset of the sequences."""
        return PartialBlock(self, active_B.nonzero()[:, 0])

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the model, under the limits."""
        row_K = hidden[:, 0].long()
        hidden = self.hidden
        if len(row_K) < len(hidden):
            hidden = hidden.index_select(0, row_K)
        logits_KV = self.language.logits(hidden)
        limits = self.limits
        if limits.never is not None:
            logits_KV.index_fill_(1, limits.never, -torch.inf)
        if limits.constraint is not None:
            sequence_K = row_K // self.length
            sequence_K = sequence_K if self.rows_A is None else self.rows_A[sequence_K]
            canvas = self.session.canvas
            position_K = self.start + row_K % self.length - canvas.new[sequence_K]
            constrained = limits.constraint(logits_KV, canvas.number[sequence_K], position_K)
            logits_KV = _checked(constrained, logits_KV.shape)
        if limits.stop_ids is not None:
            logits_KV = _without(logits_KV, limits.stop_ids, self.late_AL.flatten()[row_K])
        return self.language.to_source(logits_KV)


def _checked(logits: object, shape: torch.Size) -> Tensor:
    """What a constraint returned, if it has the form of logits."""
    if not isinstance(logits, Tensor) or logits.shape != shape or not logits.is_floating_point():
        raise InputError(
            f"constraint must return floating logits of shape {tuple(shape)}, as it received them, "
            f"got {describe(logits)}",
            fields=("constraint",),
        )
    check_not_probabilities(logits)
    return logits


def _without(logits_KV: Tensor, ids_S: Tensor, where_K: Tensor) -> Tensor:
    """Logits without some ids in some rows, unless nothing else is possible there."""
    kept_KS = logits_KV.index_select(1, ids_S)
    logits_KV.index_copy_(1, ids_S, kept_KS.masked_fill(where_K[:, None], -torch.inf))
    empty_K1 = logits_KV.amax(1, keepdim=True) == -torch.inf
    rest_KS = logits_KV.index_select(1, ids_S)
    return logits_KV.index_copy_(1, ids_S, torch.where(empty_K1, kept_KS, rest_KS))


class PartialBlock:
    """A `BlockModel` for some of the sequences."""

    returns_logits = True

    def __init__(self, model: BlockModel, rows_A: Tensor) -> None:
        self.model, self.rows_A, self.head = model, rows_A, model.head

    def trunk(self, x: Tensor, t: Tensor) -> Tensor:
        """See `BlockModel.trunk`."""
        return self.model.trunk(x, t, self.rows_A)
