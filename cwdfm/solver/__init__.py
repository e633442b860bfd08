"""Solvers, one file each, and the sampling loop."""

from cwdfm.solver.base import Info, Solver, State
from cwdfm.solver.corrector import Corrector
from cwdfm.solver.euler import Euler
from cwdfm.solver.sample import Samples, sample

__all__ = ["Corrector", "Euler", "Info", "Samples", "Solver", "State", "sample"]
