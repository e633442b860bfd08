"""Methods: discrete flows, and the models that they are compared with."""

from cwdfm.method.autoregressive import Autoregressive, NextToken
from cwdfm.method.base import Draw, Method, Objective
from cwdfm.method.flow import Flow, FlowObjective
from cwdfm.method.left_to_right import LeftToRight

__all__ = [
    "Autoregressive",
    "Draw",
    "Flow",
    "FlowObjective",
    "LeftToRight",
    "Method",
    "NextToken",
    "Objective",
]
