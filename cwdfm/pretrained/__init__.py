"""Trained models on disk: loading, saving, and formats of other projects."""

from cwdfm.pretrained.model import Pretrained, bundled_models, load

__all__ = ["Pretrained", "bundled_models", "load"]
