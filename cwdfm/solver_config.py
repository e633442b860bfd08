"""Solvers by name, as used on the command line.

`SOLVERS` maps each name to a config, a frozen dataclass whose fields are exactly the solver's
options, and to a function that builds the solver from it. To add a solver, add a line to `SOLVERS`,
and a config if the solver has options of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cwdfm.baselines.autoregressive import LeftToRight
from cwdfm.baselines.sedd.solver import Analytic, ScoreEuler
from cwdfm.errors import InputError, check_choice
from cwdfm.solver import (
    KLASS,
    Corrector,
    Edit,
    EntropyBound,
    EntropyPace,
    Euler,
    FirstHitting,
    Gibbs,
    PathPlanning,
    Remask,
    ThetaRK2,
    ThetaTrapezoidal,
    Threshold,
    TopK,
)
from cwdfm.weight import Entropy, EntropyInverse, Neighbor, NeighborShare, Weight
from cwdfm.weight.neighbor import WindowBoundary

Hazard = Literal["euler", "integrated"]
POWER = 0.5  # default exponent of the corrector


@dataclass(frozen=True)
class SolverConfig:
    """Options that all solvers share."""

    temperature: float = 1.0  # temperature of the predictions
    top_p: float = 1.0  # nucleus sampling: keep the most likely tokens up to this probability


@dataclass(frozen=True)
class OrderConfig(SolverConfig):
    """Solvers that reveal the best tokens first."""

    # Do not reveal uncertain tokens within this distance of each other in one step; 0: no limit.
    distance: int = 0


@dataclass(frozen=True)
class EntropyBoundConfig(OrderConfig):
    """Entropy-bounded unmasking."""

    gamma: float = 0.1  # bound on the dependence between tokens revealed at once, in nats


@dataclass(frozen=True)
class EntropyPaceConfig(OrderConfig):
    """The same share of the remaining entropy in every step."""

    # Do not reveal uncertain tokens within this distance of each other in one step; 0: no limit.
    distance: int = 2
    pace: float = 0.5  # bound on the dependence, relative to the entropy that a step resolves


@dataclass(frozen=True)
class ThresholdConfig(SolverConfig):
    """Reveal every token above a confidence."""

    threshold: float = 0.9  # reveal a token if its largest probability is at least this


@dataclass(frozen=True)
class EditConfig(ThresholdConfig):
    """Reveal every token above a confidence, and edit revealed tokens."""

    # Minimum probability at which another token replaces a revealed one.
    edit_threshold: float = 0.9
    post_steps: int = 16  # maximum number of evaluations after all tokens are revealed

    def build(self) -> Edit:
        """The solver; its draws have the options of its threshold steps."""
        solver = Threshold(self.threshold, temperature=self.temperature, top_p=self.top_p)
        return Edit(solver, self.edit_threshold, self.post_steps)


@dataclass(frozen=True)
class KLASSConfig(ThresholdConfig):
    """Reveal confident tokens whose predictions no longer change."""

    kl: float = 0.01  # largest KL divergence from the previous step's prediction, in nats
    history: int = 2  # number of steps for which a prediction must be stable


@dataclass(frozen=True)
class PathPlanningConfig(SolverConfig):
    """P2 path planning."""

    eta: float = 1.0  # how easily revealed tokens are masked again; 0 for never


@dataclass(frozen=True)
class RemaskConfig(SolverConfig):
    """ReMDM's remasking."""

    rule: Literal["cap", "rescale", "confidence"] = "cap"  # how the remasked fraction is limited
    # Limit on the fraction (cap), or on its ratio to the largest possible fraction.
    eta: float = 0.02


@dataclass(frozen=True)
class ThetaConfig(SolverConfig):
    """Two predictions per step."""

    theta: float = 0.5  # fraction of the step after which the second prediction is made


@dataclass(frozen=True)
class GibbsConfig(SolverConfig):
    """Ancestral steps, each followed by a Gibbs correction."""

    tokens: int = 1  # number of tokens redrawn after each step
    select: Literal["random", "unlikely"] = "random"  # unlikely: for a uniform source only
    begin: float = 0.0  # time of the first correction

    def build(self) -> Gibbs:
        """Build the solver; the correction draws with the temperature and top_p of the steps."""
        solver = Euler(hazard="integrated", temperature=self.temperature, top_p=self.top_p)
        return Gibbs(solver, self.tokens, self.select, self.begin)


@dataclass(frozen=True)
class _HazardConfig(SolverConfig):
    hazard: Hazard = "euler"  # hazard of a step; "integrated" is exact without a weight


@dataclass(frozen=True)
class EulerConfig(_HazardConfig):
    """Euler steps, with a corrector."""

    corrector: float = 0.0  # scale of the corrector; 0 for none
    corrector_power: float = POWER  # a = b in the corrector's strength, scale t^a (1 - t)^b
    # The corrector's strength is multiplied by exp(-corrector_beta * entropy); uniform source only.
    corrector_beta: float = 0.0

    def build(self, weight: Weight | None = None) -> Euler:
        """Build the Euler solver with a context weight."""
        power, beta = self.corrector_power, self.corrector_beta
        corrector = Corrector(self.corrector, power, power, Entropy(beta) if beta else None)
        for name in ("corrector_power", "corrector_beta"):
            if not self.corrector and getattr(self, name) != getattr(EulerConfig, name):
                raise InputError(
                    f"{name} must be omitted without a corrector; set corrector=",
                    fields=(name, "corrector"),
                )
        return Euler(weight, self.hazard, corrector=corrector if self.corrector else None)


@dataclass(frozen=True)
class _WindowConfig(_HazardConfig):
    radius: int = 1  # radius of the neighborhood, in tokens
    # Windows at the ends wrap around (circular) or are truncated (cut). auto truncates them if
    # there is a prompt, and for bd3lm.
    boundary: WindowBoundary = "auto"


@dataclass(frozen=True)
class NeighborCountedConfig(_WindowConfig):
    """The neighbor solver with as many jumps per step as Euler."""

    scale: float = 4.0  # log-weight of each revealed neighbor

    def weight(self) -> Neighbor:
        """The context weight."""
        return Neighbor(self.radius, self.scale, self.boundary)


@dataclass(frozen=True)
class EntropyCountedConfig(_HazardConfig):
    """The entropy solver with as many jumps per step as Euler."""

    beta: float = 6.0  # reduction of the log-weight per nat of entropy


@dataclass(frozen=True)
class NeighborConfig(NeighborCountedConfig, EulerConfig):
    """The paper's neighbor solver."""


@dataclass(frozen=True)
class EntropyConfig(EntropyCountedConfig, EulerConfig):
    """The paper's entropy solver."""


@dataclass(frozen=True)
class NeighborShareConfig(_WindowConfig, EulerConfig):
    """The weight n as printed in the paper: the fraction of revealed neighbors."""


class NamedSolver(NamedTuple):
    """A solver's config class, and the function that builds the solver from a config."""

    config: type[SolverConfig]
    make: Callable[[Any], Any]


SOLVERS: dict[str, NamedSolver] = {
    "euler": NamedSolver(EulerConfig, EulerConfig.build),
    "ancestral": NamedSolver(SolverConfig, lambda _: Euler(hazard="integrated")),
    "neighbor": NamedSolver(NeighborConfig, lambda c: c.build(c.weight())),
    "entropy": NamedSolver(EntropyConfig, lambda c: c.build(Entropy(c.beta))),
    "neighbor-counted": NamedSolver(
        NeighborCountedConfig, lambda c: Euler(c.weight(), c.hazard, counted=True)
    ),
    "entropy-counted": NamedSolver(
        EntropyCountedConfig, lambda c: Euler(Entropy(c.beta), c.hazard, counted=True)
    ),
    "neighbor-share": NamedSolver(
        NeighborShareConfig, lambda c: c.build(NeighborShare(c.radius, c.boundary))
    ),
    "entropy-inverse": NamedSolver(EulerConfig, lambda c: c.build(EntropyInverse())),
    "first-hitting": NamedSolver(SolverConfig, lambda _: FirstHitting()),
    "random-order": NamedSolver(OrderConfig, lambda c: TopK("random", distance=c.distance)),
    "confidence": NamedSolver(OrderConfig, lambda c: TopK("confidence", distance=c.distance)),
    "margin": NamedSolver(OrderConfig, lambda c: TopK("margin", distance=c.distance)),
    "low-entropy": NamedSolver(OrderConfig, lambda c: TopK("entropy", distance=c.distance)),
    "entropy-bound": NamedSolver(
        EntropyBoundConfig, lambda c: EntropyBound(c.gamma, distance=c.distance)
    ),
    "entropy-pace": NamedSolver(
        EntropyPaceConfig, lambda c: EntropyPace(c.pace, distance=c.distance)
    ),
    "threshold": NamedSolver(ThresholdConfig, lambda c: Threshold(c.threshold)),
    "edit": NamedSolver(EditConfig, EditConfig.build),
    "klass": NamedSolver(KLASSConfig, lambda c: KLASS(c.threshold, c.kl, c.history)),
    "path-planning": NamedSolver(PathPlanningConfig, lambda c: PathPlanning(c.eta)),
    "remask": NamedSolver(
        RemaskConfig, lambda c: Euler(hazard="integrated", corrector=Remask(c.rule, c.eta))
    ),
    "gibbs": NamedSolver(GibbsConfig, GibbsConfig.build),
    "theta-trapezoidal": NamedSolver(ThetaConfig, lambda c: ThetaTrapezoidal(c.theta)),
    "theta-rk2": NamedSolver(ThetaConfig, lambda c: ThetaRK2(c.theta)),
    "left-to-right": NamedSolver(SolverConfig, lambda _: LeftToRight()),
    "analytic": NamedSolver(SolverConfig, lambda _: Analytic()),
    "score-euler": NamedSolver(SolverConfig, lambda _: ScoreEuler()),
}


if TYPE_CHECKING:
    Name = str
else:
    Name = Literal["auto", *SOLVERS]  # the choices of the command line


def build_solver(name: str, config: SolverConfig) -> Any:
    """Build the solver `name` from its config."""
    solver = SOLVERS[name].make(config)
    if not hasattr(solver, "temperature"):
        return solver
    return replace(solver, temperature=config.temperature, top_p=config.top_p)


def make_solver(name: str, **options: Any) -> Any:
    """Build a solver by its command-line name, such as "neighbor", with its options."""
    check_choice("solver", name, tuple(SOLVERS))
    if unknown := sorted(options.keys() - option_names(name)):
        raise InputError(
            f"solver {name!r} has no option {', '.join(unknown)}; its options are "
            f"{', '.join(sorted(option_names(name)))}"
        )
    return build_solver(name, SOLVERS[name].config(**options))


def option_names(solver: str) -> frozenset[str]:
    """The names of a solver's options, including those that all solvers share."""
    return frozenset(field.name for field in fields(SOLVERS[solver].config))


SHARED_OPTIONS = frozenset(field.name for field in fields(SolverConfig))
SOLVER_OPTIONS = frozenset().union(*map(option_names, SOLVERS))
SPECIFIC_OPTIONS = SOLVER_OPTIONS - SHARED_OPTIONS


def solvers_with(option: str) -> list[str]:
    """The names of the solvers that have this option."""
    return [solver for solver in SOLVERS if option in option_names(solver)]
