"""Evaluate sets of molecules: valid, unique, novel; how they are made; what they look like."""

from collections.abc import Sequence
from pathlib import Path

from cwdfm.data.readers import package_version
from cwdfm.errors import load_extra
from cwdfm.metrics.molecule import histograms, score_molecules
from cwdfm.report.evaluation import Evaluation, Row, Table
from cwdfm.report.molecule_figures import pictures
from cwdfm.report.molecule_scores import COLUMNS, Scored, cells
from cwdfm.report.reference import MoleculeReference
from cwdfm.report.sample_set import SampleSet
from cwdfm.report.settings import AUTO, Settings


def evaluate_molecules(sets: Sequence[SampleSet], out: Path, settings: Settings) -> Evaluation:
    """Score the sets and draw the pictures into the folder `out`.

    The settings' data are what they are compared with, as MoleculeReference.load takes it.
    """
    data = "qm9" if settings.data == AUTO else settings.data
    if data != "none" or len({found.steps for found in sets}) > 1:
        load_extra("matplotlib", "plot")  # for histograms and curves, which come last
    fold_size = settings.fold_size
    reference = MoleculeReference.load(data)
    known = reference.known if reference else None
    scored = []
    for samples in sets:
        scores = score_molecules(samples.texts, known, fold_size=fold_size)
        shares = histograms(samples.texts, reference.shown) if reference else None
        scored.append(Scored(samples, scores, shares))
    drawn, notes = pictures(scored, out, reference)
    others = _of_other_data(sets, data) if settings.data == AUTO else []
    return Evaluation(
        title="Molecules: " + ", ".join(dict.fromkeys(s.model for s in sets)),
        table=Table(COLUMNS, tuple(Row(s.samples.model, cells(s)) for s in scored)),
        meaning=_meaning(reference),
        notes=(*_unusual(scored, fold_size), *others, *_gaps(reference), *notes),
        pictures=drawn,
        settings={"data": data, "fold size": fold_size, "rdkit": package_version("rdkit")},
        scores={
            "rdkit": package_version("rdkit"),
            "fold_size": fold_size,
            "data": reference.about if reference else None,
            "sets": [s.to_json() for s in scored],
        },
    )


def _meaning(reference: MoleculeReference | None) -> tuple[str, ...]:
    new = (
        f"novel counts the unique ones that are not among the {len(reference.known):,} molecules "
        f"of {reference.about['name']} to train on, so it says how many are not copied"
        if reference
        else "novel is left out, since no data were given to compare with"
    )
    return (
        "Every sample is a string of characters that should spell a molecule. Valid counts the "
        "samples that do: RDKit can read the whole string, and no atom has more bonds than its "
        f"element allows. Unique counts the different molecules among the valid ones; {new}. "
        "More is better, but not one at the expense of another: a model that repeats its "
        "training data would be valid and never novel.",
        "The column “folds” says of how many samples the counts are: 2 of 1,024 stands for the "
        "mean over two folds of 1,024. Behind ± is one standard deviation of a fold's count: over "
        "the folds where there are several, else what chance alone would give (binomial: the "
        "square root of p(1-p)n). Counts of one fold that differ by less than three times that may "
        "well be equally good.",
    )


def _unusual(scored: Sequence[Scored], fold_size: int) -> list[str]:
    """What one should know about the counts: one line a reason, with the sets it holds for."""
    reasons = {
        f"Fewer samples than a fold of {fold_size:,}, counted as one fold of what there is, not "
        f"scaled up": [str(s) for s in scored if s.scores.short],
        "The last samples fill no fold and are not counted": [
            f"{s} ({s.scores.remainder:,})" for s in scored if s.scores.remainder
        ],
        "No valid molecule": [str(s) for s in scored if not sum(s.scores.valid.counts)],
    }
    return [
        f"{reason}: {'all sets' if len(names) == len(scored) > 1 else '; '.join(names)}."
        for reason, names in reasons.items()
        if names
    ]


def _of_other_data(sets: Sequence[SampleSet], data: str) -> list[str]:
    """What to say of models that have learnt other molecules than those that nobody chose."""
    trained = {samples.model: on for samples in sets if (on := samples.trained_on) is not None}
    return [
        f"Novel is what is not in {data}, and {model} was trained on {on}: give that as --data to "
        f"count what is not copied from it."
        for model, on in trained.items()
        if on != data
    ]


def _gaps(reference: MoleculeReference | None) -> list[str]:
    if reference is None:
        return ["No data to compare with: novelty and histograms are left out."]
    if reference.left_out:
        return [
            f"{reference.left_out:,} molecules of {reference.about['name']} are too long or hold "
            f"other tokens; samples of them count as novel."
        ]
    return []
