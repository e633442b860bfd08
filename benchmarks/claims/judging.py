"""How a claim is judged: by numbers with standard errors, from the files in results/."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from cwdfm.repro.cell import Cell
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.job import Store
from cwdfm.repro.measure import measure
from cwdfm.repro.scale import size
from cwdfm.repro.table import Value

Result = dict[str, Any]
T = TypeVar("T")
ROOT = Path(__file__).parent.parent.parent
STORE = Store(ROOT / "results" / "repro" / "jobs")
Word = Literal["holds", "holds partly", "undecided here", "does not hold here", "not tested yet"]
CLEAR = 2.0  # standard errors that a difference must exceed to count
ALONE = 3.0  # and that one among several must exceed, of which the largest is large by chance
KEPT = math.inf  # the gain of what shall not become worse, and has not
COUNTED = 1024  # molecules of a fold
DIVERGING = ("nelbo", "bregman")  # losses with the hazard for a weight
TABLED = ("euler", "first-hitting")  # solvers of the tables on text
COUNT_ERROR = 15.0  # of a count among 1,024 molecules: sqrt(1024 p (1 - p)) is 10 to 16
QM9 = size("molecules", "small")
STEPS = QM9.curve  # of solvers on molecules
MODEL = QM9.recipe.model.upper()  # of molecules, as pages call it
VALID, NOVEL = 0, 2  # columns of tables on molecules


@dataclass(frozen=True)
class Verdict:
    """What is to be said of a claim, and the comparisons that it rests on."""

    word: Word
    gains: tuple[float, ...] = ()  # in standard errors, those above 0 speak for the claim

    def __str__(self) -> str:
        gains = ["kept" if gain == KEPT else f"{gain:+.1f}" for gain in self.gains]
        return f"**{self.word}**" + (f" ({', '.join(gains)})" if gains else "")


@dataclass(frozen=True)
class Claim:
    """A row of the table."""

    where: str  # in the paper
    said: str
    found: str
    verdict: Verdict


@dataclass(frozen=True)
class Measured:
    """A number and its standard error."""

    value: float
    error: float

    def above(self, other: "Measured") -> float:
        """By how many standard errors it is above another."""
        return (self.value - other.value) / math.hypot(self.error, other.error, 1e-12)

    def over(self, other: "Measured") -> float:
        """The same of their logarithms: for perplexities of runs, whose errors are shares."""
        errors = (each.error / each.value for each in (self, other))
        return math.log(self.value / other.value) / math.hypot(*errors, 1e-12)


def judged(gains: Sequence[float]) -> Verdict:
    """By gains in standard errors: those that the claim promises, all of them.

    What is kept (`no_worse`) alone makes no claim hold in part.
    """
    tested = [gain for gain in gains if gain != KEPT]
    word: Word = "undecided here"
    if all(gain > CLEAR for gain in tested):
        word = "holds"
    elif clearly(tested):
        word = "holds partly"
    elif clearly([-gain for gain in tested]):
        word = "does not hold here"
    return Verdict(word, tuple(gains))


def clearly(gains: Sequence[float]) -> bool:
    """Whether some are clear: several, or one alone by more, or the only one that there is."""
    over = [gain for gain in gains if gain > CLEAR]
    return len(over) > 1 or any(len(gains) == 1 or gain > ALONE for gain in over)


def met(*conditions: bool) -> Verdict:
    """Of what needs no statistics."""
    if all(conditions):
        return Verdict("holds")
    return Verdict("holds partly" if any(conditions) else "does not hold here")


def read(name: str) -> Result:
    """A results file."""
    found: Result = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return found


class Missing(Exception):
    """A result that is not there yet."""


def or_missing(experiment: str, found: Callable[[], str]) -> str:
    """What an experiment tells; while its results are missing, that it is so."""
    try:
        return found()
    except Missing:
        return f"`cwdfm repro {experiment} --scale small` is not done yet."


def number(value: Value) -> Measured:
    """A table's value, with its spread for an error."""
    if value.value is None:
        raise Missing
    return Measured(value.value, value.spread or 0.0)


def by_folds(value: Value) -> Measured:
    """A mean of five folds, from their spread."""
    found = number(value)
    return Measured(found.value, found.error / math.sqrt(5))


def counted_folds(value: Value) -> Measured:
    """A mean of five folds of molecules; chance makes few folds agree more than counting allows."""
    found = number(value)
    return Measured(found.value, max(COUNT_ERROR, found.error) / math.sqrt(5))


def no_worse(gain: float) -> float:
    """The gain of a claim that something is not worse: kept unless it clearly is."""
    return gain if gain < -CLEAR else KEPT


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

    By the tables' solvers alone. With a mask source runs end far apart, with a uniform one they do
    not. Losses whose weights diverge were done again with a mask source only, whatever is asked.
    """
    log = math.log if of == "perplexities" else float
    return pooled(
        [log(value) for value in sample[of] if value is not None]
        for row in done_again()
        for sample in row["samples"]
        if sample["choice"]["solver"] in TABLED
        if (row["loss"] in DIVERGING) == diverging and (diverging or row["source"] == source)
    )


def done_again() -> list[Result]:
    """Trainings on text of which there are several runs."""
    return [row for row in read("run_scatter")["rows"] if row["corpus"] == "text"]


def run_perplexity(value: Value, source: str, *, diverging: bool = False) -> Measured:
    """A perplexity of one run's samples, with the scatter of runs beside that of folds."""
    found = by_folds(value)
    scatter = found.value * sample_scatter("perplexities", source, diverging=diverging)
    return Measured(found.value, math.hypot(found.error, scatter))


def run_likelihood(value: Value) -> Measured:
    """A perplexity of one run on held-out text, with the scatter of runs beside its error."""
    found = number(value)
    return Measured(found.value, math.hypot(found.error, found.value * loss_scatter()))


def run_entropy(value: Value, source: str) -> Measured:
    """An entropy of one run's samples, likewise."""
    found = by_folds(value)
    return Measured(found.value, math.hypot(found.error, sample_scatter("entropies", source)))


def short_runs(*more: str) -> str:
    """What the runs in the tables of `cwdfm repro` on text are."""
    recipe = size("text", "small").recipe
    return ", ".join((f"{recipe.steps:,} steps of {recipe.batch_size}", *more))


def counting(count: float, samples: int) -> float:
    """Standard error of a count of 1,024 molecules, by so many independent samples."""
    share = count / COUNTED
    return COUNTED * math.sqrt(share * (1 - share) / samples)


def by_seed(cell: Cell, what: int) -> list[float | None]:
    """Counts of each run, None where it is not done; `what`: 0 valid, 2 novel."""
    how = measure(cell.corpus, cell.scale)
    return [how.values(STORE, cell.sample(seed))[what].value for seed in range(cell.seeds)]


def pooled(groups: Iterable[Sequence[float]]) -> float:
    """The standard deviation within groups of several; 0 if there are none."""
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    squares = sum((len(group) - 1) * statistics.variance(group) for group in several)
    return math.sqrt(squares / freedom) if freedom else 0.0


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
    """Counts of molecules that solvers make of the same runs: differences, run by run."""

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


def tested(
    where: str, said: str, experiment: str, found: Callable[[], tuple[str, Verdict]]
) -> Iterator[Claim]:
    """The claim with what is found; while an experiment's results are missing, that it is so."""
    try:
        told, verdict = found()
    except Missing:
        done = EXPERIMENTS[experiment].plan("small").progress(STORE)
        told = (
            f"`cwdfm repro {experiment} --scale small` is ready; not all of its results are there "
            f"yet ({done})"
        )
        verdict = Verdict("not tested yet")
    yield Claim(where, said, told, verdict)


Pair = tuple[str, Measured, Measured]


def pair(name: str, found: Callable[[T], Measured], before: T, after: T) -> Pair:
    """What is compared, before and after."""
    return name, found(before), found(after)


def changes(pairs: Iterable[Pair]) -> str:
    """Before and after, by name."""
    return ", ".join(f"{a.value:.0f} to {b.value:.0f} ({name})" for name, a, b in pairs)


def rows_of(experiment: str, table: int = 0) -> dict[tuple[str, ...], tuple[Value, ...]]:
    """A table's rows at small scale, by their labels."""
    found = EXPERIMENTS[experiment].plan("small").tables(STORE)[table]
    return {row.labels: row.ours for row in found.rows}
