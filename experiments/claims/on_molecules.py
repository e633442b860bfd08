"""What claims about molecules have in common: counts of 1,024, of one run or of several."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.cell import Cell
from experiments.claims.judging import Measured, Missing, by_seed, number, pooled
from experiments.scale import size
from experiments.table import Value

COUNTED = 1024  # molecules of a fold
COUNT_ERROR = 15.0  # of a count among 1,024 molecules: sqrt(1024 p (1 - p)) is 10 to 16
QM9 = size("molecules", "small")
STEPS = QM9.curve  # of solvers on molecules
MODEL = QM9.recipe.model.upper()  # of molecules, as pages call it
VALID, NOVEL = 0, 2  # columns of tables on molecules


def counting(count: float, samples: int) -> float:
    """Standard error of a count of 1,024 molecules, by so many independent samples."""
    share = count / COUNTED
    return COUNTED * math.sqrt(share * (1 - share) / samples)


def counted_folds(value: Value) -> Measured:
    """A mean of five folds of molecules; chance makes few folds agree more than counting allows."""
    found = number(value)
    return Measured(found.value, max(COUNT_ERROR, found.error) / math.sqrt(5))


def short_of(ours: tuple[Measured, Measured], theirs: tuple[Measured, Measured]) -> float:
    """By how many standard errors a count grows less than the paper's, from before to after.

    As odds, count / (1,024 - count), which have no ceiling that a high count would be near.
    """

    def grown(before: Measured, after: Measured) -> Measured:
        a, b = _log_odds(before), _log_odds(after)
        return Measured(b.value - a.value, math.hypot(a.error, b.error))

    return grown(*theirs).above(grown(*ours))


def _log_odds(count: Measured) -> Measured:
    rest = COUNTED - count.value
    return Measured(math.log(count.value / rest), count.error * COUNTED / (count.value * rest))


def _told(done: Sequence[int]) -> str:
    low, high = min(done), max(done)
    return (
        f"{low} to {high} runs each" if low < high else "1 run" if low == 1 else f"{low} runs each"
    )


@dataclass(frozen=True)
class Runs:
    """Counts of molecules in cells with runs of their own, which share the scatter between runs.

    Three runs say little about their own scatter, but all cells of a table together say a lot.
    """

    cells: tuple[Cell, ...]

    def counts(self, cell: Cell, what: int) -> list[float]:
        """Of each run that is done."""
        return [value for value in by_seed(cell, what) if value is not None]

    def scatter(self, what: int) -> float:
        """Standard deviation of a run, pooled; at least that of counting."""
        return max(COUNT_ERROR, pooled(self.counts(cell, what) for cell in self.cells))

    def mean(self, cell: Cell, what: int) -> Measured:
        """Over the runs that are done."""
        found = self.counts(cell, what)
        if not found:
            raise Missing
        return Measured(statistics.fmean(found), self.scatter(what) / math.sqrt(len(found)))

    def told(self, *cells: Cell) -> str:
        """How many runs there are, of some cells or of all."""
        return _told([len(self.counts(cell, 0)) for cell in cells or self.cells])


@dataclass(frozen=True)
class Paired:
    """Counts of molecules that solvers make of the same trainings: differences, seed by seed."""

    pairs: tuple[tuple[Cell, Cell], ...]  # before, after

    def differences(self, before: Cell, after: Cell, what: int) -> list[float]:
        """Of each run that both have."""
        found = zip(by_seed(before, what), by_seed(after, what), strict=True)
        return [b - a for a, b in found if a is not None and b is not None]

    def means(self, before: Cell, after: Cell, what: int) -> tuple[float, float]:
        """Over the runs that both have."""
        found = zip(by_seed(before, what), by_seed(after, what), strict=True)
        both = [(a, b) for a, b in found if a is not None and b is not None]
        if not both:
            raise Missing
        return statistics.fmean(a for a, _ in both), statistics.fmean(b for _, b in both)

    def gain(self, before: Cell, after: Cell, what: int) -> float:
        """By how many standard errors there are more after than before."""
        found = self.differences(before, after, what)
        if not found:
            raise Missing
        scatter = pooled(self.differences(*pair, what) for pair in self.pairs)
        error = max(math.sqrt(2) * COUNT_ERROR, scatter) / math.sqrt(len(found))
        return statistics.fmean(found) / error

    @property
    def told(self) -> str:
        """How many runs there are."""
        return _told([len(self.differences(*pair, 0)) for pair in self.pairs])
