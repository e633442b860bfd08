"""SEDD: score entropy discrete diffusion."""

from cwdfm.method.sedd.method import SEDD
from cwdfm.method.sedd.objective import ScoreEntropyObjective
from cwdfm.method.sedd.solver import Analytic, ScoreEuler

__all__ = ["SEDD", "Analytic", "ScoreEntropyObjective", "ScoreEuler"]
