"""Context weights alpha, one family per file."""

from cwdfm.weight.base import ContextWeight, PredictionWeight, Sum, Weight
from cwdfm.weight.confidence import Confidence, Margin
from cwdfm.weight.distance import Distance
from cwdfm.weight.entropy import Entropy, EntropyInverse
from cwdfm.weight.learned import CalibratedEntropy, Learned
from cwdfm.weight.neighbor import Neighbor, NeighborShare

__all__ = [
    "CalibratedEntropy",
    "Confidence",
    "ContextWeight",
    "Distance",
    "Entropy",
    "EntropyInverse",
    "Learned",
    "Margin",
    "Neighbor",
    "NeighborShare",
    "PredictionWeight",
    "Sum",
    "Weight",
]
