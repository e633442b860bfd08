"""Training losses, one file each, and the likelihood bound."""

from cwdfm.loss.base import Loss
from cwdfm.loss.bound import Bound
from cwdfm.loss.bregman import Bregman
from cwdfm.loss.cross_entropy import CrossEntropy
from cwdfm.loss.elbo import elbo
from cwdfm.loss.nelbo import NELBO
from cwdfm.loss.scaled import ScaledCrossEntropy

__all__ = ["NELBO", "Bound", "Bregman", "CrossEntropy", "Loss", "ScaledCrossEntropy", "elbo"]
