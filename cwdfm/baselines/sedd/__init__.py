"""SEDD: score entropy discrete diffusion."""

from cwdfm.baselines.sedd.method import SEDD
from cwdfm.baselines.sedd.objective import ScoreEntropyObjective
from cwdfm.baselines.sedd.solver import Analytic, ScoreEuler

__all__ = ["SEDD", "Analytic", "ScoreEntropyObjective", "ScoreEuler"]
