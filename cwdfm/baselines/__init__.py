"""The models that discrete flows are compared with."""

from cwdfm.baselines.autoregressive import Autoregressive, LeftToRight, NextToken
from cwdfm.baselines.bd3lm import BlockDiffusion, BlockObjective, BlockSolver
from cwdfm.baselines.sedd import SEDD, Analytic, ScoreEntropyObjective, ScoreEuler

__all__ = [
    "SEDD",
    "Analytic",
    "Autoregressive",
    "BlockDiffusion",
    "BlockObjective",
    "BlockSolver",
    "LeftToRight",
    "NextToken",
    "ScoreEntropyObjective",
    "ScoreEuler",
]
