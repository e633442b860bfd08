"""Evaluate molecules: valid, unique and novel counts, feature histograms, and drawings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from cwdfm.data import load
from cwdfm.data.randomized import is_randomized
from cwdfm.data.smiles import canonical
from cwdfm.errors import InputError, load_extra
from cwdfm.metrics.molecule import (
    SCORES,
    CanonicalSet,
    MoleculeScores,
    canonical_set,
    histograms,
    score_molecules,
)
from cwdfm.provenance import package_version
from cwdfm.report.molecule_plots import CurvePoint, curves, histogram_plot, molecule_grid
from cwdfm.report.page import Evaluation, Picture
from cwdfm.report.sample_set import SampleSet, file_suffixes
from cwdfm.report.table import Table

COLUMNS = ("solver", "steps", *SCORES, "folds")
_HISTOGRAM = 2000  # reference molecules: shares accurate to about one percent
_DRAWN, _ACROSS = 20, 4  # molecules in a grid, and in one of its rows


@dataclass(frozen=True)
class MoleculeReference:
    """Data to compare with: molecules not in `training` are novel; histograms use `held_out`."""

    training: CanonicalSet
    held_out: list[str]
    about: dict[str, Any]  # provenance, for scores.json

    @classmethod
    def load(
        cls, name: str, progress: Callable[[int], object] | None = None, length: int | None = None
    ) -> Self | None:
        """Load a dataset, a file of molecules or a prepared `.npz`; None for the name "none"."""
        if name == "none":
            return None
        found = load(name, length=length, progress=progress)
        if found.tokenizer.kind != "smiles":
            raise InputError(
                f"{name!r} contains {found.tokenizer.kind} tokens, not molecules; give molecules, "
                f"or none to skip novelty and histograms"
            )
        train = found.texts("train")
        # Canonical SMILES may differ between RDKit versions.
        same_rdkit = found.source.get("rdkit") == package_version("rdkit")
        is_canonical = same_rdkit and not is_randomized(found)
        about = {"name": found.name, "rows": found.report, "source": found.source}
        return cls(
            training=CanonicalSet(train) if is_canonical else canonical_set(train),
            held_out=(found.texts("valid") or train)[:_HISTOGRAM],
            about=about | {"fingerprint": found.fingerprint},
        )

    @property
    def excluded(self) -> int:
        """Molecules of the dataset that were dropped as too long or for unknown tokens."""
        rows = self.about["rows"]
        return int(rows.get("too_long", 0) + rows.get("unknown_tokens", 0))


@dataclass(frozen=True)
class ScoredMolecules:
    """A sample set and its scores."""

    samples: SampleSet
    scores: MoleculeScores
    histograms: dict[str, Any] | None  # None without a reference

    def __str__(self) -> str:
        return self.samples.title

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {
            **self.samples.to_json(),
            "scores": self.scores.to_json(),
            "noise": {name: self.scores.noise(name) for name in SCORES},
            "histograms": self.histograms,
        }

    def cells(self) -> tuple[str, ...]:
        """The row of the table, under COLUMNS."""
        scores, samples = self.scores, self.samples
        digits = 1 if scores.folds > 1 else 0
        counts = [
            f"{count.mean:.{digits}f} ± {scores.noise(name):.1f}" if count else "-"
            for name, count in scores.counts().items()
        ]
        steps = str(samples.steps) if samples.steps else "-"
        return samples.solver or "-", steps, *counts, f"{scores.folds} of {scores.fold_size:,}"


def evaluate_molecules(
    sets: Sequence[SampleSet], out: Path, *, data: str = "auto", fold_size: int = 1024
) -> Evaluation:
    """Score sample sets against `data` ("auto" is QM9) and write the figures into `out`."""
    name = "qm9" if data == "auto" else data
    if name != "none" or len({found.steps for found in sets}) > 1:
        load_extra("matplotlib", "plot")  # fail before the work: figures come last
    reference = MoleculeReference.load(name)
    training = reference.training if reference else None
    scored = []
    for samples in sets:
        scores = score_molecules(samples.texts, training, fold_size=fold_size)
        shares = histograms(samples.texts, reference.held_out) if reference else None
        scored.append(ScoredMolecules(samples, scores, shares))
    drawn, notes = pictures(scored, out, reference)
    mismatches = _training_data_notes(sets, name) if data == "auto" else []
    return Evaluation(
        title="Molecules: " + ", ".join(dict.fromkeys(s.model for s in sets)),
        table=Table(
            COLUMNS, tuple(s.cells() for s in scored), tuple(s.samples.model for s in scored)
        ),
        explanation=_explanation(reference),
        notes=(*_count_notes(scored, fold_size), *mismatches, *_reference_notes(reference), *notes),
        pictures=drawn,
        settings={"data": name, "fold size": fold_size, "rdkit": package_version("rdkit")},
        scores={
            "rdkit": package_version("rdkit"),
            "fold_size": fold_size,
            "data": reference.about if reference else None,
            "sets": [s.to_json() for s in scored],
        },
    )


def pictures(
    scored: Sequence[ScoredMolecules], out: Path, reference: MoleculeReference | None
) -> tuple[tuple[Picture, ...], list[str]]:
    """Curves for each model, and drawings and histograms of its set with the most valid samples."""
    groups = [(name, list(rows)) for name, rows in groupby(scored, key=lambda s: s.samples.model)]
    suffixes = file_suffixes([name for name, _ in groups])
    drawn, notes = [], []
    for (model, rows), suffix in zip(groups, suffixes, strict=True):
        if len({s.samples.steps for s in rows}) > 1:
            if len({s.scores.fold_size for s in rows}) > 1:
                smallest = min(s.scores.fold_size for s in rows)
                notes.append(
                    f"{model}: no curves, because the files contain different numbers of samples; "
                    f"use a fold size of at most {smallest:,}."
                )
            else:
                drawn.append(_curves(model, rows, out / f"curves{suffix}.png"))
        best = max(rows, key=lambda s: s.scores.valid.mean / s.scores.fold_size)
        if sum(best.scores.valid.counts):
            drawn.append(_grid(best, out / f"molecules{suffix}.png", reference))
        if best.histograms and reference:
            drawn.append(_histograms(best, out / f"histograms{suffix}.png", reference))
    return tuple(drawn), notes


def _curves(model: str, rows: Sequence[ScoredMolecules], path: Path) -> Picture:
    points = [
        CurvePoint(s.samples.solver, s.samples.steps, s.scores)
        for s in rows
        if s.samples.solver and s.samples.steps
    ]
    curves(points, path, title=model)
    single = all(p.scores.folds == 1 for p in points)
    error = "one binomial standard deviation" if single else "standard deviations over folds"
    return Picture(
        path.name, f"{model}: molecules against the number of steps. Bars are {error}.", wide=True
    )


def _grid(found: ScoredMolecules, path: Path, reference: MoleculeReference | None) -> Picture:
    """Draw novel molecules first, then others."""
    distinct = dict.fromkeys(s for s in map(canonical, found.samples.texts) if s is not None)
    training = reference.training if reference else frozenset()
    novel = [s for s in distinct if s not in training]
    shown = (novel + [s for s in distinct if s in training])[:_DRAWN]
    molecule_grid(shown, path, columns=_ACROSS)
    count = min(len(novel), len(shown))
    what = f"{len(shown):,} of {len(distinct):,} distinct molecules"
    if reference and count == len(shown):
        what = f"{count} of {len(novel):,} novel molecules"
    elif reference:
        what += f", the {count} novel ones first"
    return Picture(path.name, f"{found}: {what}, in the order of the samples.")


def _histograms(found: ScoredMolecules, path: Path, reference: MoleculeReference) -> Picture:
    histogram_plot(found.histograms or {}, path, title=str(found))
    caption = (
        f"{found}: features of the valid samples (green) and of molecules of "
        f"{reference.about['name']} (gray). Length is in characters. The total variation distance "
        f"is 0 for equal distributions and 1 for disjoint ones."
    )
    return Picture(path.name, caption, wide=True)


def _explanation(reference: MoleculeReference | None) -> tuple[str, ...]:
    novel = (
        f"Novel counts the unique molecules that are not among the {len(reference.training):,} "
        f"training molecules of {reference.about['name']}."
        if reference
        else "Novel molecules are not counted without data to compare with."
    )
    return (
        "Each sample is a SMILES string. Valid counts the samples that RDKit parses completely, "
        "with no atom exceeding its valence. Unique counts the distinct molecules among the valid "
        f"samples. {novel} Higher is better for all three counts together: a model that copies its "
        "training data is valid but not novel.",
        "The column “folds” shows how samples are counted: 2 of 1,024 is the mean over two folds "
        "of 1,024 samples. ± is one standard deviation of the count of a fold, measured over the "
        "folds, or for a single fold the binomial estimate sqrt(p(1-p)n). For single folds, "
        "differences below three standard deviations may be due to chance.",
    )


def _count_notes(scored: Sequence[ScoredMolecules], fold_size: int) -> list[str]:
    reasons = {
        f"Fewer samples than a fold of {fold_size:,}; they form one smaller fold, and counts are "
        f"not scaled up": [str(s) for s in scored if s.scores.short],
        "The last samples do not fill a fold and are not counted": [
            f"{s} ({s.scores.remainder:,})" for s in scored if s.scores.remainder
        ],
        "No valid molecule": [str(s) for s in scored if not sum(s.scores.valid.counts)],
    }
    return [
        f"{reason}: {'all sets' if len(names) == len(scored) > 1 else '; '.join(names)}."
        for reason, names in reasons.items()
        if names
    ]


def _training_data_notes(sets: Sequence[SampleSet], data: str) -> list[str]:
    trained = {samples.model: on for samples in sets if (on := samples.trained_on) is not None}
    return [
        f"Novel molecules are those not in {data}, but {model} was trained on {on}; pass that "
        f"dataset as `data` instead."
        for model, on in trained.items()
        if on != data
    ]


def _reference_notes(reference: MoleculeReference | None) -> list[str]:
    if reference is None:
        return ["Without data to compare with, novelty and histograms are omitted."]
    if reference.excluded:
        return [
            f"{reference.excluded:,} molecules of {reference.about['name']} are too long or "
            f"contain unknown tokens; samples of these count as novel."
        ]
    return []
