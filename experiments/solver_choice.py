"""The solver of an experiment, with its options in one flat record."""

from dataclasses import dataclass
from typing import Any

from cwdfm.config import added
from cwdfm.method.base import Method
from cwdfm.solver_config import (
    POWER,
    SOLVERS,
    EntropyBoundConfig,
    EntropyConfig,
    EulerConfig,
    Hazard,
    Name,
    NeighborConfig,
    SolverConfig,
    build_solver,
    option_names,
)
from cwdfm.weight.neighbor import WindowBoundary


@dataclass(frozen=True)
class SolverChoice:
    """A solver's name, and options of all solvers.

    Options that the named solver does not have are ignored, and options without a field here keep
    their defaults. Recorded results are identified by these fields (see `to_config`), so the fields
    must not change.
    """

    solver: Name = "auto"
    radius: int = NeighborConfig.radius
    scale: float = NeighborConfig.scale
    boundary: WindowBoundary = "circular"
    beta: float = EntropyConfig.beta
    gamma: float = EntropyBoundConfig.gamma
    corrector: float = EulerConfig.corrector
    hazard: Hazard = EulerConfig.hazard
    temperature: float = SolverConfig.temperature
    top_p: float = SolverConfig.top_p
    stop: bool = False
    corrector_power: float = added(POWER)

    def build(self, method: Method, end_token: int | None = None) -> Any:
        """Build the solver for a method; "auto" is the method's default solver."""
        name = method.default_solver if self.solver == "auto" else self.solver
        options = {o: getattr(self, o) for o in option_names(name) if hasattr(self, o)}
        solver = build_solver(name, SOLVERS[name].config(**options))
        return method.adapt(solver, end_token if self.stop else None)
