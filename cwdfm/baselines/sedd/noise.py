"""The noise schedule sigma(s), the integrated rate of the forward chain.

s = 1 - t is the reverse of the library's time: s = 0 is data, s = 1 is noise. After noise sigma a
token is unchanged with probability exp(-sigma).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_positive

MAX_SIGMA = 30.0  # beyond it, the data's share exp(-sigma) is lost in the rounding of float64


class Noise(ABC):
    """An increasing sigma(s) with its derivative and inverse. Tensors are float64, of any shape."""

    @abstractmethod
    def sigma(self, s: Tensor) -> Tensor:
        """The noise at s in [0, 1]."""

    @abstractmethod
    def rate(self, s: Tensor) -> Tensor:
        """d sigma / ds, the rate of the forward chain."""

    @abstractmethod
    def inverse(self, sigma: Tensor) -> Tensor:
        """The s at which the noise is sigma."""

    def sigma_at(self, s: float) -> float:
        """`sigma` of a Python float."""
        return float(self.sigma(torch.tensor(s, dtype=torch.float64)))

    def rate_at(self, s: float) -> float:
        """`rate` at a Python float."""
        return float(self.rate(torch.tensor(s, dtype=torch.float64)))


@dataclass(frozen=True)
class LogLinear(Noise):
    """sigma(s) = -log(1 - (1 - epsilon) s): a fraction (1 - epsilon) s of the tokens is noised."""

    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, float) and math.exp(-MAX_SIGMA) <= self.epsilon < 1):
            raise InputError(
                f"epsilon, the fraction of tokens without noise at s = 1, must lie between "
                f"{math.exp(-MAX_SIGMA):.1g} and 1, got {self.epsilon!r}; the SEDD paper uses 1e-3"
            )

    def sigma(self, s: Tensor) -> Tensor:
        return -torch.log1p(-(1 - self.epsilon) * s)

    def rate(self, s: Tensor) -> Tensor:
        return (1 - self.epsilon) / (1 - (1 - self.epsilon) * s)

    def inverse(self, sigma: Tensor) -> Tensor:
        return -torch.expm1(-sigma) / (1 - self.epsilon)


@dataclass(frozen=True)
class Geometric(Noise):
    """sigma(s) = sigma_min^(1 - s) sigma_max^s."""

    sigma_min: float = 1e-4
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        check_positive("sigma_min", self.sigma_min)
        check_positive("sigma_max", self.sigma_max)
        if not self.sigma_min < self.sigma_max <= MAX_SIGMA:
            raise InputError(
                f"noise needs sigma_min < sigma_max <= {MAX_SIGMA}, got sigma_min="
                f"{self.sigma_min} and sigma_max={self.sigma_max}; the SEDD paper uses 1e-4 and 20"
            )

    @property
    def _log_ratio(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def sigma(self, s: Tensor) -> Tensor:
        return self.sigma_min * torch.exp(self._log_ratio * s)

    def rate(self, s: Tensor) -> Tensor:
        return self._log_ratio * self.sigma(s)

    def inverse(self, sigma: Tensor) -> Tensor:
        return (sigma / self.sigma_min).log() / self._log_ratio
