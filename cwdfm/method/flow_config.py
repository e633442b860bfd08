"""Configs of discrete flows, with their path and loss, and of MDLM."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from cwdfm.config import one_of
from cwdfm.errors import InputError, check_bool, check_choice, check_integer, check_scale
from cwdfm.loss import NELBO, Bregman, CrossEntropy, Loss, ScaledCrossEntropy
from cwdfm.loss.base import Coordinates
from cwdfm.loss.scaled import RevealedWeight
from cwdfm.method.base import Method, MethodConfig, Task
from cwdfm.method.flow import Flow, FlowObjective
from cwdfm.model.transformer import DiTConfig
from cwdfm.path import MixturePath, path_for
from cwdfm.schedule import Linear, Polynomial
from cwdfm.source import MaskSource, Source, UniformSource
from cwdfm.weight import Neighbor, NeighborShare
from cwdfm.weight.neighbor import WindowBoundary


@dataclass(frozen=True)
class PathConfig:
    """The mixture path, which corrupts every position independently."""

    path: str = "mixture"  # the probability path: mixture or context

    def weight(self, length: int) -> Neighbor | None:
        """The path's context weight for sequences of `length` tokens, if it has one."""
        return None


@dataclass(frozen=True)
class ContextPathConfig(PathConfig):
    """The context-weighted path, with Neighbor weights."""

    path: str = "context"  # the probability path: mixture or context
    path_radius: int = 1  # radius of the Neighbor weight in the path
    path_scale: float = 1.0  # scale of the Neighbor weight in the path
    # Whether context windows of the path wrap around at the ends of a sequence (auto, circular) or
    # are truncated there (cut). With a fixed first token, "cut" and a large scale reveal tokens
    # from left to right.
    path_boundary: WindowBoundary = "auto"

    def __post_init__(self) -> None:
        check_choice("path_boundary", self.path_boundary, get_args(WindowBoundary))

    def weight(self, length: int) -> Neighbor | None:
        weight = _neighbor("path", self.path_radius, self.path_scale, length)
        return replace(weight, boundary=self.path_boundary)


@dataclass(frozen=True)
class LossConfig(ABC):
    """A training loss."""

    loss: str  # the training loss: ce, nelbo, bregman or sce

    @abstractmethod
    def build(self, weight: Neighbor | None, length: int) -> Loss:
        """Build the loss for a path with this context weight and sequences of `length` tokens."""


@dataclass(frozen=True)
class CrossEntropyConfig(LossConfig):
    """Cross-entropy of the data token."""

    loss: str = "ce"  # the training loss: ce, nelbo, bregman or sce
    masked_only: bool = False  # compute the loss on masked tokens only

    def __post_init__(self) -> None:
        check_bool("masked_only", self.masked_only)

    @property
    def coordinates(self) -> Coordinates:
        """The positions that contribute to the loss."""
        return "masked" if self.masked_only else "all"

    def build(self, weight: Neighbor | None, length: int) -> Loss:
        return CrossEntropy(self.coordinates)


@dataclass(frozen=True)
class NELBOConfig(CrossEntropyConfig):
    """The negative evidence lower bound."""

    loss: str = "nelbo"  # the training loss: ce, nelbo, bregman or sce

    def build(self, weight: Neighbor | None, length: int) -> Loss:
        return NELBO(self.coordinates if weight is None else "masked", weight)


@dataclass(frozen=True)
class BregmanConfig(CrossEntropyConfig):
    """The Bregman divergence of the rates."""

    loss: str = "bregman"  # the training loss: ce, nelbo, bregman or sce

    def build(self, weight: Neighbor | None, length: int) -> Loss:
        return Bregman(self.coordinates, weight)


@dataclass(frozen=True)
class ScaledCrossEntropyConfig(LossConfig):
    """Cross-entropy scaled by Neighbor weights."""

    loss: str = "sce"  # the training loss: ce, nelbo, bregman or sce
    loss_radius: int = 3  # radius of the Neighbor weight in the loss
    loss_scale: float = 0.5  # scale of the Neighbor weight in the loss
    revealed: RevealedWeight = "one"  # weight of revealed positions in the loss
    # Weight of n revealed neighbors in the loss: exp(loss_scale * n), or proportional to n (share).
    loss_weight: Literal["exp", "share"] = "exp"
    loss_center: bool = True  # count a revealed position as a neighbor of itself

    def __post_init__(self) -> None:
        check_choice("loss_weight", self.loss_weight, ("exp", "share"))
        check_bool("loss_center", self.loss_center)

    def build(self, weight: Neighbor | None, length: int) -> Loss:
        neighbor = _neighbor("loss", self.loss_radius, self.loss_scale, length)
        if self.loss_weight == "share":
            share = NeighborShare(self.loss_radius, center=self.loss_center)
            return ScaledCrossEntropy(share, self.revealed)
        return ScaledCrossEntropy(replace(neighbor, center=self.loss_center), self.revealed)


PATHS: dict[str, type[PathConfig]] = {"mixture": PathConfig, "context": ContextPathConfig}
LOSSES: dict[str, type[LossConfig]] = {
    "ce": CrossEntropyConfig,
    "nelbo": NELBOConfig,
    "bregman": BregmanConfig,
    "sce": ScaledCrossEntropyConfig,
}


@dataclass(frozen=True)
class FlowConfig(MethodConfig):
    """A discrete flow with the schedule kappa_t = t^power."""

    method_class = Flow

    method: str = "flow"  # the training method: flow, mdlm, sedd, bd3lm or ar
    source: Literal["mask", "uniform"] = "uniform"  # the source distribution
    power: float = 2.0  # exponent of the schedule kappa = t^power
    time: Literal["given", "zero"] = "given"  # zero: the network is not conditioned on time
    path: PathConfig = one_of(PATHS, "mixture")
    loss: LossConfig = one_of(LOSSES, "ce")

    def __post_init__(self) -> None:
        check_choice("source", self.source, ("mask", "uniform"))

    def _check_loss(self) -> None:
        """Reject losses that are not a bound, or train poorly, with a uniform source."""
        if self.source == "mask":
            return
        loss, context = self.loss, isinstance(self.path, ContextPathConfig)
        problem = ""
        if isinstance(loss, NELBOConfig) and context and not loss.masked_only:
            problem = (
                "the nelbo loss on a context path leaves out revealed tokens, so with a uniform "
                "source the network does not learn to keep correct tokens; use loss ce or sce, "
                "or source mask, or set masked_only if this is intended"
            )
        elif isinstance(loss, BregmanConfig) and context:
            problem = (
                "the bregman loss on a context path needs a mask source: with a uniform source "
                "alpha is not a function of x_t; use loss ce or sce, or source mask"
            )
        elif isinstance(loss, BregmanConfig) and loss.masked_only:
            problem = (
                "the bregman loss on masked tokens only needs a mask source: with a uniform "
                "source the other terms do not vanish; do not set masked_only"
            )
        if problem:
            raise InputError(problem, fields=("masked_only",))

    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        self._check_loss()
        source: Source = (MaskSource if self.source == "mask" else UniformSource)(vocab_size)
        method, weight = Flow(source, Polynomial(self.power)), self.path.weight(length)
        path = path_for(source, method.schedule, weight)
        objective = FlowObjective(path, self.loss.build(weight, length))
        return Task(method, objective, replace(method.network(size), time=self.time))

    @classmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        match method:
            case Flow(source, Polynomial(power)):
                name = "mask" if isinstance(source, MaskSource) else "uniform"
                return {"method": "flow", "source": name, "power": power, "time": model.time}
        return None


@dataclass(frozen=True)
class MDLMConfig(MethodConfig):
    """MDLM as a flow: mask source, linear schedule, NELBO on masked tokens, no time input."""

    method_class = Flow

    method: str = "mdlm"  # the training method: flow, mdlm, sedd, bd3lm or ar

    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        method = Flow(MaskSource(vocab_size), Linear())
        objective = FlowObjective(MixturePath(method.source, method.schedule), NELBO("masked"))
        return Task(method, objective, replace(method.network(size), time="zero"))

    @classmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        match method:
            case Flow(MaskSource(), Linear()) if model.time == "zero":
                return {"method": "mdlm"}
        return None


def _neighbor(prefix: str, radius: int, scale: float, length: int) -> Neighbor:
    """The Neighbor weight of the path or the loss; its window must fit into `length` tokens.

    `prefix` is that of the config fields, "path" or "loss".
    """
    name, largest = f"{prefix}_radius", (length - 1) // 2
    check_scale(f"{prefix}_scale", scale)
    check_integer(name, radius)
    if radius > largest:
        raise InputError(
            f"{name} {radius} is too large for sequences of {length} tokens: a window of "
            f"{2 * radius + 1} would overlap itself; use a {name} of at most {largest}, or a "
            f"length of at least {2 * radius + 1}",
            fields=(name, "length"),
        )
    return Neighbor(radius, scale)
