"""`BlockModel`: one block of a canvas as a model for the solvers.

Shapes: B batch, A evaluated sequences, C context columns before the block, L tokens per block, K
predicted tokens, V ids.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, describe
from cwdfm.language.model import LanguageModel
from cwdfm.language.session import Session
from cwdfm.model.predict import check_not_probabilities

# Maps logits [K, V] of tokens, their prompt numbers [K] and their positions after the prompt [K] to
# the logits to use; it may work in place. Ids are the tokenizer's.
Constraint = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Limits:
    """Restrictions on the tokens that may be drawn."""

    never: Tensor | None = None  # [S] ids that are never drawn
    stop_ids: Tensor | None = None  # [S] ids that are not drawn after an open position
    constraint: Constraint | None = None


class BlockModel(nn.Module):
    """A split model of the block, conditioned on the rest of the canvas.

    Its input [B, C + L] includes C columns before the block, which the context weights need. The
    trunk stores the network's hidden vectors and returns their row indices, so that the head knows
    which tokens it predicts.
    """

    returns_logits = True  # skips the test for probabilities

    def __init__(
        self, language: LanguageModel, session: Session, block: slice, context: int, limits: Limits
    ) -> None:
        super().__init__()
        self.language, self.session, self.limits = language, session, limits
        self.start, self.context = block.start, context

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x, t).flatten(0, 1)).view(*x.shape, -1)

    def trunk(self, x: Tensor, t: Tensor, rows_A: Tensor | None = None) -> Tensor:
        """Evaluate the network; returns row indices [A, C + L, 1] into its hidden vectors."""
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
        """The model for the active sequences only."""
        return PartialBlock(self, active_B.nonzero()[:, 0])

    def head(self, hidden: Tensor) -> Tensor:
        """Logits at the row indices `hidden` [K, 1], restricted by the limits."""
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
    """Check that the result of a constraint has the shape and dtype of logits, and return it."""
    if not isinstance(logits, Tensor) or logits.shape != shape or not logits.is_floating_point():
        raise InputError(
            f"constraint must return floating logits of shape {tuple(shape)}, as it received them, "
            f"got {describe(logits)}",
            fields=("constraint",),
        )
    check_not_probabilities(logits)
    return logits


def _without(logits_KV: Tensor, ids_S: Tensor, where_K: Tensor) -> Tensor:
    """Set some ids to -inf in the rows where_K, except in rows that have no other finite logit."""
    kept_KS = logits_KV.index_select(1, ids_S)
    logits_KV.index_copy_(1, ids_S, kept_KS.masked_fill(where_K[:, None], -torch.inf))
    empty_K1 = logits_KV.amax(1, keepdim=True) == -torch.inf
    rest_KS = logits_KV.index_select(1, ids_S)
    return logits_KV.index_copy_(1, ids_S, torch.where(empty_K1, kept_KS, rest_KS))


class PartialBlock:
    """A `BlockModel` restricted to the sequences rows_A."""

    returns_logits = True

    def __init__(self, model: BlockModel, rows_A: Tensor) -> None:
        self.model, self.rows_A, self.head = model, rows_A, model.head

    def trunk(self, x: Tensor, t: Tensor) -> Tensor:
        """See `BlockModel.trunk`."""
        return self.model.trunk(x, t, self.rows_A)
