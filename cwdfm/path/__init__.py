"""Probability paths p_t; `algorithm1` draws from the context-weighted path."""

from cwdfm.path.base import MixturePath, Path, PathSample
from cwdfm.path.context import ContextPath, path_for

__all__ = ["ContextPath", "MixturePath", "Path", "PathSample", "path_for"]
