"""One number over all samples, and the same over folds of them: the spread that results report."""

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cwdfm.errors import InputError, check_integer


@dataclass(frozen=True)
class Estimate:
    """A value over all samples, and over each fold of consecutive ones."""

    value: float
    folds: tuple[float, ...]

    @property
    def fold_mean(self) -> float:
        """The mean over folds."""
        return statistics.fmean(self.folds)

    @property
    def fold_std(self) -> float | None:
        """The standard deviation over folds (n - 1 below the line); None for a single fold."""
        return statistics.stdev(self.folds) if len(self.folds) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.fold_std is None else f" ± {self.fold_std:.3g}"
        return f"{self.value:.4g}{spread}"

    def to_json(self) -> dict[str, Any]:
        """A plain dict: value, mean and standard deviation over folds, the folds."""
        return {
            "value": self.value,
            "fold_mean": self.fold_mean,
            "fold_std": self.fold_std,
            "folds": list(self.folds),
        }


def fold_slices(samples: int, folds: int) -> list[slice]:
    """Consecutive samples in `folds` parts whose sizes differ by one at most; none is left out."""
    check_integer("folds", folds)
    if samples < folds:
        raise InputError(
            f"{folds} folds need at least {folds} samples, got {samples}; give more samples, or "
            f"folds (--folds) 1 for a value without a spread"
        )
    borders = [samples * k // folds for k in range(folds + 1)]
    return [slice(a, b) for a, b in pairwise(borders)]


def mean_estimate(values_B: np.ndarray, slices: list[slice]) -> Estimate:
    """The mean of one value a sample, over all and over folds."""
    return Estimate(float(values_B.mean()), tuple(float(values_B[s].mean()) for s in slices))
