"""Context weights alpha; one file each."""

from cwdfm.weight.base import ContextWeight, PredictionWeight, Sum, Weight
from cwdfm.weight.confidence import Confidence
from cwdfm.weight.distance import Distance
from cwdfm.weight.entropy import Entropy
from cwdfm.weight.margin import Margin
from cwdfm.weight.neighbor import Neighbor

__all__ = [
    "Confidence",
    "ContextWeight",
    "Distance",
    "Entropy",
    "Margin",
    "Neighbor",
    "PredictionWeight",
    "Sum",
    "Weight",
]
