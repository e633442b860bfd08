"""How much noise there is: sigma(s), the integrated rate of the forward chain.

s = 1 - t runs against the library's time: s = 0 is data, s = 1 is noise. A token that has seen
sigma of noise is still untouched with probability exp(-sigma).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_positive

MOST = 30.0  # exp(-MOST) of a token's law is data: more noise is lost in float64's rounding


class Noise(ABC):
    """sigma(s), increasing, with its derivative and its inverse. All float64, of any shape."""

    @abstractmethod
    def sigma(self, s: Tensor) -> Tensor:
        """The noise at s in [0, 1]."""

    @abstractmethod
    def rate(self, s: Tensor) -> Tensor:
        """d sigma / ds: the rate of the forward chain."""

    @abstractmethod
    def inverse(self, sigma: Tensor) -> Tensor:
        """The s at which there is that much noise."""

    def sigma_at(self, s: float) -> float:
        """`sigma` of a number."""
        return float(self.sigma(torch.tensor(s, dtype=torch.float64)))

    def rate_at(self, s: float) -> float:
        """`rate` of a number."""
        return float(self.rate(torch.tensor(s, dtype=torch.float64)))


@dataclass(frozen=True)
class LogLinear(Noise):
    """sigma(s) = -log(1 - (1 - epsilon) s): a share (1 - epsilon) s of the tokens is touched."""

    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, float) and math.exp(-MOST) <= self.epsilon < 1):
            raise InputError(
                f"epsilon, the share of tokens that the noise leaves untouched, must lie between "
                f"{math.exp(-MOST):.1g} and 1, got {self.epsilon!r}; the paper has 1e-3"
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
        if not self.sigma_min < self.sigma_max <= MOST:
            raise InputError(
                f"sigma_min must be less than sigma_max, and that at most {MOST}, got "
                f"{self.sigma_min} and {self.sigma_max}; the paper has 1e-4 and 20"
            )

    @property
    def _octaves(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def sigma(self, s: Tensor) -> Tensor:
        return self.sigma_min * torch.exp(self._octaves * s)

    def rate(self, s: Tensor) -> Tensor:
        return self._octaves * self.sigma(s)

    def inverse(self, sigma: Tensor) -> Tensor:
        return (sigma / self.sigma_min).log() / self._octaves
