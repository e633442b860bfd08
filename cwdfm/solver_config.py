"""Solvers by name, as chosen on the command line and in experiments.

Each name has a config: a frozen dataclass whose fields are exactly the options of that solver. To
add a solver, write its config here and add it to `SOLVERS`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, cast

from cwdfm.baselines.autoregressive import LeftToRight
from cwdfm.baselines.bd3lm.method import BlockDiffusion
from cwdfm.baselines.bd3lm.solver import BlockSolver
from cwdfm.baselines.sedd.solver import Analytic, ScoreEuler
from cwdfm.config import added
from cwdfm.errors import InputError
from cwdfm.method.base import Method
from cwdfm.solver import Corrector, EntropyBound, Euler, FirstHitting, Solver, TopK
from cwdfm.solver.unmasking_order import Score
from cwdfm.weight import Entropy, EntropyInverse, Neighbor, NeighborShare, Weight
from cwdfm.weight.neighbor import Boundary

Name = Literal[
    "auto",
    "euler",
    "ancestral",
    "neighbor",
    "entropy",
    "neighbor-counted",
    "entropy-counted",
    "neighbor-share",
    "entropy-inverse",
    "first-hitting",
    "confidence",
    "margin",
    "low-entropy",
    "entropy-bound",
    "left-to-right",
    "analytic",
    "score-euler",
]
Hazard = Literal["euler", "integrated"]
POWER = 0.5  # default exponent of the corrector


@dataclass(frozen=True)
class SolverConfig(ABC):
    """Options that all solvers share."""

    temperature: float = 1.0  # temperature of the predictions
    top_p: float = 1.0  # nucleus sampling: keep the most likely tokens up to this probability

    @abstractmethod
    def solver(self) -> Any:
        """The solver, with default options of its draws."""

    def build(self) -> Any:
        """Create the solver."""
        return replace(self.solver(), temperature=self.temperature, top_p=self.top_p)


@dataclass(frozen=True)
class FirstHittingConfig(SolverConfig):
    """Exact simulation, one token per step."""

    def solver(self) -> FirstHitting:
        return FirstHitting()


@dataclass(frozen=True)
class TopKConfig(SolverConfig):
    """Top-k unmasking by the largest probability."""

    score: ClassVar[Score] = "confidence"

    def solver(self) -> TopK:
        return TopK(self.score)


@dataclass(frozen=True)
class MarginConfig(TopKConfig):
    """Top-k unmasking by the margin between the two largest probabilities."""

    score = "margin"


@dataclass(frozen=True)
class LowEntropyConfig(TopKConfig):
    """Top-k unmasking by low entropy."""

    score = "entropy"


@dataclass(frozen=True)
class EntropyBoundConfig(SolverConfig):
    """Entropy-bounded unmasking."""

    gamma: float = 0.1  # bound on the dependence between tokens revealed at once, in nats

    def solver(self) -> EntropyBound:
        return EntropyBound(self.gamma)


@dataclass(frozen=True)
class LeftToRightConfig(SolverConfig):
    """Autoregressive sampling."""

    def solver(self) -> LeftToRight:
        return LeftToRight()


@dataclass(frozen=True)
class AnalyticConfig(SolverConfig):
    """SEDD's analytic sampler."""

    def solver(self) -> Analytic:
        return Analytic()


@dataclass(frozen=True)
class ScoreEulerConfig(SolverConfig):
    """SEDD's Euler sampler."""

    def solver(self) -> ScoreEuler:
        return ScoreEuler()


@dataclass(frozen=True)
class AncestralConfig(SolverConfig):
    """MDLM's ancestral sampler: Euler with the integrated hazard."""

    def solver(self) -> Euler:
        return Euler(hazard="integrated")


@dataclass(frozen=True)
class EulerConfig(SolverConfig):
    """Euler steps, without a context weight."""

    hazard: Hazard = "euler"  # integrated: exact without a weight
    corrector: float = 0.0  # scale of the corrector; 0 for none
    corrector_power: float = POWER  # a = b in the corrector's strength, scale t^a (1 - t)^b

    @property
    def weight(self) -> Weight | None:
        """The context weight."""
        return None

    def solver(self) -> Euler:
        corrector = Corrector(self.corrector, self.corrector_power, self.corrector_power)
        if not self.corrector and self.corrector_power != POWER:
            raise InputError(
                "corrector_power must be omitted without a corrector; set corrector=",
                fields=("corrector_power", "corrector"),
            )
        return Euler(self.weight, self.hazard, corrector=corrector if self.corrector else None)


@dataclass(frozen=True)
class NeighborConfig(EulerConfig):
    """The paper's neighbor solver."""

    radius: int = 1  # radius of the neighborhood, in tokens
    scale: float = 4.0  # log-weight of each revealed neighbor
    boundary: Boundary = "circular"  # windows at the ends wrap around or are cut; bd3lm cuts

    @property
    def weight(self) -> Neighbor:
        return Neighbor(self.radius, self.scale, self.boundary)


@dataclass(frozen=True)
class EntropyConfig(EulerConfig):
    """The paper's entropy solver."""

    beta: float = 6.0  # reduction of the log-weight per nat of entropy

    @property
    def weight(self) -> Entropy:
        return Entropy(self.beta)


@dataclass(frozen=True)
class NeighborShareConfig(EulerConfig):
    """The weight n as printed in the paper: the fraction of revealed neighbors."""

    radius: int = 1  # radius of the neighborhood, in tokens
    boundary: Boundary = "circular"  # windows at the ends wrap around or are cut; bd3lm cuts

    @property
    def weight(self) -> NeighborShare:
        return NeighborShare(self.radius, self.boundary)


@dataclass(frozen=True)
class EntropyInverseConfig(EulerConfig):
    """The weight 1 / H as printed in the paper."""

    @property
    def weight(self) -> EntropyInverse:
        return EntropyInverse()


@dataclass(frozen=True)
class NeighborCountedConfig(SolverConfig):
    """The neighbor solver with as many jumps per step as Euler."""

    hazard: Hazard = "euler"  # integrated: exact without a weight
    radius: int = 1  # radius of the neighborhood, in tokens
    scale: float = 4.0  # log-weight of each revealed neighbor
    boundary: Boundary = "circular"  # windows at the ends wrap around or are cut; bd3lm cuts

    def solver(self) -> Euler:
        weight = Neighbor(self.radius, self.scale, self.boundary)
        return Euler(weight, self.hazard, counted=True)


@dataclass(frozen=True)
class EntropyCountedConfig(SolverConfig):
    """The entropy solver with as many jumps per step as Euler."""

    hazard: Hazard = "euler"  # integrated: exact without a weight
    beta: float = 6.0  # reduction of the log-weight per nat of entropy

    def solver(self) -> Euler:
        return Euler(Entropy(self.beta), self.hazard, counted=True)


SOLVERS: dict[str, type[SolverConfig]] = {
    "euler": EulerConfig,
    "ancestral": AncestralConfig,
    "neighbor": NeighborConfig,
    "entropy": EntropyConfig,
    "neighbor-counted": NeighborCountedConfig,
    "entropy-counted": EntropyCountedConfig,
    "neighbor-share": NeighborShareConfig,
    "entropy-inverse": EntropyInverseConfig,
    "first-hitting": FirstHittingConfig,
    "confidence": TopKConfig,
    "margin": MarginConfig,
    "low-entropy": LowEntropyConfig,
    "entropy-bound": EntropyBoundConfig,
    "left-to-right": LeftToRightConfig,
    "analytic": AnalyticConfig,
    "score-euler": ScoreEulerConfig,
}


def default_name(method: Method) -> Name:
    """The name of the solver that a method uses by default."""
    return cast(Name, method.default_solver)


def option_names(solver: str) -> frozenset[str]:
    """The names of a solver's options, including those of the draws."""
    return frozenset(field.name for field in fields(SOLVERS[solver]))


SHARED_OPTIONS = frozenset(field.name for field in fields(SolverConfig))
SPECIFIC_OPTIONS = frozenset().union(*map(option_names, SOLVERS)) - SHARED_OPTIONS


def solvers_with(option: str) -> list[str]:
    """The names of the solvers that have an option."""
    return [solver for solver in SOLVERS if option in option_names(solver)]


def for_method(solver: Any, method: Method, stop: int | None = None) -> Any:
    """Adapt a solver to a method: inside the blocks of BD3LM, windows are cut at the ends.

    With `stop`, BD3LM ends a sample after this token.
    """
    if not isinstance(method, BlockDiffusion):
        if stop is not None:
            raise InputError(
                "stop must be omitted with this model: only bd3lm samples block by block; other "
                "samples have their full length, and decoding cuts them at the end token",
                fields=("stop",),
            )
        return solver
    weight = getattr(solver, "weight", None)
    if isinstance(weight, Neighbor | NeighborShare):
        solver = replace(solver, weight=replace(weight, boundary="cut"))
    return BlockSolver(solver, stop) if isinstance(solver, Solver) else solver


@dataclass(frozen=True)
class SolverChoice:
    """A solver with the options of all solvers in one flat record; those of other solvers are idle.

    Recorded results are identified by these fields (see `to_config`), so they must not change.
    """

    solver: Name = "auto"
    radius: int = NeighborConfig.radius
    scale: float = NeighborConfig.scale
    boundary: Boundary = NeighborConfig.boundary
    beta: float = EntropyConfig.beta
    gamma: float = EntropyBoundConfig.gamma
    corrector: float = EulerConfig.corrector
    hazard: Hazard = EulerConfig.hazard
    temperature: float = SolverConfig.temperature
    top_p: float = SolverConfig.top_p
    stop: bool = False
    corrector_power: float = added(POWER)

    def resolved(self, method: Method) -> Self:
        """Replace "auto" by the method's default solver."""
        return replace(self, solver=default_name(method)) if self.solver == "auto" else self

    def config(self) -> SolverConfig:
        """The config of the named solver."""
        return SOLVERS[self.solver](
            **{option: getattr(self, option) for option in option_names(self.solver)}
        )

    def build(self, method: Method, end_token: int | None = None) -> Any:
        """Create the solver for a method."""
        solver = self.resolved(method).config().build()
        return for_method(solver, method, end_token if self.stop else None)
