"""Methods: discrete flows, and the models that they are compared with."""

from cwdfm.method.autoregressive import Autoregressive, NextToken
from cwdfm.method.base import DrawRequest, Method, Objective
from cwdfm.method.block import BlockDiffusion, BlockObjective, BlockSolver
from cwdfm.method.flow import Flow, FlowObjective
from cwdfm.method.left_to_right import LeftToRight
from cwdfm.method.sedd import SEDD, Analytic, ScoreEntropyObjective, ScoreEuler

__all__ = [
    "SEDD",
    "Analytic",
    "Autoregressive",
    "BlockDiffusion",
    "BlockObjective",
    "BlockSolver",
    "DrawRequest",
    "Flow",
    "FlowObjective",
    "LeftToRight",
    "Method",
    "NextToken",
    "Objective",
    "ScoreEntropyObjective",
    "ScoreEuler",
]
