"""A set of molecules with its scores: the numbers, their noise, and the line of the table."""

from dataclasses import dataclass
from typing import Any

from cwdfm.metrics.molecule import FoldCounts, MoleculeScores
from cwdfm.report.sample_set import SampleSet

COLUMNS = ("solver", "steps", "valid", "unique", "novel", "folds")


@dataclass(frozen=True)
class Scored:
    """A set with what was counted in it."""

    samples: SampleSet
    scores: MoleculeScores
    histograms: dict[str, Any] | None  # None without a reference

    def __str__(self) -> str:
        model, place = self.samples.model, str(self.samples)
        return model if self.samples.solver is None else f"{model}, {place}"

    def to_json(self) -> dict[str, Any]:
        """Every number."""
        return {
            **self.samples.to_json(),
            "scores": self.scores.to_json(),
            "noise": {name: self.scores.noise(name) for name in ("valid", "unique", "novel")},
            "histograms": self.histograms,
        }


def cells(found: Scored) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    scores, samples = found.scores, found.samples
    counted = []
    for name in ("valid", "unique", "novel"):
        counts: FoldCounts | None = getattr(scores, name)
        digits = 1 if scores.folds > 1 else 0
        spread = scores.noise(name)
        counted.append(f"{counts.mean:.{digits}f} ± {spread:.1f}" if counts else "-")
    steps = str(samples.steps) if samples.steps else "-"
    return samples.solver or "-", steps, *counted, f"{scores.folds} of {scores.fold_size:,}"
