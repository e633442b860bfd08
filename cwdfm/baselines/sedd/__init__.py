"""SEDD (Lou, Meng and Ermon 2024): score entropy discrete diffusion, a network of ratios of p_t."""

from cwdfm.baselines.sedd.method import SEDD
from cwdfm.baselines.sedd.objective import ScoreEntropyObjective
from cwdfm.baselines.sedd.solver import Analytic, ScoreEuler

__all__ = ["SEDD", "Analytic", "ScoreEntropyObjective", "ScoreEuler"]
