"""Methods: how a network is trained, sampled and scored."""

from cwdfm.method.base import Method, Objective, SampleRequest
from cwdfm.method.flow import Flow, FlowObjective

__all__ = ["Flow", "FlowObjective", "Method", "Objective", "SampleRequest"]
