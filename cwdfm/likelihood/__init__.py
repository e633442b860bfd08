"""Likelihoods and likelihood bounds."""

from cwdfm.likelihood.bound import Bound
from cwdfm.likelihood.elbo import elbo

__all__ = ["Bound", "elbo"]
