"""Schedules kappa_t: how much of the data is revealed at time t, and how fast.

Each schedule increases from kappa_0 = 0 to kappa_1 = 1. With S_t = 1 - kappa_t, the probability
that a coordinate is still masked, the hazard is lambda_t = kappa'_t / S_t and its integral
log(S_t0 / S_t1). S_t has a method of its own because 1 - kappa_t loses digits near t = 1.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError


def _tensor(x: Tensor | float) -> Tensor:
    """A float as a tensor, checked; tensors are left alone, paths and solvers check theirs."""
    if isinstance(x, Tensor):
        return x
    if not 0 <= x <= 1:
        raise InputError(f"times and kappas lie in [0, 1], got {x}")
    return torch.tensor(x, dtype=torch.float64)


class Schedule(ABC):
    """kappa_t and what follows from it. Times are floats or tensors of any shape, in [0, 1]."""

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
        if not (isinstance(self.power, int | float) and 1 <= self.power <= 1e6):
            raise InputError(
                f"Polynomial power must be a finite number >= 1, and at most 1e6, got "
                f"{self.power!r}; below 1 the hazard is infinite at t = 0 and the first Euler step "
                f"would reveal everything"
            )

    def kappa(self, t: Tensor | float) -> Tensor:
        return _tensor(t) ** self.power

    def kappa_dot(self, t: Tensor | float) -> Tensor:
        return self.power * _tensor(t) ** (self.power - 1)

    def survival(self, t: Tensor | float) -> Tensor:
        return 0 - torch.expm1(self.power * _tensor(t).log())  # 0 -, for +0 at t = 1

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
    """kappa_t = 1 - cos(pi t / 2): slow at first, as MaskGIT's schedule (Chang et al. 2022)."""

    def kappa(self, t: Tensor | float) -> Tensor:
        return 2 * torch.sin(math.pi / 4 * _tensor(t)).square()

    def kappa_dot(self, t: Tensor | float) -> Tensor:
        return math.pi / 2 * torch.sin(math.pi / 2 * _tensor(t))

    def survival(self, t: Tensor | float) -> Tensor:
        # sin of the complement: exactly 0 at t = 1, where cos(pi / 2) is 6e-17.
        return torch.sin(math.pi / 2 * (1 - _tensor(t)))

    def inverse(self, kappa: Tensor | float) -> Tensor:
        return 4 / math.pi * torch.asin((_tensor(kappa) / 2).sqrt())
