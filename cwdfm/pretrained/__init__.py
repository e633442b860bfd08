"""Trained models on disk: loading, saving, and formats of other projects."""

from cwdfm.pretrained.model import Pretrained, box, load

__all__ = ["Pretrained", "box", "load"]
