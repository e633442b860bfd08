"""GIDD (von Rütte et al. 2025): diffusion with a mixture of mask and uniform noise."""

from cwdfm.baselines.gidd.method import GIDD

__all__ = ["GIDD"]
