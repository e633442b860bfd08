"""Training losses, one per file."""

from cwdfm.loss.base import Loss
from cwdfm.loss.bregman import Bregman
from cwdfm.loss.cross_entropy import CrossEntropy
from cwdfm.loss.nelbo import NELBO
from cwdfm.loss.scaled import ScaledCrossEntropy

__all__ = ["NELBO", "Bregman", "CrossEntropy", "Loss", "ScaledCrossEntropy"]
