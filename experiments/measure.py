"""What samples are worth, as values of a table: of molecules, or of text."""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments import paper
from experiments.scale import JUDGE, Scale, held_out, size
from experiments.store import Store
from experiments.table import Column, Value
from experiments.tasks.base import Corpus, Task
from experiments.tasks.sample import HeldOut, Sample
from experiments.tasks.score import MauveScore, Molecules, Text


@dataclass(frozen=True)
class Measure(ABC):
    """The measures of samples of one kind."""

    scale: Scale

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """What is measured."""

    @abstractmethod
    def tasks(self, samples: Sample | HeldOut) -> tuple[Task, ...]:
        """What must be done to know it."""

    @abstractmethod
    def values(self, store: Store, samples: Sample | HeldOut) -> tuple[Value, ...]:
        """What is known of it: blanks where tasks are not done."""

    @abstractmethod
    def reported(self, name: str) -> tuple[Value, ...]:
        """The paper's values of a row of its tables, if they may stand beside ours."""

    def panels(self, source: str) -> tuple[int, ...]:
        """Which columns a figure shows."""
        return tuple(range(len(self.columns)))

    @abstractmethod
    def barred(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """For a figure: with a spread wherever one is known."""

    @abstractmethod
    def alone(self, samples: int) -> str:
        """What the spread of one run of so many samples is between; nothing where it has none."""

    @abstractmethod
    def chance(self) -> str:
        """By what a value of one run scatters that has no spread."""


class MoleculeMeasure(Measure):
    """Valid, unique and novel molecules of a fold."""

    @property
    def columns(self) -> tuple[Column, ...]:
        fold = f"{size('molecules', self.scale).fold_size:,}"
        names = (f"valid of {fold}", "unique", "novel")
        return tuple(Column(name, True, "zero") for name in names)

    def tasks(self, samples: Sample | HeldOut) -> tuple[Task, ...]:
        return (Molecules(samples, size("molecules", self.scale).fold_size),)

    def values(self, store: Store, samples: Sample | HeldOut) -> tuple[Value, ...]:
        (task,) = self.tasks(samples)
        done = store.result(task)
        if done is None:
            return (Value(None),) * 3
        found = [done["result"][name] for name in ("valid", "unique", "novel")]
        return tuple(Value(each["mean"], each["std"], 1) for each in found)

    def reported(self, name: str) -> tuple[Value, ...]:
        found = paper.molecules(name)
        if not found or size("molecules", self.scale).fold_size != paper.FOLD:
            return ()
        valid, novel = found
        return valid, Value(None), novel

    def panels(self, source: str) -> tuple[int, ...]:
        """With a uniform source nearly all that are valid are unique: a panel would repeat one."""
        return (0, 2) if source == "uniform" else (0, 1, 2)

    def barred(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """A single count scatters by what counting alone makes of it (MoleculeScores.noise)."""
        of = size("molecules", self.scale).fold_size
        return tuple(
            replace(each, spread=math.sqrt(each.value * (1 - each.value / of)))
            if each.value is not None and each.spread is None
            else each
            for each in values
        )

    def alone(self, samples: int) -> str:
        fold = size("molecules", self.scale).fold_size
        folds = samples // fold
        return f"between {folds} folds of {fold:,} samples" if folds > 1 else ""

    def chance(self) -> str:
        most = math.sqrt(size("molecules", self.scale).fold_size) / 2
        return f"that of counting, {most:.0f} at most"


class TextMeasure(Measure):
    """MAUVE, perplexity under a judge, and entropy."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return (
            Column("MAUVE", True, "zero"),
            Column("gen. PPL", False, "log"),
            Column("entropy, bits", True),
        )

    def tasks(self, samples: Sample | HeldOut) -> tuple[Task, ...]:
        judge = JUDGE[self.scale]
        read = Text(samples, judge)
        return read, MauveScore(read, Text(held_out("text", self.scale, 1), judge))

    def values(self, store: Store, samples: Sample | HeldOut) -> tuple[Value, ...]:
        read, compared = (store.result(task) for task in self.tasks(samples))
        mauve = judged = entropy = Value(None)
        if compared is not None:
            mauve = Value(compared["result"]["mauve"], compared["result"]["std"], 3)
        if read is not None:
            found = read["result"]["perplexity"]["perplexity"]
            judged = Value(found["value"], found["fold_std"], 1)
            found = read["result"]["statistics"]["entropy"]
            entropy = Value(found["value"], found["fold_std"], 2)
        return mauve, judged, entropy

    def reported(self, name: str) -> tuple[Value, ...]:
        """At other scales both the corpus and the judge are others."""
        return paper.text(name) if self.scale == "paper" else ()

    def barred(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return values

    def alone(self, samples: int) -> str:
        return "between five folds of the samples, of MAUVE between five resamples"

    def chance(self) -> str:
        return ""  # folds tell


def measure(corpus: Corpus, scale: Scale) -> Measure:
    """The measures of a corpus."""
    return (MoleculeMeasure if corpus == "molecules" else TextMeasure)(scale)


def over_seeds(found: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """The mean over several runs, with the standard deviation between them; of one, its own."""
    if len(found) == 1:
        return found[0]
    values = []
    for each in zip(*found, strict=True):
        numbers = [value.value for value in each if value.value is not None]
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        mean = statistics.fmean(numbers) if numbers else None
        values.append(Value(mean, spread, each[0].digits))
    return tuple(values)
