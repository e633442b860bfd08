"""Methods: discrete flows, and the models that they are compared with."""

from cwdfm.method.base import Draw, Method, Objective
from cwdfm.method.flow import Flow, FlowObjective

__all__ = ["Draw", "Flow", "FlowObjective", "Method", "Objective"]
