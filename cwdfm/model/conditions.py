"""Conditions: properties of a sequence, such as logP, that a network receives with the time.

A condition encodes a value as one number: standardized if it is numeric, the number of its category
otherwise. NaN stands for a condition that is not given. Training drops conditions at random, so
that the same network also predicts without them.

Shapes: B batch, C conditions, D width of the embedding.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cwdfm.data.dataset import TokenData
from cwdfm.data.readers import find_column
from cwdfm.errors import InputError, check_instance, is_number, require
from cwdfm.ops.random import Purpose, uniform_BN

FREQUENCIES = 256
MAX_PERIOD = 10_000.0


@dataclass(frozen=True)
class Condition(ABC):
    """A condition of a network: `Numeric` or `Categorical`."""

    name: str

    def __post_init__(self) -> None:
        check_instance("the name of a condition", self.name, str, "'logp'")

    @abstractmethod
    def encode(self, value: object) -> float:
        """The number that the network embeds; InputError for a value that it cannot have."""

    @abstractmethod
    def check(self, value: object) -> None:
        """Raise InputError for a value that did not occur in training."""


@dataclass(frozen=True)
class Numeric(Condition):
    """A number, standardized with the mean and standard deviation of the training data.

    `low` and `high` are the smallest and largest values in the training data.
    """

    mean: float
    std: float
    low: float
    high: float

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = is_number(self.mean) and is_number(self.std) and math.isfinite(self.mean)
        rule = "have a finite mean and a standard deviation > 0: its values must differ"
        require(valid and 0 < self.std < math.inf, f"condition {self.name!r}", rule, self)
        ordered = is_number(self.low) and is_number(self.high) and self.low < self.high
        require(ordered, f"condition {self.name!r}", "have low < high", self)

    def encode(self, value: object) -> float:
        """(value - mean) / std."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{self.name} is a number, got {value!r}; give one such as 2.5")
        return (number - self.mean) / self.std

    def check(self, value: object) -> None:
        number = self.encode(value) * self.std + self.mean
        margin = 1e-6 * (self.high - self.low)
        if not self.low - margin <= number <= self.high + margin:
            raise InputError(
                f"{self.name}={value} is outside the training data, where it is between "
                f"{self.low:.6g} and {self.high:.6g}; give a value in this range"
            )


@dataclass(frozen=True)
class Categorical(Condition):
    """One of the categories of the training data."""

    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.categories
        valid = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        valid = valid and 2 <= len(names) == len(set(names))
        require(valid, f"condition {self.name!r}", "have two or more distinct categories", names)

    def encode(self, value: object) -> float:
        """The number of the category."""
        if value not in self.categories:
            raise InputError(
                f"{self.name} has no category {value!r}; it has {', '.join(self.categories)}"
            )
        return float(self.categories.index(str(value)))

    def check(self, value: object) -> None:
        self.encode(value)


def condition_of(name: str, data: TokenData) -> Condition:
    """The condition of a column of data: numeric, or categorical if it holds strings."""
    values = _column(data, name)
    if values.dtype.kind == "f":
        known = values[: len(data.train)]
        numbers = (known.mean(), known.std(), known.min(), known.max())
        return Numeric(name, *map(float, numbers))
    return Categorical(name, tuple(np.unique(values).tolist()))


def encode_columns(conditions: tuple[Condition, ...], data: TokenData) -> NDArray[np.float32]:
    """The numbers [n + m, C] of the conditions of all sequences."""
    numbers = np.empty((len(data.train) + len(data.valid), len(conditions)), np.float32)
    for i, condition in enumerate(conditions):
        numbers[:, i] = list(map(condition.encode, _column(data, condition.name).tolist()))
    return numbers


def _column(data: TokenData, name: str) -> NDArray[np.generic]:
    """The column of a condition, ignoring case."""
    if (found := find_column(list(data.columns), name)) is None:
        has = f"they have {', '.join(data.columns)}" if data.columns else "they have none"
        raise InputError(
            f"the data {data.name} have no column {name!r}, {has}; load them with "
            f"condition={name!r}",
            fields=("condition",),
        )
    return data.columns[found]


def encode_condition(conditions: tuple[Condition, ...], given: Mapping[str, object]) -> list[float]:
    """The numbers [C] of the given values, by name; NaN for conditions that are not given."""
    require(isinstance(given, Mapping), "condition", "be a dictionary such as {'logp': 2.5}", given)
    names = [each.name for each in conditions]
    if not names:
        wanted = " ".join(map(str, given))
        raise InputError(
            f"the model was trained without conditions, got {wanted}; omit them, or train a model "
            f"with `cwdfm train RECIPE --condition {wanted}`"
        )
    found: dict[str, float] = {}
    for wanted, value in given.items():
        name = find_column(names, str(wanted))
        if name is None:
            raise InputError(
                f"the model was not trained with the condition {wanted!r}; it has "
                f"{', '.join(names)}"
            )
        if name in found:
            raise InputError(f"{name} is given twice; give one value")
        condition = conditions[names.index(name)]
        condition.check(value)
        found[name] = condition.encode(value)
    if not found:
        raise InputError(f"no condition is given; the model has {', '.join(names)}")
    return [found.get(name, math.nan) for name in names]


def with_condition(t_B: Tensor, condition: Tensor | None) -> Tensor:
    """The time [B] and the numbers [B, C] or [C] of the conditions, as one input [B, 1 + C]."""
    if condition is None or not condition.shape[-1]:
        return t_B
    return torch.cat([t_B[:, None], condition.to(t_B).expand(len(t_B), -1)], dim=1)


def drop_conditions(
    condition_BC: Tensor, probability: float, *, seed: int, index: Tensor, step: int
) -> Tensor:
    """Drop all conditions of a sequence with this probability, then each one of the others too.

    The network so learns to predict without any condition, and with a part of them.
    """
    draws = condition_BC.shape[1] + 1
    drop_BD = uniform_BN(seed, Purpose.CONDITION, index, step, draws) < probability
    return condition_BC.masked_fill(drop_BD[:, :1] | drop_BD[:, 1:], math.nan)


class ScalarEmbedding(nn.Module):
    """Sinusoidal features of a number [B], and a two-layer MLP, [B, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(FREQUENCIES, width)
        self.second = nn.Linear(width, width)

    def forward(self, value_B: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        exponent = torch.arange(half, device=value_B.device, dtype=torch.float32) / half
        angle = value_B.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponent)
        wave = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.first.weight.dtype)
        embedded: Tensor = self.second(nn.functional.silu(self.first(wave)))
        return embedded


class ConditionEmbedding(nn.Module):
    """The embedding [B, D] of a condition's numbers [B]; a learned vector where it is not given."""

    def __init__(self, condition: Condition, width: int) -> None:
        super().__init__()
        self.absent = nn.Parameter(torch.zeros(width))
        self.value: nn.Module
        if isinstance(condition, Categorical):
            self.value = nn.Embedding(len(condition.categories), width)
        else:
            self.value = ScalarEmbedding(width)

    def set_zero(self) -> None:
        """Embed everything as zero, so that a trained network can get the condition later."""
        last = self.value.second if isinstance(self.value, ScalarEmbedding) else self.value
        for parameter in last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, number_B: Tensor) -> Tensor:
        absent_B = number_B.isnan()
        known_B = number_B.masked_fill(absent_B, 0.0)
        known_B = known_B.long() if isinstance(self.value, nn.Embedding) else known_B
        return torch.where(absent_B[:, None], self.absent, self.value(known_B))
