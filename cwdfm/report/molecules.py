"""Evaluate molecules: validity counts, distribution metrics, histograms and drawings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.data import load_reference
from cwdfm.data.fragments import Fragment, find_fragment
from cwdfm.data.readers import Progress
from cwdfm.data.reference import ReferenceMolecules
from cwdfm.data.smiles import canonical
from cwdfm.errors import load_extra
from cwdfm.metrics.distribution import DistributionScores, distribution_scores
from cwdfm.metrics.molecule import SCORES, MoleculeScores, histograms, score_molecules
from cwdfm.metrics.reference_statistics import ReferenceStatistics, reference_statistics
from cwdfm.provenance import package_version
from cwdfm.report.figure import step_curves
from cwdfm.report.molecule_plots import histogram_plot, molecule_grid, property_plot
from cwdfm.report.molecule_table import LISTED, distribution_table, explanation, molecule_table
from cwdfm.report.page import Evaluation, Picture
from cwdfm.report.sample_set import SampleSet, Scored, by_model, note, short_titles
from cwdfm.report.table import Table

COLUMNS = ("solver", "steps", *SCORES, "folds")
_HISTOGRAM = 2000  # reference molecules in histograms: accurate to about one percent
_DRAWN = 20  # maximum number of molecules in a grid


@dataclass(frozen=True)
class ScoredMolecules(Scored):
    """A sample set and its scores."""

    scores: MoleculeScores
    histograms: dict[str, Any] | None  # None without a reference
    distribution: DistributionScores | None = None

    @property
    def fragment(self) -> Fragment | None:
        """The fragment that every sample contains, if the options of the file have one."""
        options = self.samples.files[0].samples.options
        return find_fragment(*(options.get(name) for name in ("scaffold", "grow", "linker")))

    def to_json(self) -> dict[str, Any]:
        return {
            **self.samples.to_json(),
            "scores": self.scores.to_json(),
            "noise": {name: self.scores.noise(name) for name in SCORES},
            "histograms": self.histograms,
            "distribution": None if self.distribution is None else self.distribution.to_json(),
        }

    def estimates(self) -> dict[str, tuple[float, float | None]]:
        counts = self.scores.counts()
        return {n: (count.mean, self.scores.noise(n)) for n, count in counts.items() if count}

    def cells(self) -> tuple[str, ...]:
        """The row of the table, with the cells of COLUMNS."""
        scores, digits = self.scores, 1 if self.scores.folds > 1 else 0
        counts = {
            name: f"{mean:.{digits}f} ± {std:.1f} ({scores.percent(name)})"
            for name, (mean, std) in self.estimates().items()
        }
        cells = [counts.get(name, "-") for name in SCORES]
        return *self.samples.cells(), *cells, f"{scores.folds} of {scores.fold_size:,}"


def evaluate_molecules(
    sets: Sequence[SampleSet],
    out: Path,
    *,
    data: str = "auto",
    column: str | None = None,
    fold_size: int = 1024,
    distribution: bool = False,
    workers: int = 1,
    progress: Progress = lambda *_: None,
) -> Evaluation:
    """Score sample sets against `data` ("auto" is QM9), and write the figures to `out`."""
    name = "qm9" if data == "auto" else data
    if name != "none" or len({found.steps for found in sets}) > 1:
        load_extra("matplotlib", "plot")  # fail now, not when figures are drawn at the end
    if distribution:
        load_extra("fcd_torch", "molecules")

    def read(rows: int) -> None:
        progress(f"reading {name}", rows, None)

    reference = None if name == "none" else load_reference(name, column=column, progress=read)
    training = reference.known if reference else None
    against: dict[str, ReferenceStatistics] = {}
    if reference and distribution:
        against = reference_statistics(reference, workers=workers, progress=progress)
    scored = []
    for samples in sets:
        scores = score_molecules(samples.texts, training, fold_size=fold_size)
        shares = histograms(samples.texts, reference.compared(_HISTOGRAM)) if reference else None
        compared = None
        if distribution:
            compared = distribution_scores(
                samples.texts, against, training, workers=workers, progress=progress
            )
        scored.append(ScoredMolecules(samples, scores, shares, compared))
    drawn, notes = pictures(scored, out, reference, against)
    known = (len(reference.known), reference.name) if reference else None
    mismatches = _training_data_notes(sets, name) if data == "auto" else []
    models = tuple(s.model for s in sets)
    listings = {
        f"{found.title}: {min(LISTED, len(found.texts))} of {len(found.texts):,} samples": (
            molecule_table(found.texts, training)
        )
        for found in sets
    }
    titles = zip(short_titles(sets), scored, strict=True)
    return Evaluation(
        title="Molecules: " + ", ".join(dict.fromkeys(models)),
        table=Table(COLUMNS, tuple(s.cells() for s in scored), models),
        details=distribution_table(
            [(title, s.distribution.scores) for title, s in titles if s.distribution]
        ),
        explanation=explanation(known, distribution=distribution),
        notes=(*_notes(scored, fold_size, reference), *mismatches, *notes),
        pictures=drawn,
        listings=listings,
        settings={"data": name, "fold size": fold_size, "rdkit": package_version("rdkit")},
        scores={
            "rdkit": package_version("rdkit"),
            "fold_size": fold_size,
            "data": reference.about if reference else None,
            "compared_with": {name: len(found) for name, found in against.items()},
            "sets": [s.to_json() for s in scored],
        },
    )


def pictures(
    scored: Sequence[ScoredMolecules],
    out: Path,
    reference: ReferenceMolecules | None,
    statistics: Mapping[str, ReferenceStatistics],
) -> tuple[tuple[Picture, ...], list[str]]:
    """Draw curves for each model, and drawings and histograms of its set with most valid samples.

    Every set of samples with a fragment is drawn. Properties are compared with the first of the
    `statistics`.
    """
    drawn, notes = [], []
    for model, rows, suffix in by_model(scored):
        if len({s.samples.steps for s in rows}) > 1:
            if len({s.scores.fold_size for s in rows}) > 1:
                smallest = min(s.scores.fold_size for s in rows)
                notes.append(
                    f"{model}: no curves, because the files contain different numbers of samples; "
                    f"use a fold size of at most {smallest:,}."
                )
            else:
                drawn.append(curves(rows, out / f"curves{suffix}.png"))
        best = max(rows, key=lambda s: s.scores.valid.mean / s.scores.fold_size)
        kept = [s for s in rows if s.fragment] if len(rows) > 1 else []
        for number, shown in enumerate(kept or [best], start=1):
            if sum(shown.scores.valid.counts):
                path = out / f"molecules{suffix}{f'-{number}' * bool(kept)}.png"
                known = reference.known if reference else None
                texts, fragment = shown.samples.texts, shown.fragment
                drawn.append(grid(str(shown), texts, path, known=known, fragment=fragment))
        if best.histograms and reference:
            drawn.append(_histograms(best, out / f"histograms{suffix}.png", reference.name))
            if best.distribution and sum(best.scores.valid.counts):
                path = out / f"properties{suffix}.png"
                drawn.append(_properties(best, path, reference.name, statistics))
    return tuple(drawn), notes


def curves(rows: Sequence[ScoredMolecules], path: Path) -> Picture:
    """Draw valid, unique and novel molecules of one model over the number of steps."""
    size = rows[0].scores.fold_size
    step_curves(rows, path, {name: name for name in SCORES}, ylabel=f"molecules of {size:,}")
    single = all(s.scores.folds == 1 for s in rows)
    error = "one binomial standard deviation" if single else "standard deviations over folds"
    caption = f"{rows[0].samples.model}: molecules against the number of steps. Bars are {error}."
    return Picture(path.name, caption, wide=True)


def grid(
    title: str,
    texts: Sequence[str],
    path: Path,
    *,
    known: Collection[str] | None = None,
    fragment: Fragment | None = None,
    limit: int = _DRAWN,
) -> Picture:
    """Draw the distinct molecules among samples, of which at least one must be valid.

    Molecules that are not `known` come first, and atoms of the fragment are highlighted.
    """
    distinct = dict.fromkeys(s for s in map(canonical, texts) if s is not None)
    shown = sorted(distinct, key=(known or ()).__contains__)[:limit]  # stable
    molecule_grid(shown, path, highlight=fragment.patterns if fragment else ())
    order = "in the order of the samples" if known is None else "novel ones first"
    order += ", with the fragment highlighted" if fragment else ""
    caption = f"{title}: {len(shown)} of {len(distinct):,} distinct molecules, {order}."
    return Picture(path.name, caption)


def _histograms(scored: ScoredMolecules, path: Path, data: str) -> Picture:
    histogram_plot(scored.histograms or {}, path, title=str(scored))
    caption = (
        f"{scored}: features of the valid samples (green) and of molecules of {data} (gray). "
        f"Length is in characters. The total variation distance is 0 for equal distributions and "
        f"1 for disjoint ones."
    )
    return Picture(path.name, caption, wide=True)


def _properties(
    scored: ScoredMolecules, path: Path, data: str, statistics: Mapping[str, ReferenceStatistics]
) -> Picture:
    name, found = next(iter(statistics.items()))
    assert scored.distribution is not None
    property_plot(scored.distribution.properties, found.properties, path, title=str(scored))
    caption = (
        f"{scored}: properties of the valid samples (green) and of the {len(found):,} molecules "
        f"{name} of {data} (gray), with their means."
    )
    return Picture(path.name, caption, wide=True)


def _notes(
    scored: Sequence[ScoredMolecules], fold_size: int, reference: ReferenceMolecules | None
) -> list[str]:
    short = (
        f"Fewer samples than a fold of {fold_size:,}; they form one smaller fold, and counts are "
        f"not scaled up"
    )
    unused = "The last samples do not fill a fold and are not counted"
    remainders = [f"{s} ({s.scores.remainder:,})" for s in scored if s.scores.remainder]
    invalid = [str(s) for s in scored if not sum(s.scores.valid.counts)]
    notes = [
        *note(short, [str(s) for s in scored if s.scores.short], len(scored)),
        *note(unused, remainders, len(scored)),
        *note("No valid molecule", invalid, len(scored)),
    ]
    if reference is None:
        notes.append("Without data to compare with, novelty and histograms are omitted.")
    elif unparsable := reference.report.get("unparsable"):
        read = reference.report["read"]
        notes.append(
            f"{unparsable:,} of {read:,} rows ({unparsable / read:.1%}) of {reference.name} are "
            f"not valid molecules."
        )
    return notes


def _training_data_notes(sets: Sequence[SampleSet], data: str) -> list[str]:
    trained = {samples.model: samples.trained_on for samples in sets}
    return [
        f"Novel molecules are those not in {data}, but {model} was trained on {on}; pass {on} as "
        f"`data` instead."
        for model, on in trained.items()
        if on not in (None, data)
    ]
