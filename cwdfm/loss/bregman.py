"""Bregman: the divergence between conditional and modelled rates (generalised KL)."""

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
    of the state, and a state that holds x_1^i by chance stays there.

    `coordinates`: "all" is the formula term for term. "masked", for a mask source only, is its
    value when revealed tokens are carried over (p^i(x_t^i) = 1), as they are in sampling. On a
    context-weighted path, give the path's `weight` (mask source only): the terms carry its alpha.
    """

    coordinates: Coordinates = "all"
    weight: Weight | None = None

    def __post_init__(self) -> None:
        check_choice("coordinates", self.coordinates, ("all", "masked"))

    def needed(self, batch: PathSample) -> Tensor:
        if self.coordinates == "masked" and not isinstance(batch.source, MaskSource):
            raise InputError(
                "Bregman(coordinates='masked') is only right for a mask source: with a uniform "
                "source the terms of revealed coordinates do not vanish; use coordinates='all'"
            )
        if self.weight is not None and not isinstance(batch.source, MaskSource):
            raise InputError(
                "Bregman with a weight needs a mask source: with a uniform source alpha is no "
                "function of x_t, and the rates' divergence has no such form; leave weight out"
            )
        return coordinates_needed(self.coordinates, batch)

    def terms(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        log_p1_BN, log_pt_BN = prediction.log_probs(batch.x_1, batch.x_t)
        divergence_BN = rate_divergence(log_p1_BN, log_pt_BN, batch.x_t == batch.x_1)
        return bound_weight(self.weight, batch, schedule).to(divergence_BN.dtype) * divergence_BN

    def weights(
        self, prediction: Prediction, batch: PathSample, schedule: Schedule
    ) -> Tensor | None:
        # A masked x_t^i is neither x_1^i nor a token that the model could predict.
        masked = self.coordinates == "masked"
        return bound_weight(self.weight, batch, schedule) if masked else None


def rate_divergence(log_p1: Tensor, log_pt: Tensor, same: Tensor) -> Tensor:
    """The divergence of rates over lambda_t, from log p(x_1^i), log p(x_t^i) and x_t^i = x_1^i."""
    # where, not a product: log p(x_1) may be -inf where it does not count.
    return torch.where(same, 1.0, -log_p1) - log_pt.exp()
