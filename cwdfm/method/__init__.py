"""Methods: how a network is trained, sampled and scored."""

from cwdfm.method.base import DrawRequest, Method, Objective
from cwdfm.method.flow import Flow, FlowObjective

__all__ = ["DrawRequest", "Flow", "FlowObjective", "Method", "Objective"]
