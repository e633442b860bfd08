"""Error estimates for statistics of samples: standard deviations over folds, errors of ratios."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from cwdfm.errors import InputError, check_integer


@dataclass(frozen=True)
class Estimate:
    """The value of a statistic over all samples and over each fold of consecutive samples."""

    value: float
    folds: tuple[float, ...]

    @property
    def fold_std(self) -> float | None:
        """The standard deviation over folds."""
        return spread(self.folds)

    def __str__(self) -> str:
        return f"{self.value:.4g}" + ("" if self.fold_std is None else f" ± {self.fold_std:.3g}")

    def to_json(self) -> dict[str, Any]:
        over_folds = {"fold_mean": statistics.fmean(self.folds), "fold_std": self.fold_std}
        return {"value": self.value, **over_folds, "folds": list(self.folds)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Estimate":
        return cls(data["value"], tuple(data["folds"]))


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation (n - 1 in the denominator); None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def fold_slices(samples: int, folds: int) -> list[slice]:
    """Split `samples` consecutive samples into `folds` slices whose sizes differ by at most one."""
    check_integer("folds", folds)
    if samples < folds:
        raise InputError(
            f"{samples} samples cannot be split into {folds} folds; provide more samples, or "
            f"set folds=1, which gives no standard deviation",
            fields=("folds",),
        )
    borders = [samples * k // folds for k in range(folds + 1)]
    return [slice(a, b) for a, b in pairwise(borders)]


def mean_estimate(values_B: np.ndarray, slices: list[slice]) -> Estimate:
    """The mean of one value per sample, over all samples and over each fold."""
    return Estimate(float(values_B.mean()), tuple(float(values_B[s].mean()) for s in slices))


def ratio(y_B: Tensor, n_B: Tensor) -> tuple[float, float | None]:
    """sum y / sum n, and its standard error over the C sequences with n > 0; None if C = 1.

    The error is sqrt(C / (C - 1) sum_b (y_b - ratio n_b)^2) / sum n. It treats sequences, not
    tokens, as independent.
    """
    count, total = int((n_B > 0).sum()), float(n_B.sum())
    mean = float(y_B.sum()) / total
    square = float((y_B - mean * n_B).square().sum())
    return mean, math.sqrt(square * count / (count - 1)) / total if count > 1 else None
