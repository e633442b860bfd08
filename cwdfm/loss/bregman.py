"""Bregman: the divergence between conditional and modeled rates (generalized KL)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice
from cwdfm.loss.base import Coordinates, Loss, bound_weight, coordinates_needed
from cwdfm.loss.prediction import Prediction
from cwdfm.path.base import PathSample
from cwdfm.schedule import Schedule
from cwdfm.source import MaskSource
from cwdfm.weight import Weight


@dataclass(frozen=True)
class Bregman(Loss):
    """L = E lambda_t sum_i [(delta^i - 1) log p^i(x_1^i | x_t) + delta^i - p^i(x_t^i | x_t)].

    Here delta^i = [x_t^i = x_1^i] is value equality, not the reveal mask: the rates are functions
    of the state, and a coordinate that equals x_1^i by chance does not move.

    - `coordinates`: "all" is the formula above. "masked" (mask source only) is its value if
      revealed tokens are carried over (p^i(x_t^i) = 1), as in sampling.
    - `weight`: on a context-weighted path (mask source only), the path's weight, whose alpha
      multiplies the terms.
    """

    coordinates: Coordinates = "all"
    weight: Weight | None = None

    def __post_init__(self) -> None:
        check_choice("coordinates", self.coordinates, ("all", "masked"))

    def needed(self, batch: PathSample) -> Tensor:
        if self.coordinates == "masked" and not isinstance(batch.source, MaskSource):
            raise InputError(
                "Bregman(coordinates='masked') requires a mask source: with a uniform source the "
                "terms of revealed coordinates do not vanish; use coordinates='all'"
            )
        if self.weight is not None and not isinstance(batch.source, MaskSource):
            raise InputError(
                "Bregman with a weight requires a mask source: with a uniform source alpha is not "
                "a function of x_t, and the divergence does not have this form; omit weight"
            )
        return coordinates_needed(self.coordinates, batch)

    def terms(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        log_p1_BN, log_pt_BN = prediction.log_probs(batch.x_1, batch.x_t)
        divergence_BN = rate_divergence(log_p1_BN, log_pt_BN, batch.x_t == batch.x_1)
        return bound_weight(self.weight, batch, schedule).to(divergence_BN.dtype) * divergence_BN

    def weights(
        self, prediction: Prediction, batch: PathSample, schedule: Schedule
    ) -> Tensor | None:
        # A masked x_t^i is neither x_1^i nor a token that the model can predict.
        masked = self.coordinates == "masked"
        return bound_weight(self.weight, batch, schedule) if masked else None


def rate_divergence(log_p1: Tensor, log_pt: Tensor, same: Tensor) -> Tensor:
    """The divergence of the rates, divided by lambda_t; `same` marks x_t^i = x_1^i."""
    # `where`, not a product: log p(x_1) may be -inf where it is unused.
    return torch.where(same, 1.0, -log_p1) - log_pt.exp()
