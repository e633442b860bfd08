"""Solvers, one file each, and the sampling loop."""

from cwdfm.solver.accept import Accept, plausibility
from cwdfm.solver.base import Info, Solver, State
from cwdfm.solver.corrector import Corrector
from cwdfm.solver.entropy_bound import EntropyBound
from cwdfm.solver.euler import Euler
from cwdfm.solver.first_hitting import FirstHitting
from cwdfm.solver.mend import Mend, mend
from cwdfm.solver.refine import Refine, refine
from cwdfm.solver.rework import Rework
from cwdfm.solver.sample import Samples, Start, sample
from cwdfm.solver.top_k import TopK

__all__ = [
    "Accept",
    "Corrector",
    "EntropyBound",
    "Euler",
    "FirstHitting",
    "Info",
    "Mend",
    "Refine",
    "Rework",
    "Samples",
    "Solver",
    "Start",
    "State",
    "TopK",
    "mend",
    "plausibility",
    "refine",
    "sample",
]
