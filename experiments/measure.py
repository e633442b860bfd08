"""The scores of samples shown in tables, for molecules and for text."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments import paper
from experiments.scale import EVALUATORS, Scale, size
from experiments.store import Store
from experiments.table import Column, Value
from experiments.tasks.base import Corpus, Task
from experiments.tasks.sample import HeldOut, Sample
from experiments.tasks.score import MauveScore, Molecules, Text


@dataclass(frozen=True)
class Measure(ABC):
    """The scores of samples of one corpus."""

    scale: Scale

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The columns of a table."""

    @abstractmethod
    def tasks(self, samples: Sample | HeldOut) -> tuple[Task, ...]:
        """The tasks that compute the scores."""

    @abstractmethod
    def values(self, store: Store, samples: Sample | HeldOut) -> tuple[Value, ...]:
        """The scores; blank where tasks are not finished."""

    @abstractmethod
    def reported(self, name: str) -> tuple[Value, ...]:
        """The paper's values of a row of its tables, if they are comparable with ours."""

    def panels(self, source: str) -> tuple[int, ...]:
        """The indices of the columns that a figure shows."""
        return tuple(range(len(self.columns)))

    def with_error_bars(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return values

    @abstractmethod
    def spread_of_one_run(self, samples: int) -> str:
        """What the spread of a single run is computed over; empty if it has none."""

    def chance(self) -> str:
        """The statistical error of a single run without a spread."""
        return ""


class MoleculeMeasure(Measure):
    """Valid, unique and novel molecules per fold."""

    @property
    def fold_size(self) -> int:
        return size("molecules", self.scale).fold_size

    @property
    def columns(self) -> tuple[Column, ...]:
        names = (f"valid of {self.fold_size:,}", "unique", "novel")
        return tuple(Column(name, True, "zero") for name in names)

    def tasks(self, samples: Sample | HeldOut) -> tuple[Task, ...]:
        return (Molecules(samples, self.fold_size),)

    def values(self, store: Store, samples: Sample | HeldOut) -> tuple[Value, ...]:
        (task,) = self.tasks(samples)
        found = store.result(task)
        if found is None:
            return (Value(None),) * 3
        counts = [found[name] for name in ("valid", "unique", "novel")]
        return tuple(Value(each["mean"], each["std"], 1) for each in counts)

    def reported(self, name: str) -> tuple[Value, ...]:
        found = paper.molecules(name)
        if not found or self.fold_size != paper.FOLD:
            return ()
        valid, novel = found
        return valid, Value(None), novel

    def panels(self, source: str) -> tuple[int, ...]:
        """All but "unique" for a uniform source, where nearly all valid molecules are unique."""
        return (0, 2) if source == "uniform" else (0, 1, 2)

    def with_error_bars(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """A single count gets its binomial standard deviation (MoleculeScores.noise)."""
        return tuple(
            replace(each, spread=math.sqrt(each.value * (1 - each.value / self.fold_size)))
            if each.value is not None and each.spread is None
            else each
            for each in values
        )

    def spread_of_one_run(self, samples: int) -> str:
        folds = samples // self.fold_size
        return f"between {folds} folds of {self.fold_size:,} samples" if folds > 1 else ""

    def chance(self) -> str:
        return f"that of counting, at most {math.sqrt(self.fold_size) / 2:.0f}"


class TextMeasure(Measure):
    """MAUVE, perplexity under the evaluator LM, and entropy."""

    @property
    def columns(self) -> tuple[Column, ...]:
        perplexity, entropy = Column("gen. PPL", False, "log"), Column("entropy, bits", True)
        return Column("MAUVE", True, "zero"), perplexity, entropy

    def tasks(self, samples: Sample | HeldOut) -> tuple[Task, ...]:
        evaluator = EVALUATORS[self.scale]
        scored = Text(samples, evaluator)
        reference = HeldOut("text", samples.length, samples.n, 1)  # same number and length
        return scored, MauveScore(scored, Text(reference, evaluator))

    def values(self, store: Store, samples: Sample | HeldOut) -> tuple[Value, ...]:
        read, compared = (store.result(task) for task in self.tasks(samples))
        mauve = perplexity = entropy = Value(None)
        if compared is not None:
            mauve = Value(compared["mauve"], compared["std"], 3)
        if read is not None:
            found = read["perplexity"]["perplexity"]
            perplexity = Value(found["value"], found["fold_std"], 1)
            found = read["statistics"]["entropy"]
            entropy = Value(found["value"], found["fold_std"], 2)
        return mauve, perplexity, entropy

    def reported(self, name: str) -> tuple[Value, ...]:
        """Comparable only at paper scale; at other scales, corpus and evaluator differ."""
        return paper.text(name) if self.scale == "paper" else ()

    def spread_of_one_run(self, samples: int) -> str:
        return "between five folds of the samples, of MAUVE between five resamples"


def measure(corpus: Corpus, scale: Scale) -> Measure:
    return (MoleculeMeasure if corpus == "molecules" else TextMeasure)(scale)


def over_seeds(runs: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """The mean and standard deviation over runs; a single run keeps its own spread."""
    if len(runs) == 1:
        return runs[0]
    return tuple(
        Value.mean([each.value for each in column if each.value is not None], column[0].digits)
        for column in zip(*runs, strict=True)
    )
