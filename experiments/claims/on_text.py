"""What claims about text have in common: its columns, and how far runs of one training scatter."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from experiments.benchmarks.markdown import Result
from experiments.catalog.training import SOURCES
from experiments.catalog.tuned import tuned_trainings
from experiments.cell import Cell
from experiments.claims.judging import (
    STORE,
    Measured,
    Missing,
    by_folds,
    by_seed,
    number,
    pooled,
    read,
    rows_of,
)
from experiments.scale import size
from experiments.table import Value

MAUVE, PERPLEXITY, ENTROPY, HELD_OUT = range(4)
DIVERGING = ("nelbo", "bregman")  # losses with the hazard for a weight
TABLED = ("euler", "first-hitting")  # solvers of the tables on text


def short_runs(*more: str) -> str:
    """What the runs in the tables of `python -m experiments run` on text are."""
    recipe = size("text", "small").recipe
    return ", ".join((f"{recipe.steps:,} steps of {recipe.batch_size}", *more))


def done_again() -> list[Result]:
    """Trainings on text of which there are several runs."""
    return [row for row in read("run_scatter")["rows"] if row["corpus"] == "text"]


def loss_scatter() -> float:
    """Standard deviation of a run's loss on text, in nats, by trainings that were done again.

    Losses whose weights diverge at the end of the path scatter most, and are left out. Others are
    pooled over all methods: a careful guess for flows, whose runs were of one seed, since BD3LM
    scatters more.
    """
    return pooled(row["losses"] for row in done_again() if row["loss"] not in DIVERGING)


def sample_scatter(
    of: Literal["perplexities", "entropies"], source: str, *, diverging: bool = False
) -> float:
    """Standard deviation of what runs of one training sample: of log perplexity, or of entropy.

    With a mask source runs end far apart, with a uniform one they do not. Losses whose weights
    diverge were done again with a mask source only, whatever is asked; other flows of masked tokens
    alone are in no table that needs this. Flows by CE and SCE were trained by several seeds too.
    """
    found = [
        tabled(row, of)
        for row in done_again()
        if (row["loss"] in DIVERGING) == diverging and (diverging or row["source"] == source)
        if diverging or row["method"] != "flow" or not row["masked_only"]
    ]
    if not diverging:
        column = PERPLEXITY if of == "perplexities" else ENTROPY
        cells = seeds_of(source).values()
        found += [[each for each in by_seed(cell, column) if each is not None] for cell in cells]
    log = math.log if of == "perplexities" else float
    return pooled([log(value) for value in group] for group in found)


def seeds_of(source: str) -> dict[tuple[str, str], Cell]:
    """Trainings by several seeds: CE, and SCE with its weights, by these two."""
    cells = tuned_trainings("text", "small").items()
    return {(training, weights): cell for (of, training, weights, _), cell in cells if of == source}


def tabled(row: Result, of: Literal["perplexities", "entropies"]) -> list[float]:
    """One number for each run of a training, of samples by the tables' solver.

    Runs may have samples by several numbers of steps. Those that most runs have are read, since one
    run's numbers do not scatter as numbers of several runs do.
    """
    found = [
        [float(value) for value in sample[of] if value is not None]
        for sample in row["samples"]
        if sample["choice"]["solver"] in TABLED
    ]
    return max(found, key=len, default=[])


def run_perplexity(value: Value, source: str, *, diverging: bool = False) -> Measured:
    """A perplexity of one run's samples, with the scatter of runs beside that of folds."""
    found = by_folds(value)
    scatter = found.value * sample_scatter("perplexities", source, diverging=diverging)
    return Measured(found.value, math.hypot(found.error, scatter))


def over_seeds(source: str, column: int) -> dict[tuple[str, str], Measured]:
    """Means over all seeds of CE, and of SCE with its weights; of perplexities, geometric ones.

    By training and weights. All share their scatter.
    """
    inner, outer = (math.log, math.exp) if column == PERPLEXITY else (float, float)
    runs = {}
    for key, cell in seeds_of(source).items():
        found = by_seed(cell, column)
        runs[key] = [inner(value) for value in found if value is not None]
        if len(runs[key]) < len(found):
            raise Missing
    scatter, means = pooled(runs.values()), {}
    for key, each in runs.items():
        mean, error = outer(statistics.fmean(each)), scatter / math.sqrt(len(each))
        means[key] = Measured(mean, error * mean if column == PERPLEXITY else error)
    return means


@dataclass(frozen=True)
class Drawn(Measured):
    """A perplexity by a solver, of one run of a training. Between runs their scatter counts."""

    run: str | None = None
    scatter: float = 0.0  # of its logarithm, between runs of one seed

    @property
    def of_any_run(self) -> Measured:
        """With the scatter of runs."""
        return Measured(self.value, math.hypot(self.error, self.value * self.scatter))

    def over(self, other: Measured) -> float:
        if isinstance(other, Drawn) and other.run != self.run:
            return self.of_any_run.over(other.of_any_run)
        return super().over(other)


def drawn(value: Value, cell: Cell) -> Drawn:
    """A cell's perplexity."""
    found, train = by_folds(value), cell.train()
    scatter = rerun_scatter(train.recipe.source)
    return Drawn(found.value, found.error, STORE.run_of(train, cell.sample()), scatter)


def rerun_scatter(source: str) -> float:
    """Standard deviation of log perplexity between runs of one flow and seed, pooled."""
    found = [
        tabled(row, "perplexities")
        for row in done_again()
        if (row["method"], row["source"], row["masked_only"]) == ("flow", source, False)
        if row["loss"] not in DIVERGING
    ]
    return pooled([math.log(value) for value in group] for group in found)


def of_runs(cells: Iterable[Cell]) -> str:
    """Whether solvers were on one run, in words."""
    runs = {STORE.run_of(cell.train(), cell.sample()) for cell in cells}
    return "one run" if len(runs) == 1 else "some solvers on other runs of it"


def run_likelihood(value: Value) -> Measured:
    """A perplexity of one run on held-out text, with the scatter of runs beside its error."""
    found = number(value)
    return Measured(found.value, math.hypot(found.error, found.value * loss_scatter()))


def run_entropy(value: Value, source: str) -> Measured:
    """An entropy of one run's samples, likewise."""
    found = by_folds(value)
    return Measured(found.value, math.hypot(found.error, sample_scatter("entropies", source)))


NOVELS = f"Novels ({short_runs('one run each')})"


def by_source(
    name: str, sides: tuple[str, str], more: str, other: str, column: int
) -> tuple[str, dict[str, list[float]]]:
    """Two rows of a table on text for each source: what changes, and by how many errors.

    Perplexity (down is better) first, then another measure (up).
    """
    rows, told, gains = rows_of(name, 0), [], {}
    for source in SOURCES:
        before, after = rows[source, sides[0]], rows[source, sides[1]]
        a, b = (run_perplexity(row[PERPLEXITY], source) for row in (before, after))
        x, y = number(before[column]), number(after[column])
        told.append(
            f"{source}{more}: perplexity {a.value:.0f} to {b.value:.0f}, {other} {x.value:.2f} to "
            f"{y.value:.2f}"
        )
        gains[source] = [a.over(b), y.above(x)]
    return "; ".join(told), gains
