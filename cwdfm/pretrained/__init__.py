"""Load and save trained models, and read the formats of other projects."""

from cwdfm.language import LanguageModel
from cwdfm.pretrained.model import Pretrained, bundled_models, load

__all__ = ["LanguageModel", "Pretrained", "bundled_models", "load"]
