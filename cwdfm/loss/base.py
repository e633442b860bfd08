"""Losses: L = mean over batch and coordinates of w^i l^i, one record in, one scalar out.

Sums over coordinates in the paper's formulas are means here, over all coordinates that are not
fixed, so that values are nats per token and compare across lengths and prompts. Logits may cover
all coordinates, [B, N, num_tokens], or only those the loss needs, [K, num_tokens] in row-major
order: see `Loss.needed`, which spares the head the rest. Logits that are no numbers give a loss
that is none.

Most losses are linear in log p, with weights that the gradient does not go through: they say so by
`Loss.weights`, and get their gradients from the head in the same pass as their value.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import InputError, describe
from cwdfm.kernel import product_dtype
from cwdfm.kernel.head_cross_entropy import head_cross_entropy
from cwdfm.kernel.head_log_prob import head_log_prob
from cwdfm.model.rows import Rows
from cwdfm.path.base import PathSample
from cwdfm.schedule import Schedule
from cwdfm.weight import Weight

Coordinates = Literal["all", "masked"]

# The hazard is infinite at t = 1. Losses weighted by it (NELBO, Bregman) evaluate it no later than
# here; drawing t uniformly, a share of TIME_EPSILON of the batch is affected.
TIME_EPSILON = 1e-3


class Prediction(ABC):
    """Log-probabilities of tokens, and logits, at the coordinates where they are known."""

    rows_BN: Tensor | None  # these coordinates; None for all

    @property
    @abstractmethod
    def logits(self) -> Tensor:
        """The logits [B, N, V] or [K, V] of the data tokens, in at least float32."""

    @abstractmethod
    def log_probs(self, *tokens_BN: Tensor) -> list[Tensor]:
        """log p^i(tokens^i) [B, N] of each; 0 where nothing is known; -inf for a mask id."""

    def log_prob(self, tokens_BN: Tensor) -> Tensor:
        """`log_probs` of one tensor of tokens."""
        return self.log_probs(tokens_BN)[0]

    def spread(self, values: Tensor) -> Tensor:
        """Values of the known coordinates put back to their places [B, N], 0 elsewhere."""
        if self.rows_BN is None:
            return values
        blank_BN = values.new_zeros(self.rows_BN.shape)
        return blank_BN.masked_scatter(self.rows_BN, values)


class LogitsPrediction(Prediction):
    """A prediction whose logits are at hand."""

    def __init__(self, logits: Tensor, needed_BN: Tensor, batch: PathSample) -> None:
        shape = tuple(batch.x_1.shape)
        width = batch.source.num_tokens
        if not isinstance(logits, Tensor):
            raise InputError(f"logits must be a tensor, got {describe(logits)}")
        rows = int(needed_BN.sum()) if logits.dim() == 2 else 0
        if logits.shape not in ((*shape, width), (rows, width)) or not logits.is_floating_point():
            raise InputError(
                f"logits must be floating with shape {(*shape, width)}, or {(rows, width)} for the "
                f"rows that the loss needs, got {describe(logits)}; {width} is source.num_tokens"
            )
        # Half precision is too coarse for a log-softmax over many tokens.
        full = logits.to(torch.promote_types(logits.dtype, torch.float32))
        self._logits = batch.source.data_logits(full)
        self.rows_BN = None if logits.dim() == 3 else needed_BN
        self._log_z = self._logits.logsumexp(dim=-1)

    @property
    def logits(self) -> Tensor:
        return self._logits

    def log_probs(self, *tokens_BN: Tensor) -> list[Tensor]:
        at = [x if self.rows_BN is None else x[self.rows_BN] for x in tokens_BN]
        return [self.spread(token_log_prob(self._logits, self._log_z, x)) for x in at]


class HeadPrediction(Prediction):
    """A prediction given by hidden vectors [B, N, D] and a linear head: see `head_log_prob`."""

    def __init__(
        self, hidden_BND: Tensor, readout: nn.Linear, rows: Rows, batch: PathSample
    ) -> None:
        self.rows_BN: Tensor = rows.mask
        self._rows = rows
        all_of_them = len(rows) == rows.mask.numel()
        hidden_KD = hidden_BND.flatten(0, 1) if all_of_them else rows.take(hidden_BND)
        self._hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
        self._readout, self._source = readout, batch.source

    @property
    def logits(self) -> Tensor:
        # Stored after all: for weights that read them.
        head = (self._readout.weight, self._readout.bias)
        kind = self._hidden_KD.dtype
        logits_KV = F.linear(self._hidden_KD, *(None if x is None else x.to(kind) for x in head))
        full = logits_KV.to(torch.promote_types(kind, torch.float32))
        return self._source.data_logits(full)

    def log_probs(self, *tokens_BN: Tensor) -> list[Tensor]:
        tokens_KJ = torch.stack([self._rows.take(x) for x in tokens_BN], dim=-1)
        vocab = self._source.vocab_size
        log_p_KJ = head_log_prob(self._hidden_KD, self._readout, tokens_KJ, vocab)
        return [self.spread(log_p_K) for log_p_K in log_p_KJ.unbind(-1)]

    def cross_entropy(self, tokens_BN: Tensor, weights_BN: Tensor) -> Tensor:
        """sum_i w^i (-log p^i(tokens^i)) over the known coordinates, a scalar."""
        tokens_K, weights_K = self._rows.take(tokens_BN), self._rows.take(weights_BN)
        vocab = self._source.vocab_size
        return head_cross_entropy(self._hidden_KD, self._readout, tokens_K, weights_K, vocab)


def token_log_prob(logits: Tensor, log_z: Tensor, tokens: Tensor) -> Tensor:
    """log p(tokens) [...] under data logits [..., V] normalised by log_z; -inf for a mask id."""
    inside = tokens < logits.shape[-1]
    token = torch.where(inside, tokens, 0)[..., None]
    return torch.where(inside, logits.gather(-1, token)[..., 0] - log_z, -torch.inf)


class Loss(ABC):
    """A training objective on (logits, path sample, schedule)."""

    @abstractmethod
    def needed(self, batch: PathSample) -> Tensor:
        """The coordinates [B, N] whose logits the loss reads."""

    @abstractmethod
    def terms(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        """The weighted terms w^i l^i [B, N], before fixed coordinates are taken out."""

    def weights(
        self, prediction: Prediction, batch: PathSample, schedule: Schedule
    ) -> Tensor | None:
        """w^i [B, N] (or what expands to it) where w^i l^i = -w^i log p^i(x_1^i); else None.

        Gradients do not go through them.
        """
        return None

    def __call__(
        self, logits: Tensor, batch: PathSample, schedule: Schedule, *, per_token: bool = False
    ) -> Tensor:
        """The scalar loss in nats per token, or with per_token its terms [B, N].

        `logits` are [B, N, num_tokens], or [K, num_tokens] at the coordinates `needed(batch)`.
        """
        needed_BN = self.needed(batch)
        prediction = LogitsPrediction(logits, needed_BN, batch)
        terms_BN = self._needed_terms(prediction, needed_BN, batch, schedule)
        return terms_BN if per_token else terms_BN.sum() / _count(batch)

    def from_head(
        self,
        hidden_BND: Tensor,
        readout: nn.Linear,
        batch: PathSample,
        schedule: Schedule,
        *,
        rows: Rows | None = None,
        per_token: bool = False,
    ) -> Tensor:
        """The loss from hidden vectors and a linear head, at the needed coordinates alone.

        The same up to rounding, and the logits of all coordinates are never stored. `rows` are
        the needed coordinates; whoever found them before spares the host a wait.
        """
        rows = Rows.of(self.needed(batch)) if rows is None else rows
        needed_BN = rows.mask
        prediction = HeadPrediction(hidden_BND, readout, rows, batch)
        with torch.autocast(hidden_BND.device.type, enabled=False):
            weights = None if per_token else self.weights(prediction, batch, schedule)
            if weights is not None:
                weights_BN = weights.detach().expand(needed_BN.shape)
                return prediction.cross_entropy(batch.x_1, weights_BN) / _count(batch)
            terms_BN = self._needed_terms(prediction, needed_BN, batch, schedule)
            return terms_BN if per_token else terms_BN.sum() / _count(batch)

    def _needed_terms(
        self, prediction: Prediction, needed_BN: Tensor, batch: PathSample, schedule: Schedule
    ) -> Tensor:
        return torch.where(needed_BN, self.terms(prediction, batch, schedule), 0.0)


class WeightedCrossEntropy(Loss):
    """L = -E sum_i w^i log p^i(x_1^i | x_t)."""

    @abstractmethod
    def weights(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        """w^i [B, N], or what expands to it; gradients do not go through them."""

    def terms(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        ce_BN = -prediction.log_prob(batch.x_1)
        weights_BN = self.weights(prediction, batch, schedule).to(ce_BN.dtype)
        return torch.where(weights_BN == 0, 0.0, weights_BN * ce_BN)


def _count(batch: PathSample) -> Tensor:
    """How many coordinates the mean is over."""
    return (~batch.fixed).sum().clamp(min=1)


def coordinates_needed(coordinates: Coordinates, batch: PathSample) -> Tensor:
    """The coordinates [B, N] that an option "all" or "masked" names; fixed ones never count."""
    return ~batch.fixed if coordinates == "all" else ~batch.revealed


def bound_weight(weight: Weight | None, batch: PathSample, schedule: Schedule) -> Tensor:
    """What a term of the bound is multiplied by: alpha^i lambda_t, [B, N] or [B, 1], float64.

    t is kept TIME_EPSILON away from 1. On a context-weighted path the terms carry the path's alpha
    (the paper's fourth proposition), so the loss must be told of it.
    """
    if weight != batch.weight:
        raise InputError(
            f"the path followed {batch.weight}, the loss has weight={weight}: the bound's terms "
            f"must carry the weight of the path. Give the loss weight={batch.weight}, or use "
            f"CrossEntropy or ScaledCrossEntropy, which are no bounds"
        )
    hazard = schedule.hazard(batch.t.double().clamp(max=1 - TIME_EPSILON))
    hazard = hazard if hazard.dim() == 2 else hazard[:, None]
    return hazard if weight is None else hazard * weight(batch.revealed)
