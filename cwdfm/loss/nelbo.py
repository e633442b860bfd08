"""NELBO: cross-entropy weighted by the hazard, as in MDLM (Sahoo et al. 2024)."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.errors import InputError, check_choice
from cwdfm.loss.base import Coordinates, WeightedCrossEntropy, bound_weight, coordinates_needed
from cwdfm.loss.prediction import Prediction
from cwdfm.path.base import PathSample
from cwdfm.schedule import Schedule
from cwdfm.weight import Weight


@dataclass(frozen=True)
class NELBO(WeightedCrossEntropy):
    """L = -E lambda_t sum_{i masked} log p^i(x_1^i | x_t).

    With a mask source this is the negative evidence lower bound. `coordinates="all"` includes
    revealed coordinates, so that a model with a uniform source learns to keep correct tokens. On a
    context-weighted path, pass the path's `weight`: the terms include its alpha, which is 0 on
    revealed coordinates.
    """

    coordinates: Coordinates = "masked"
    weight: Weight | None = None

    def __post_init__(self) -> None:
        check_choice("coordinates", self.coordinates, ("all", "masked"))
        if self.coordinates == "all" and self.weight is not None:
            raise InputError(
                "NELBO(coordinates='all') does not support a weight: alpha is 0 on revealed "
                "coordinates, so their terms would vanish; use coordinates='masked'"
            )

    def needed(self, batch: PathSample) -> Tensor:
        return coordinates_needed(self.coordinates, batch)

    def weights(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        return bound_weight(self.weight, batch, schedule)
