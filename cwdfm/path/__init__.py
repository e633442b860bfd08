"""Probability paths p_t, one per file; `algorithm1` draws from the context-weighted path."""

from cwdfm.path.base import Path, PathSample
from cwdfm.path.context import ContextPath, path_for
from cwdfm.path.mixture import MixturePath

__all__ = ["ContextPath", "MixturePath", "Path", "PathSample", "path_for"]
