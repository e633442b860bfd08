"""Models: the `Model` protocol, the transformer, the exact posterior, and wrappers."""

from cwdfm.model.exact_posterior import ExactPosterior
from cwdfm.model.protocol import Model, SplitModel
from cwdfm.model.wrappers import Adapted

__all__ = ["Adapted", "ExactPosterior", "Model", "SplitModel"]
