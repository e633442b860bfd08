"""Schedules kappa_t, time grids for sampling, and stratified times for training.

kappa_t is the probability that a coordinate is revealed at time t. It increases from kappa_0 = 0 to
kappa_1 = 1. With the survival probability S_t = 1 - kappa_t, the hazard is
lambda_t = kappa'_t / S_t, and its integral from t0 to t1 is log(S_t0 / S_t1). S_t is a separate
method because 1 - kappa_t loses digits near t = 1.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cwdfm.errors import (
    MAX_STEPS,
    InputError,
    check_instance,
    check_integer,
    describe,
    has_values,
    is_builtin,
    is_number,
    require,
)
from cwdfm.ops.random import Purpose, check_step, sample_index, uniform

__all__ = ["Cosine", "Linear", "Polynomial", "Schedule", "stratified_times", "time_grid"]
Spacing = Literal["t", "kappa", "sqrt"]


def _tensor(x: Tensor | float) -> Tensor:
    """Validate a float and convert it to float64. Tensors pass through: their users check them."""
    if has_values(x) and x.is_floating_point():
        return x
    if not is_number(x) or not 0 <= x <= 1:
        raise InputError(
            f"times and kappas must be numbers in [0, 1] or floating-point tensors, got "
            f"{describe(x)}"
        )
    return torch.tensor(x, dtype=torch.float64)


class Schedule(ABC):
    """kappa_t and derived quantities. Times are floats or tensors of any shape, in [0, 1].

    A subclass implements `kappa`, `kappa_dot`, `survival` and `inverse`. Each returns a tensor of
    the shape of its argument, and converts a float to float64.
    """

    @abstractmethod
    def kappa(self, t: Tensor | float) -> Tensor:
        """kappa_t, the probability that a coordinate is revealed at time t."""

    @abstractmethod
    def kappa_dot(self, t: Tensor | float) -> Tensor:
        """The derivative of kappa_t."""

    @abstractmethod
    def survival(self, t: Tensor | float) -> Tensor:
        """S_t = 1 - kappa_t, without cancellation near t = 1."""

    @abstractmethod
    def inverse(self, kappa: Tensor | float) -> Tensor:
        """The time t at which kappa_t = kappa."""

    def hazard(self, t: Tensor | float) -> Tensor:
        """lambda_t = kappa'_t / (1 - kappa_t); infinite at t = 1."""
        return self.kappa_dot(t) / self.survival(t)

    def integrated_hazard(self, t0: Tensor | float, t1: Tensor | float) -> Tensor:
        """The integral of lambda from t0 to t1: log((1 - kappa_t0) / (1 - kappa_t1))."""
        return self.survival(t0).log() - self.survival(t1).log()


@dataclass(frozen=True)
class Polynomial(Schedule):
    """kappa_t = t^power. The paper uses power 2."""

    power: float = 2.0

    def __post_init__(self) -> None:
        # Below 1 the hazard is infinite at t = 0: the first Euler step would reveal everything.
        valid = is_number(self.power) and 1 <= self.power <= 1e6
        require(valid, "power", "be a number from 1 to 1e6", self.power)

    def kappa(self, t: Tensor | float) -> Tensor:
        return _tensor(t) ** self.power

    def kappa_dot(self, t: Tensor | float) -> Tensor:
        return self.power * _tensor(t) ** (self.power - 1)

    def survival(self, t: Tensor | float) -> Tensor:
        return 0 - torch.expm1(self.power * _tensor(t).log())  # 0 - x gives +0 at t = 1

    def inverse(self, kappa: Tensor | float) -> Tensor:
        return _tensor(kappa) ** (1 / self.power)


@dataclass(frozen=True)
class Linear(Schedule):
    """kappa_t = t."""

    def kappa(self, t: Tensor | float) -> Tensor:
        return _tensor(t)

    def kappa_dot(self, t: Tensor | float) -> Tensor:
        return torch.ones_like(_tensor(t))

    def survival(self, t: Tensor | float) -> Tensor:
        return 1 - _tensor(t)

    def inverse(self, kappa: Tensor | float) -> Tensor:
        return _tensor(kappa)


@dataclass(frozen=True)
class Cosine(Schedule):
    """kappa_t = 1 - cos(pi t / 2): slow at first, like MaskGIT's schedule (Chang et al. 2022)."""

    def kappa(self, t: Tensor | float) -> Tensor:
        return 2 * torch.sin(math.pi / 4 * _tensor(t)).square()

    def kappa_dot(self, t: Tensor | float) -> Tensor:
        return math.pi / 2 * torch.sin(math.pi / 2 * _tensor(t))

    def survival(self, t: Tensor | float) -> Tensor:
        # The sine of the complement is exactly 0 at t = 1; cos(pi / 2) is 6e-17.
        return torch.sin(math.pi / 2 * (1 - _tensor(t)))

    def inverse(self, kappa: Tensor | float) -> Tensor:
        return 4 / math.pi * torch.asin((_tensor(kappa) / 2).sqrt())


def check_schedule(schedule: Schedule) -> None:
    """Require a schedule. The methods of a user's class must return tensors and fit together."""
    check_instance("schedule", schedule, Schedule, "Polynomial(2.0)")
    if is_builtin(schedule):
        return
    name = type(schedule).__name__
    t = torch.linspace(0, 1, 18, dtype=torch.float64)[1:-1]
    end = torch.tensor([0.0, 1.0], dtype=torch.float64)
    values: dict[str, Tensor] = {}
    for method in (schedule.kappa, schedule.kappa_dot, schedule.survival, schedule.inverse):
        for x in (0.5, end, t):
            y = values[method.__name__] = method(x)
            if not has_values(y) or y.shape != torch.as_tensor(x).shape:
                raise InputError(
                    f"{name}.{method.__name__} must return a tensor of its argument's shape for "
                    f"{describe(x)}, got {describe(y)}; convert the argument with "
                    f"torch.as_tensor(t, dtype=torch.float64)"
                )
    h = 1e-5
    slope = (schedule.kappa(t + h) - schedule.kappa(t - h)) / (2 * h)
    for rule, at, found, expected in (
        ("kappa({:.3g})", end, schedule.kappa(end), end),
        ("kappa_dot({:.3g})", t, values["kappa_dot"], slope.clamp(min=0)),
        ("survival({:.3g})", t, values["survival"], 1 - values["kappa"]),
        ("kappa(inverse({:.3g}))", t, schedule.kappa(values["inverse"]), t),
    ):
        for x, y, correct in zip(at.tolist(), found.tolist(), expected.tolist(), strict=True):
            if not math.isclose(y, correct, rel_tol=0.02, abs_tol=1e-3):
                raise InputError(
                    f"{name}: {rule.format(x)} is {y:.4g}, but must be {correct:.4g}; kappa rises "
                    f"from 0 to 1, kappa_dot is its derivative, survival = 1 - kappa, and inverse "
                    f"maps kappa to its time"
                )


def time_grid(
    schedule: Schedule, steps: int, spacing: Spacing | Tensor = "t", *, first: float = 0.0
) -> Tensor:
    """The grid first = t_0 < ... < t_steps = 1, float64 [steps + 1].

    `spacing`:

    - "t": uniform in time (the paper).
    - "kappa": uniform in kappa, so that every step reveals the same expected fraction.
    - "sqrt": uniform in sqrt(1 - kappa). Step k of n leaves the fraction (1 - k/n)^2 unrevealed, so
      early steps reveal more than late ones. This suits a uniform source and few steps.
    - A tensor: the times themselves.
    """
    check_schedule(schedule)
    check_integer("steps", steps, most=MAX_STEPS)
    if not is_number(first) or not 0 <= first < 1:
        raise InputError(f"a grid must start at a time in [0, 1), got {first}")
    if isinstance(spacing, Tensor):
        return _check_grid(spacing, steps, first)
    names = get_args(Spacing)
    rule = f"be {', '.join(map(repr, names))} or a tensor of times"
    require(isinstance(spacing, str) and spacing in names, "grid", rule, spacing)
    if spacing == "t":
        return torch.linspace(first, 1, steps + 1, dtype=torch.float64)
    begin = float(schedule.kappa(torch.tensor(first, dtype=torch.float64)))
    kappa = torch.linspace(begin, 1, steps + 1, dtype=torch.float64)
    if spacing == "sqrt":
        kappa = 1 - (1 - kappa) ** 2 / (1 - begin)
    grid = schedule.inverse(kappa)
    grid[0], grid[-1] = first, 1.0  # exact, regardless of rounding in the inverse
    return grid


def _check_grid(grid: Tensor, steps: int, first: float) -> Tensor:
    if grid.shape != (steps + 1,) or not grid.is_floating_point():
        raise InputError(
            f"a custom grid for {steps} steps must be a floating tensor of shape ({steps + 1},), "
            f"got {describe(grid)}"
        )
    grid = grid.double().cpu()
    if grid[0] != first or grid[-1] != 1 or not bool((grid.diff() > 0).all()):
        raise InputError(
            f"a custom grid must increase strictly from {first:g} to 1, got {grid.tolist()}; to "
            f"start from given sequences at a later time, pass start=Start(tokens, t)"
        )
    return grid


def stratified_times(seed: int, step: int, index_B: Tensor, total: int) -> Tensor:
    """Stratified uniform times [B] for training step `step`: t_i = (i + u_i) / total.

    `index_B` holds positions 0..total-1 in the global batch, so the times do not depend on how the
    batch is split between processes.
    """
    check_step(step)
    check_integer("total", total)
    check_instance("index_B", index_B, Tensor, "torch.arange(64)")
    index_B = sample_index(index_B, len(index_B), index_B.device)
    if bool((index_B >= total).any()):
        raise InputError(
            f"index must contain positions 0..{total - 1} in the global batch of total={total}, "
            f"got {describe(index_B)}"
        )
    u_B = uniform(seed, Purpose.TIME, index_B, step, torch.zeros_like(index_B))
    return (index_B + u_B) / total
