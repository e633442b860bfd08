"""Solvers, one file each, and the sampling loop."""

from cwdfm.solver.base import Info, Solver, State
from cwdfm.solver.euler import Corrector, Euler
from cwdfm.solver.first_hitting import FirstHitting
from cwdfm.solver.sample import Samples, Start, sample
from cwdfm.solver.unmasking_order import EntropyBound, TopK

__all__ = [
    "Corrector",
    "EntropyBound",
    "Euler",
    "FirstHitting",
    "Info",
    "Samples",
    "Solver",
    "Start",
    "State",
    "TopK",
    "sample",
]
