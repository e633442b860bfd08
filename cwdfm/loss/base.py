"""Losses: L = mean over batch and coordinates of w^i l^i.

Where the paper sums over coordinates, these losses average over all coordinates that are not fixed,
so that values are in nats per token and comparable across lengths and prompts. Logits may cover all
coordinates, [B, N, num_tokens], or only those that the loss needs (`Loss.needed`), [K, num_tokens]
in row-major order. NaN logits give a NaN loss.

Most losses are linear in log p, with weights that are not differentiated. They implement
`Loss.weights`, which lets the head compute value and gradient in one pass.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, check_instance, check_mask, describe, has_values
from cwdfm.loss.prediction import HeadPrediction, LogitsPrediction, Prediction
from cwdfm.model.positions import Positions
from cwdfm.path.base import PathSample
from cwdfm.schedule import Schedule
from cwdfm.weight import Weight

Coordinates = Literal["all", "masked"]

# The hazard is infinite at t = 1, so losses weighted by it (NELBO, Bregman) clamp t to
# 1 - TIME_EPSILON. With uniform t this affects a fraction TIME_EPSILON of the batch.
TIME_EPSILON = 1e-3


class Loss(ABC):
    """A training objective on (logits, path sample, schedule)."""

    @abstractmethod
    def needed(self, batch: PathSample) -> Tensor:
        """The coordinates [B, N] whose logits the loss reads."""

    @abstractmethod
    def terms(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        """The weighted terms w^i l^i [B, N], before fixed coordinates are removed."""

    def weights(
        self, prediction: Prediction, batch: PathSample, schedule: Schedule
    ) -> Tensor | None:
        """w^i, expandable to [B, N], if the terms are -w^i log p^i(x_1^i); otherwise None.

        The weights are not differentiated.
        """
        return None

    def __call__(
        self, logits: Tensor, batch: PathSample, schedule: Schedule, *, per_token: bool = False
    ) -> Tensor:
        """The scalar loss in nats per token, or its terms [B, N] with `per_token`.

        `logits` are [B, N, num_tokens], or [K, num_tokens] at the coordinates `needed(batch)`.
        """
        check_instance("batch", batch, PathSample, "path.sample(x_1, t)")
        check_instance("schedule", schedule, Schedule, "Polynomial(2.0)")
        if not _agree(schedule, batch.schedule):
            raise InputError(
                f"the path has the schedule {batch.schedule}, but the loss is called with "
                f"{schedule}; pass the path's schedule"
            )
        needed_BN = self.needed(batch)
        check_mask(f"{type(self).__name__}.needed's result", needed_BN, tuple(batch.x_t.shape))
        prediction = LogitsPrediction(logits, needed_BN, batch)
        terms_BN = self._terms(needed_BN, prediction, batch, schedule)
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
        """The loss from hidden vectors and a linear head, without storing all logits.

        It equals `__call__` up to rounding. Pass the needed coordinates as `rows` if they are
        already known, to avoid a synchronization.
        """
        rows = Positions.of(self.needed(batch)) if rows is None else rows
        needed_BN = rows.mask
        prediction = HeadPrediction(hidden_BND, readout, rows, batch)
        with torch.autocast(hidden_BND.device.type, enabled=False):
            weights = None if per_token else self.weights(prediction, batch, schedule)
            if weights is not None:
                weights_BN = weights.detach().expand(needed_BN.shape)
                return prediction.cross_entropy(batch.x_1, weights_BN) / _count(batch)
            terms_BN = self._terms(needed_BN, prediction, batch, schedule)
            return terms_BN if per_token else terms_BN.sum() / _count(batch)

    def _terms(
        self, needed_BN: Tensor, prediction: Prediction, batch: PathSample, schedule: Schedule
    ) -> Tensor:
        """The terms [B, N], 0 where they are not needed."""
        terms_BN = self.terms(prediction, batch, schedule)
        if not has_values(terms_BN) or terms_BN.shape != needed_BN.shape:
            raise InputError(
                f"{type(self).__name__}.terms must return a tensor of shape "
                f"{tuple(needed_BN.shape)}, one term per token, got {describe(terms_BN)}"
            )
        return torch.where(needed_BN, terms_BN, 0.0)


class WeightedCrossEntropy(Loss):
    """L = -E sum_i w^i log p^i(x_1^i | x_t)."""

    @abstractmethod
    def weights(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        """w^i, expandable to [B, N]; not differentiated."""

    def terms(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        ce_BN = -prediction.log_probs(batch.x_1)[0]
        weights_BN = self.weights(prediction, batch, schedule).to(ce_BN.dtype)
        return torch.where(weights_BN == 0, 0.0, weights_BN * ce_BN)


def _agree(schedule: Schedule, other: Schedule | None) -> bool:
    """Whether two schedules are equal, or give the same kappa; a class may not define `==`."""
    if other is None or schedule == other:
        return True
    t = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return torch.allclose(schedule.kappa(t), other.kappa(t))


def _count(batch: PathSample) -> Tensor:
    """The number of coordinates that the mean is taken over."""
    return (~batch.fixed).sum().clamp(min=1)


def coordinates_needed(coordinates: Coordinates, batch: PathSample) -> Tensor:
    """The coordinates [B, N] selected by "all" or "masked"; never fixed ones."""
    return ~batch.fixed if coordinates == "all" else ~batch.revealed


def bound_weight(weight: Weight | None, batch: PathSample, schedule: Schedule) -> Tensor:
    """The factor alpha^i lambda_t of the bound's terms, [B, N] or [B, 1], float64.

    t is clamped to 1 - TIME_EPSILON. On a context-weighted path the terms include the path's alpha
    (the paper's fourth proposition), so the loss needs the same weight.
    """
    if weight != batch.weight:
        raise InputError(
            f"the path has weight={batch.weight}, but the loss has weight={weight}; they must be "
            f"equal for the loss to be a bound. Set weight={batch.weight} in the loss, or use "
            f"CrossEntropy or ScaledCrossEntropy, which are not bounds"
        )
    hazard = schedule.hazard(batch.t.double().clamp(max=1 - TIME_EPSILON))
    hazard = hazard if hazard.dim() == 2 else hazard[:, None]
    return hazard if weight is None else hazard * weight(batch.revealed)
