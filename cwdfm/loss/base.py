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
from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.loss.prediction import HeadPrediction, LogitsPrediction, Prediction
from cwdfm.model.positions import Positions
from cwdfm.path.base import PathSample
from cwdfm.schedule import Schedule
from cwdfm.weight import Weight

Coordinates = Literal["all", "masked"]

# The hazard is infinite at t = 1. Losses weighted by it (NELBO, Bregman) evaluate it no later than
# here; drawing t uniformly, a share of TIME_EPSILON of the batch is affected.
TIME_EPSILON = 1e-3


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
        rows: Positions | None = None,
        per_token: bool = False,
    ) -> Tensor:
        """The loss from hidden vectors and a linear head, at the needed coordinates alone.

        The same up to rounding, and the logits of all coordinates are never stored. `rows` are
        the needed coordinates; whoever found them before spares the host a wait.
        """
        rows = Positions.of(self.needed(batch)) if rows is None else rows
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
