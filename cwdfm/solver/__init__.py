"""Solvers, one file each, and the sampling loop."""

from cwdfm.solver.base import Info, Solver, State
from cwdfm.solver.correction import Correction, Corrector, Remask
from cwdfm.solver.edit import Edit
from cwdfm.solver.entropy_pace import EntropyPace
from cwdfm.solver.euler import Euler
from cwdfm.solver.first_hitting import FirstHitting
from cwdfm.solver.fit_confidence import fit_confidence, fit_temperature
from cwdfm.solver.gibbs import Gibbs
from cwdfm.solver.jump_your_steps import jump_your_steps
from cwdfm.solver.klass import KLASS
from cwdfm.solver.match_data import closest_to_data
from cwdfm.solver.path_planning import PathPlanning
from cwdfm.solver.sample import Samples, Start, sample
from cwdfm.solver.theta import ThetaRK2, ThetaTrapezoidal
from cwdfm.solver.unmasking_order import EntropyBound, Threshold, TopK

__all__ = [
    "KLASS",
    "Correction",
    "Corrector",
    "Edit",
    "EntropyBound",
    "EntropyPace",
    "Euler",
    "FirstHitting",
    "Gibbs",
    "Info",
    "PathPlanning",
    "Remask",
    "Samples",
    "Solver",
    "Start",
    "State",
    "ThetaRK2",
    "ThetaTrapezoidal",
    "Threshold",
    "TopK",
    "closest_to_data",
    "fit_confidence",
    "fit_temperature",
    "jump_your_steps",
    "sample",
]
