"""How a claim is judged: by numbers with standard errors, from the files in results/."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from experiments.benchmarks.markdown import Result, anchor
from experiments.catalog import EXPERIMENTS
from experiments.cell import Cell
from experiments.job import Store
from experiments.measure import measure
from experiments.table import Table, Value

T = TypeVar("T")
ROOT = Path(__file__).parent.parent.parent
STORE = Store(ROOT / "results" / "repro" / "jobs")
Word = Literal[
    "holds",
    "holds partly",
    "mixed",
    "undecided here",
    "does not hold here",
    "not tested yet",
    "not testable here",
]
CLEAR = 2.0  # standard errors that a difference must exceed to count
ALONE = 3.0  # and that one among several must exceed, of which the largest is large by chance
KEPT = math.inf  # the gain of what shall not become worse, and has not
# By what is compared: standard errors, of which those above 0 speak for the claim.
Gains = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Verdict:
    """What is to be said of a claim, and the comparisons that it rests on."""

    word: Word
    gains: Gains = field(default_factory=dict)
    effect: str = ""  # how large it is here, in a few words

    def __str__(self) -> str:
        told = [f"{name}: {', '.join(map(_signed, each))}" for name, each in self.gains.items()]
        return f"**{self.word}**" + (f" ({'; '.join(told)})" if told else "")


def _signed(gain: float) -> str:
    return "kept" if gain == KEPT else f"{gain:+z.1f}"


@dataclass(frozen=True)
class Claim:
    """What the paper says, and what is to be said of that."""

    where: str  # in the paper
    said: str
    found: str
    verdict: Verdict
    experiments: tuple[str, ...] = ()  # that show it
    command: str = ""  # that shows it, where no experiment does


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


def judged(gains: Gains, effect: str) -> Verdict:
    """By all gains that the claim promises.

    What is kept (`no_worse`) alone makes no claim hold in part.
    """
    tested = [gain for each in gains.values() for gain in each if gain != KEPT]
    if all(gain > CLEAR for gain in tested):
        return Verdict("holds", gains, effect)
    words: dict[tuple[bool, bool], Word] = {
        (True, False): "holds partly",
        (True, True): "mixed",
        (False, True): "does not hold here",
        (False, False): "undecided here",
    }
    speaks = clearly(tested), clearly([-gain for gain in tested])
    return Verdict(words[speaks], gains, effect)


def clearly(gains: Sequence[float]) -> bool:
    """Whether some are clear: several, or one alone by more, or the only one that there is."""
    over = [gain for gain in gains if gain > CLEAR]
    return len(over) > 1 or any(len(gains) == 1 or gain > ALONE for gain in over)


def met(*conditions: bool, effect: str) -> Verdict:
    """Of what needs no statistics."""
    word: Word = "holds partly" if any(conditions) else "does not hold here"
    return Verdict("holds" if all(conditions) else word, effect=effect)


def no_worse(gain: float) -> float:
    """The gain of a claim that something is not worse: kept unless it clearly is."""
    return gain if gain < -CLEAR else KEPT


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
        return f"`python -m experiments run {experiment} --scale small` is not done yet."


def by_seed(cell: Cell, what: int) -> list[float | None]:
    """A column's value for each run, None where it is not done."""
    how = measure(cell.corpus, cell.scale)
    return [how.values(STORE, cell.sample(seed))[what].value for seed in range(cell.seeds)]


def number(value: Value) -> Measured:
    """A table's value, with its spread for an error."""
    if value.value is None:
        raise Missing
    return Measured(value.value, value.spread or 0.0)


def by_folds(value: Value) -> Measured:
    """A mean of five folds, from their spread."""
    found = number(value)
    return Measured(found.value, found.error / math.sqrt(5))


def pooled(groups: Iterable[Sequence[float]]) -> float:
    """The standard deviation within groups of several; 0 if there are none."""
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    squares = sum((len(group) - 1) * statistics.variance(group) for group in several)
    return math.sqrt(squares / freedom) if freedom else 0.0


def tested(
    where: str,
    said: str,
    experiment: str,
    found: Callable[[], tuple[str, Verdict]],
    *also: str,
) -> Iterator[Claim]:
    """The claim with what is found; while an experiment's results are missing, that it is so.

    `also` are other experiments that what is found rests on.
    """
    try:
        told, verdict = found()
        told += f" ({', '.join(map(shown_at, (experiment, *also)))})"
    except Missing:
        missing = [name for name in (experiment, *also) if not _complete(name)] or [experiment]
        done = ", ".join(EXPERIMENTS[name].plan("small").progress(STORE) for name in missing)
        told = (
            f"`python -m experiments run {' '.join(missing)} --scale small` is ready; not all of its results are "
            f"there yet ({done})"
        )
        verdict = Verdict("not tested yet")
    yield Claim(where, said, told, verdict, (experiment, *also))


def _complete(experiment: str) -> bool:
    return all(STORE.result(job) is not None for job in EXPERIMENTS[experiment].plan("small").jobs)


def shown_at(experiment: str) -> str:
    """A link to an experiment on the page of results."""
    title = f"{EXPERIMENTS[experiment].title}, at small scale"
    return f"[`{experiment}`](results.md#{anchor(title)})"


def ends(told: Sequence[str]) -> str:
    """The first and the last of a series; the page of results has them all."""
    return "; ".join(told if len(told) < 3 else (told[0], told[-1]))


Pair = tuple[str, Measured, Measured]


def pair(name: str, found: Callable[[T], Measured], before: T, after: T) -> Pair:
    """What is compared, before and after."""
    return name, found(before), found(after)


def changes(pairs: Iterable[Pair]) -> str:
    """Before and after, by name."""
    return ", ".join(f"{a.value:,.0f} to {b.value:,.0f} ({name})" for name, a, b in pairs)


def rows_of(experiment: str, table: int = 0) -> dict[tuple[str, ...], tuple[Value, ...]]:
    """A table's rows at small scale, by their labels."""
    found = _tables(STORE, experiment)[table]
    return {row.labels: row.ours for row in found.rows}


def without_data(rows: Mapping[tuple[str, ...], T]) -> dict[tuple[str, ...], T]:
    """All but the data's own row."""
    return {labels: row for labels, row in rows.items() if labels[0] != "data"}


@cache  # many claims read one
def _tables(store: Store, experiment: str) -> list[Table]:
    return EXPERIMENTS[experiment].plan("small").tables(store)
