"""Solvers by name, as commands and experiments choose them, for whatever method a model has."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from cwdfm.baselines.autoregressive import Autoregressive, LeftToRight
from cwdfm.baselines.bd3lm.method import BlockDiffusion
from cwdfm.baselines.bd3lm.solver import BlockSolver
from cwdfm.baselines.sedd.method import SEDD
from cwdfm.baselines.sedd.solver import Analytic, ScoreEuler
from cwdfm.config import added
from cwdfm.errors import InputError
from cwdfm.method.base import Method
from cwdfm.method.flow import Flow
from cwdfm.solver import Corrector, EntropyBound, Euler, FirstHitting, Solver, TopK
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


POWER = 0.5  # of correctors, where none is given


@dataclass(frozen=True)
class SolverChoice:
    """A solver and its settings; those of other solvers lie idle."""

    solver: Name = "auto"  # auto: euler, bd3lm ancestral, sedd analytic, ar left-to-right
    radius: int = 1  # neighbor: how far a neighbour may be
    scale: float = 4.0  # neighbor: how much one revealed neighbour speeds a token up
    boundary: Boundary = "circular"  # neighbor: windows go round the ends or are cut; bd3lm cuts
    beta: float = 6.0  # entropy: how much one nat slows a token down
    gamma: float = 0.1  # entropy-bound: nats of dependence that may be drawn at once
    corrector: float = 0.0  # of euler and its weights: scale of the corrector; 0 for none
    hazard: Literal["euler", "integrated"] = "euler"  # integrated: exact without a weight
    temperature: float = 1.0  # of the predictions: below 1 bolder, above 1 more even
    top_p: float = 1.0  # nucleus: keep the likeliest tokens up to this probability
    stop: bool = False  # bd3lm: a sample that has drawn the end token ends there
    corrector_power: float = added(POWER)  # corrector: a = b in its strength, scale t^a (1 - t)^b

    def check(self) -> None:
        """Refuse settings that no solver takes, before there is a model."""
        if self.corrector and self.solver != "auto" and "corrector" not in READS[self.solver]:
            raise InputError(
                f"the {self.solver} solver has no corrector; use --solver "
                f"{readers('corrector', 'or')} with one, or leave --corrector out"
            )
        if not self.corrector and self.corrector_power != POWER:
            raise InputError(
                "--corrector-power is read with --corrector alone; leave it out, or give both"
            )
        if not 0 <= self.corrector_power < math.inf:
            raise InputError(
                f"corrector_power must be a finite number >= 0, got {self.corrector_power}"
            )
        BUILD["euler" if self.solver == "auto" else self.solver](self)

    def check_idle(self) -> None:
        """Refuse settings that the solver, by name, does not read and that are not the usual."""
        for field in fields(SolverChoice):
            if field.name not in READ_BY_SOME or field.name in READS[self.solver]:
                continue
            if getattr(self, field.name) != field.default:
                raise InputError(
                    f"--{field.name.replace('_', '-')} is read by --solver "
                    f"{readers(field.name, 'and')} alone, and "
                    f"the solver is {self.solver}; leave it out, or choose a solver that reads it"
                )

    def resolved(self, method: Method) -> Self:
        """The choice with the method's own solver in the place of "auto"."""
        return replace(self, solver=OWN[type(method)]) if self.solver == "auto" else self

    def build(self, method: Method, end: int | None = None) -> Any:
        """The solver. One that the method cannot follow is refused when it is used.

        `end` is the end token, for `stop`.
        """
        chosen = self.resolved(method)
        if not isinstance(method, BlockDiffusion):
            if self.stop:
                raise InputError(
                    "--stop is for bd3lm, which goes from block to block; other samples have all "
                    "of their length, and are cut at the end token when they are read"
                )
            return BUILD[chosen.solver](chosen)
        solver = BUILD[chosen.solver](replace(chosen, boundary="cut"))
        if not isinstance(solver, Solver):
            return solver
        return BlockSolver(solver, end if self.stop else None)


def _euler(choice: SolverChoice, weight: Weight | None = None, *, counted: bool = False) -> Euler:
    power = choice.corrector_power
    return Euler(
        weight=weight,
        hazard=choice.hazard,
        counted=counted,
        corrector=Corrector(choice.corrector, power, power) if choice.corrector else None,
        temperature=choice.temperature,
        top_p=choice.top_p,
    )


def _neighbor(choice: SolverChoice) -> Neighbor:
    return Neighbor(choice.radius, choice.scale, choice.boundary)


def _ancestral(choice: SolverChoice) -> Euler:
    return _euler(replace(choice, hazard="integrated", corrector=0.0))


def _top_k(score: Literal["confidence", "margin", "entropy"]) -> Callable[[SolverChoice], TopK]:
    return lambda choice: TopK(score, temperature=choice.temperature, top_p=choice.top_p)


def _draws(make: Callable[..., Any]) -> Callable[[SolverChoice], Any]:
    """A solver with nothing to choose but its draws."""
    return lambda choice: make(temperature=choice.temperature, top_p=choice.top_p)


BUILD: dict[str, Callable[[SolverChoice], Any]] = {
    "euler": _euler,
    "ancestral": _ancestral,
    "neighbor": lambda choice: _euler(choice, _neighbor(choice)),
    "entropy": lambda choice: _euler(choice, Entropy(choice.beta)),
    "neighbor-counted": lambda choice: _euler(choice, _neighbor(choice), counted=True),
    "entropy-counted": lambda choice: _euler(choice, Entropy(choice.beta), counted=True),
    "neighbor-share": lambda choice: _euler(choice, NeighborShare(choice.radius, choice.boundary)),
    "entropy-inverse": lambda choice: _euler(choice, EntropyInverse()),
    "first-hitting": _draws(FirstHitting),
    "confidence": _top_k("confidence"),
    "margin": _top_k("margin"),
    "low-entropy": _top_k("entropy"),
    "entropy-bound": lambda choice: EntropyBound(
        choice.gamma, temperature=choice.temperature, top_p=choice.top_p
    ),
    "left-to-right": _draws(LeftToRight),
    "analytic": _draws(Analytic),
    "score-euler": _draws(ScoreEuler),
}

# The settings that each of them reads, beside temperature and nucleus.
_STEPS, _NEAR = ("corrector", "corrector_power", "hazard"), ("radius", "scale", "boundary")
READS: dict[str, tuple[str, ...]] = dict.fromkeys(BUILD, ()) | {
    "euler": _STEPS,
    "neighbor": (*_NEAR, *_STEPS),
    "entropy": ("beta", *_STEPS),
    "neighbor-counted": (*_NEAR, "hazard"),
    "entropy-counted": ("beta", "hazard"),
    "neighbor-share": ("radius", "boundary", *_STEPS),
    "entropy-inverse": _STEPS,
    "entropy-bound": ("gamma",),
}


def readers(setting: str, join: str) -> str:
    """The solvers that read a setting: "a, b and c", or whatever joins the last."""
    *others, last = (name for name, reads in READS.items() if setting in reads)
    return f"{', '.join(others)} {join} {last}" if others else last


READ_BY_SOME = frozenset(name for names in READS.values() for name in names)

OWN: dict[type[Method], Name] = {
    Flow: "euler",
    BlockDiffusion: "ancestral",
    SEDD: "analytic",
    Autoregressive: "left-to-right",
}
