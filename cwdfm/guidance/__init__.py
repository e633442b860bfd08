"""Guidance: steer a model's predictions towards a property."""

from cwdfm.guidance.base import Guidance
from cwdfm.guidance.classifier_free import ClassifierFreeGuidance
from cwdfm.guidance.predictor import PredictorGuidance

__all__ = ["ClassifierFreeGuidance", "Guidance", "PredictorGuidance"]
