"""Conditions: properties of a sequence, such as logP, that a network receives along with the time.

A condition encodes a value as one number: the standardized value if it is numeric, the index of its
category otherwise, and NaN if it is unspecified. Training drops conditions at random, so that the
same network also predicts without them.

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

from cwdfm.data.columns import is_missing
from cwdfm.data.dataset import TokenData
from cwdfm.data.readers import find_column
from cwdfm.errors import InputError, check_instance, is_number, require
from cwdfm.ops.random import Purpose, uniform_BN

FREQUENCIES = 256
MAX_PERIOD = 10_000.0
_SHOWN = 30  # categories listed in an error


@dataclass(frozen=True)
class Condition(ABC):
    """A condition of a network: `Numeric` or `Categorical`."""

    name: str

    def __post_init__(self) -> None:
        check_instance("the name of a condition", self.name, str, "'logp'")

    @abstractmethod
    def encode(self, value: object) -> float:
        """The number that the network embeds. Raises InputError for invalid values."""

    @abstractmethod
    def check(self, value: object) -> None:
        """Raise an InputError for values outside the training data."""


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
            raise InputError(f"{self.name} must be a number such as 2.5, got {value!r}")
        return (number - self.mean) / self.std

    def check(self, value: object) -> None:
        number = self.encode(value) * self.std + self.mean
        margin = 1e-6 * (self.high - self.low)
        if not self.low - margin <= number <= self.high + margin:
            raise InputError(
                f"{self.name}={value} is outside the range of the training data, {self.low:.6g} to "
                f"{self.high:.6g}; pass a value in this range"
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
        """The index of the category."""
        if value not in self.categories:
            known, more = self.categories[:_SHOWN], len(self.categories) - _SHOWN
            others = f" and {more:,} more" if more > 0 else ""
            raise InputError(
                f"{self.name} has no category {value!r}; choose from {', '.join(known)}{others}"
            )
        return float(self.categories.index(str(value)))

    def check(self, value: object) -> None:
        self.encode(value)


def condition_of(name: str, data: TokenData) -> Condition:
    """Create a condition from a data column: numeric, or categorical if it contains strings."""
    values = _column(data, name)
    if values.dtype.kind == "f":
        train = values[: len(data.train)]
        train = train[~is_missing(train)]
        if not len(train):
            raise InputError(f"column {name!r} has no value for any training molecule")
        statistics = (train.mean(), train.std(), train.min(), train.max())
        return Numeric(name, *map(float, statistics))
    return Categorical(name, tuple(np.unique(values[~is_missing(values)]).tolist()))


def encode_columns(conditions: tuple[Condition, ...], data: TokenData) -> NDArray[np.float32]:
    """The encoded conditions [n, C] of all n training and validation sequences."""
    encoded = np.full((len(data.train) + len(data.valid), len(conditions)), np.nan, np.float32)
    for i, condition in enumerate(conditions):
        values = _column(data, condition.name)
        known = ~is_missing(values)
        encoded[known, i] = list(map(condition.encode, values[known].tolist()))
    return encoded


def _column(data: TokenData, name: str) -> NDArray[np.generic]:
    """The data column of a condition, ignoring case."""
    if (column := find_column(list(data.columns), name)) is None:
        available = ", ".join(data.columns) or "none"
        raise InputError(
            f"dataset {data.name} has no column {name!r} (available: {available}); load it with "
            f"condition={name!r}",
            fields=("condition",),
        )
    return data.columns[column]


def encode_condition(
    conditions: tuple[Condition, ...], values: Mapping[str, object]
) -> list[float]:
    """Encode values by name as numbers [C], with NaN for unspecified conditions."""
    rule = "be a dictionary such as {'logp': 2.5}"
    require(isinstance(values, Mapping), "condition", rule, values)
    names = [condition.name for condition in conditions]
    if not names:
        requested = " ".join(map(str, values))
        raise InputError(
            f"the model was trained without conditions, got {requested}; omit them, or train a "
            f"model with `cwdfm train RECIPE --condition {requested}`"
        )
    encoded: dict[str, float] = {}
    for requested, value in values.items():
        name = find_column(names, str(requested))
        if name is None:
            raise InputError(
                f"the model was not trained with the condition {requested!r}; its "
                f"conditions are {', '.join(names)}"
            )
        if name in encoded:
            raise InputError(f"{name} is specified twice; specify one value")
        condition = conditions[names.index(name)]
        condition.check(value)
        encoded[name] = condition.encode(value)
    if not encoded:
        raise InputError(f"no condition is given; the model has {', '.join(names)}")
    return [encoded.get(name, math.nan) for name in names]


def with_condition(t_B: Tensor, condition: Tensor | None) -> Tensor:
    """Concatenate times [B] and encoded conditions [B, C] or [C] to one input [B, 1 + C]."""
    if condition is None or not condition.shape[-1]:
        return t_B
    return torch.cat([t_B[:, None], condition.to(t_B).expand(len(t_B), -1)], dim=1)


def drop_conditions(
    condition_BC: Tensor, probability: float, *, seed: int, index: Tensor, step: int
) -> Tensor:
    """Drop all conditions of a sequence with this probability, and also every single condition.

    The network thus learns to predict without any condition, and with some of them.
    """
    draws = condition_BC.shape[1] + 1
    drop_BD = uniform_BN(seed, Purpose.CONDITION, index, step, draws) < probability
    return condition_BC.masked_fill(drop_BD[:, :1] | drop_BD[:, 1:], math.nan)


class ScalarEmbedding(nn.Module):
    """Embed numbers [B] by sinusoidal features and a two-layer MLP, [B, D]."""

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
    """Embed a condition's numbers [B], [B, D]; NaN becomes a learned vector."""

    def __init__(self, condition: Condition, width: int) -> None:
        super().__init__()
        self.absent = nn.Parameter(torch.zeros(width))
        self.value: nn.Module
        if isinstance(condition, Categorical):
            self.value = nn.Embedding(len(condition.categories), width)
        else:
            self.value = ScalarEmbedding(width)

    def set_zero(self) -> None:
        """Set the embedding to zero, so that adding it to a trained network changes nothing."""
        last = self.value.second if isinstance(self.value, ScalarEmbedding) else self.value
        for parameter in last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, number_B: Tensor) -> Tensor:
        absent_B = number_B.isnan()
        known_B = number_B.masked_fill(absent_B, 0.0)
        known_B = known_B.long() if isinstance(self.value, nn.Embedding) else known_B
        return torch.where(absent_B[:, None], self.absent, self.value(known_B))
