"""Models, and how the library talks to them."""

from cwdfm.model.adapted import Adapted
from cwdfm.model.exact_posterior import ExactPosterior
from cwdfm.model.protocol import Model, SplitModel

__all__ = ["Adapted", "ExactPosterior", "Model", "SplitModel"]
