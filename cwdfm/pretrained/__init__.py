"""Trained models on disk: loading, saving, and formats of other projects."""

from cwdfm.pretrained.load import bundled_models, load
from cwdfm.pretrained.model import Pretrained

__all__ = ["Pretrained", "bundled_models", "load"]
