"""Evaluate sets of texts: how likely an evaluator finds them, how diverse and how like the data."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cwdfm.data.readers import package_version
from cwdfm.errors import load_extra
from cwdfm.metrics.mauve import MIN_SAMPLES, RECOMMENDED_SAMPLES
from cwdfm.report.evaluation import Evaluation, Excerpt, Row, Table
from cwdfm.report.sample_set import TEXT, SampleSet, kind_of
from cwdfm.report.settings import AUTO, Settings
from cwdfm.report.text_plots import text_pictures
from cwdfm.report.text_reference import TextReference
from cwdfm.report.text_samples import Passages, common_length
from cwdfm.report.text_scores import TextScorer, TextScores
from cwdfm.report.text_table import COLUMNS, ScoredText, cells, meaning, score_cells

_READ = 3  # samples of a solver that the page shows
_PACKAGES = ("torch", "transformers", "mauve-text")


def evaluate_text(sets: Sequence[SampleSet], out: Path, settings: Settings) -> Evaluation:
    """Score the sets, and held-out text beside them; draw the pictures into the folder `out`.

    The scores are kept in the folder, so that the same command goes on where it stopped,
    and another file added costs no more than itself.
    """
    if len({found.steps for found in sets}) > 1:
        load_extra("matplotlib", "plot")  # for the curves, which come last
    passages = [Passages.of_samples(found) for found in sets]
    common_length(passages, [str(found.files[0].path) for found in sets])
    reference = _reference(sets, passages, settings)
    shown = reference.shown if reference else None
    row = reference.row if reference else None
    scorer = TextScorer(settings.text, shown, out, settings.say)
    scorer.prepare([*passages, row] if row else passages)
    scored = []
    for number, (found, its) in enumerate(zip(sets, passages, strict=True), start=1):
        scored.append(ScoredText(found, scorer.score(its)))
        settings.say(f"{number} of {len(sets)}: {scored[-1]}: {_brief(scored[-1].scores)}")
    data = scorer.score(row) if row else None
    return Evaluation(
        title="Text: " + ", ".join(dict.fromkeys(s.model for s in sets)),
        table=_table(scored, reference, data),
        meaning=meaning(settings.text, reference.name if reference else None),
        notes=tuple(_notes(scored, reference, settings)),
        pictures=text_pictures(scored, data, out),
        settings=_origin(scored[0].scores, reference, settings),
        scores={
            "settings": asdict(settings.text),
            "versions": {name: package_version(name) for name in _PACKAGES},
            "data": reference.about if reference else None,
            "data_row": data.to_json() if data else None,
            "sets": [s.to_json() for s in scored],
        },
        excerpts=_excerpts(sets, row),
    )


def _reference(
    sets: Sequence[SampleSet], passages: Sequence[Passages], settings: Settings
) -> TextReference | None:
    if settings.data in (AUTO, "none"):
        return None
    settings.say(f"reading {settings.data}")
    return TextReference.load(settings.data, kind_of(sets, TEXT), passages, settings.text)


def _brief(scores: TextScores) -> str:
    names = COLUMNS[2:5]
    found = zip(names, score_cells(scores), strict=False)
    return ", ".join(f"{name} {cell}" for name, cell in found if cell != "-")


def _table(
    scored: Sequence[ScoredText], reference: TextReference | None, data: TextScores | None
) -> Table:
    rows = [Row(s.samples.model, cells(s)) for s in scored]
    if reference and data:
        rows.append(Row(f"data: {reference.name}", ("held-out text", "-", *score_cells(data))))
    return Table(COLUMNS, tuple(rows))


def _notes(
    scored: Sequence[ScoredText], reference: TextReference | None, settings: Settings
) -> list[str]:
    """What one should know about the numbers."""
    notes = []
    sizes = sorted({s.scores.statistics.samples for s in scored})
    if reference is None:
        notes.append("No text to compare with: MAUVE and the data's row are left out (--data).")
    elif settings.text.compares:
        size = len(reference.shown.texts)
        if size < reference.wanted:
            notes.append(
                f"{reference.name} has held-out text for {size:,} windows a side; "
                f"{reference.wanted:,} were wanted."
            )
        if size < MIN_SAMPLES:
            notes.append(f"MAUVE needs {MIN_SAMPLES} texts a side, the data have {size}: left out.")
        elif MIN_SAMPLES <= (few := min(size, sizes[0])) < RECOMMENDED_SAMPLES:
            notes.append(
                f"MAUVE of {few:,} texts is coarse; {RECOMMENDED_SAMPLES:,} or more are "
                f"advised for figures to publish."
            )
        small = [str(s) for s in scored if s.scores.statistics.samples < MIN_SAMPLES]
        if small:
            notes.append(f"Fewer than {MIN_SAMPLES} samples, so no MAUVE: {'; '.join(small)}.")
        if len(sizes) > 1:
            notes.append(
                f"The sets hold {sizes[0]:,} to {sizes[-1]:,} samples: their MAUVE scores do not "
                f"compare."
            )
    judged = [(s, s.scores.perplexity) for s in scored]
    unscored = [f"{s} ({found.unscored:,})" for s, found in judged if found and found.unscored]
    if unscored:
        notes.append(f"Samples without a token to score: {'; '.join(unscored)}.")
    return notes


def _origin(
    scores: TextScores, reference: TextReference | None, settings: Settings
) -> dict[str, Any]:
    """The conventions, for the page."""
    found = scores.perplexity
    told: dict[str, Any] = {"evaluator": found.evaluator if found else "none"}
    if found:
        told["perplexity"] = (
            f"{'texts retokenized' if found.retokenized else 'own tokens'}, {found.average} "
            f"average, first token: {found.first_token}, after the end: {found.after_end}"
        )
    told["folds"] = settings.text.folds
    if scores.mauve:
        told["MAUVE features"] = scores.mauve.features
        told["MAUVE"] = (
            f"{scores.mauve.reference:,} held-out texts, {scores.mauve.buckets} buckets, scaling "
            f"{scores.mauve.scaling:g}"
        )
    return told | {"data": reference.about["name"] if reference else "none"}


def _excerpts(sets: Sequence[SampleSet], row: Passages | None) -> tuple[Excerpt, ...]:
    """The first samples of each solver at its most steps, and held-out text beside them."""
    most: dict[tuple[str, str | None], SampleSet] = {}
    for found in sets:  # in the order of their steps
        most[found.model, found.solver] = found
    models = {found.model for found in sets}
    excerpts = []
    for found in most.values():
        title = f"{found.model}, {found}" if found.solver and len(models) > 1 else str(found)
        few = tuple(found.texts[:_READ])
        excerpts.append(Excerpt(f"{title}: {len(few)} of {len(found.texts):,} samples", few))
    if row:
        excerpts.append(Excerpt("Held-out text, to compare", tuple(row.texts[:_READ])))
    return tuple(excerpts)
