"""Evaluate text: generative perplexity, diversity, and similarity to held-out text (MAUVE)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from cwdfm.errors import load_extra
from cwdfm.metrics.mauve import MIN_SAMPLES, RECOMMENDED_SAMPLES
from cwdfm.provenance import package_version
from cwdfm.report.figure import Panel, Point, step_curves
from cwdfm.report.page import Evaluation, Excerpt, Picture
from cwdfm.report.sample_set import TEXT, SampleSet, file_suffixes, kind_of
from cwdfm.report.table import Table, format_estimate
from cwdfm.report.text_data import Passages, TextReference, check_same_length
from cwdfm.report.text_scores import TextScorer, TextScores, TextSettings

COLUMNS = (
    "solver",
    "steps",
    "perplexity",
    "entropy",
    "MAUVE",
    "distinct-2",
    "repeated",
    "calls",
    "samples",
)
_EXCERPTS = 3  # samples per solver on the page
_PACKAGES = ("torch", "transformers", "mauve-text")


@dataclass(frozen=True)
class ScoredText:
    """A sample set and its scores."""

    samples: SampleSet
    scores: TextScores

    def __str__(self) -> str:
        return self.samples.title

    @property
    def calls(self) -> float | None:
        """Model evaluations per sample; None if a file does not state them."""
        counts = [file.samples.head.get("evaluations") for file in self.samples.files]
        numbers = [n for n in counts if isinstance(n, int)]
        complete = len(numbers) == len(counts)
        return sum(numbers) / len(self.samples.texts) if complete else None

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {**self.samples.to_json(), "evaluations": self.calls, **self.scores.to_json()}

    def cells(self) -> tuple[str, ...]:
        """The row of the table, under COLUMNS."""
        samples = self.samples
        steps = str(samples.steps) if samples.steps else "-"
        calls = "-" if self.calls is None else f"{self.calls:.4g}"
        return samples.solver or "-", steps, *score_cells(self.scores, calls)


def score_cells(scores: TextScores, calls: str = "-") -> tuple[str, ...]:
    """The cells of a row after solver and steps."""
    perplexity, statistics = scores.perplexity and scores.perplexity.perplexity, scores.statistics
    mauve, distinct = scores.mauve, statistics.distinct
    return (
        format_estimate(perplexity.value, perplexity.fold_std) if perplexity else "-",
        format_estimate(statistics.entropy.value, statistics.entropy.fold_std),
        f"{mauve.mauve:.3f} ± {mauve.std:.3f}" if mauve else "-",
        f"{distinct[1].value:.3f}" if len(distinct) > 1 else "-",
        f"{statistics.repetition.value:.3f}" if statistics.repetition else "-",
        calls,
        f"{statistics.samples:,}",
    )


def evaluate_text(
    sets: Sequence[SampleSet],
    out: Path,
    *,
    data: str = "auto",
    settings: TextSettings | None = None,
    log: Callable[[str], object] = lambda _: None,
) -> Evaluation:
    """Score sample sets and held-out text of `data` ("auto" is none); write figures into `out`.

    Scores that need a language model are cached in `out`, so that the same command resumes after an
    interruption, and an additional file costs only its own scores.
    """
    settings = settings or TextSettings()
    if len({found.steps for found in sets}) > 1:
        load_extra("matplotlib", "plot")  # fail before the work: figures come last
    passages = [Passages.of_samples(found) for found in sets]
    check_same_length(passages, [str(found.files[0].path) for found in sets])
    held_out = None
    if data not in ("auto", "none"):
        log(f"reading {data}")
        held_out = TextReference.load(
            data,
            kind_of(sets, TEXT),
            passages,
            size=settings.reference_size,
            baseline=settings.data_row,
            folds=settings.folds,
        )
    baseline = held_out.baseline if held_out else None
    scorer = TextScorer(settings, held_out.reference if held_out else None, out, log)
    scorer.prepare([*passages, baseline] if baseline else passages)
    scored = []
    for number, (found, its) in enumerate(zip(sets, passages, strict=True), start=1):
        scored.append(ScoredText(found, scorer.score(its)))
        log(f"{number} of {len(sets)}: {scored[-1]}: {summary(scored[-1].scores)}")
    baseline_scores = scorer.score(baseline) if baseline else None
    return Evaluation(
        title="Text: " + ", ".join(dict.fromkeys(s.model for s in sets)),
        table=_table(scored, held_out, baseline_scores),
        explanation=explanation(settings, held_out.name if held_out else None),
        notes=tuple(_notes(scored, held_out, settings)),
        pictures=pictures(scored, baseline_scores, out),
        settings=_conventions(scored[0].scores, held_out, settings),
        scores={
            "settings": asdict(settings),
            "versions": {name: package_version(name) for name in _PACKAGES},
            "data": held_out.about if held_out else None,
            "data_row": baseline_scores.to_json() if baseline_scores else None,
            "sets": [s.to_json() for s in scored],
        },
        excerpts=_excerpts(sets, baseline),
    )


def summary(scores: TextScores) -> str:
    """Perplexity, entropy and MAUVE on one line."""
    cells = zip(COLUMNS[2:5], score_cells(scores), strict=False)
    return ", ".join(f"{name} {cell}" for name, cell in cells if cell != "-")


def _table(
    scored: Sequence[ScoredText], held_out: TextReference | None, baseline: TextScores | None
) -> Table:
    rows, groups = [s.cells() for s in scored], [s.samples.model for s in scored]
    if held_out and baseline:
        rows.append(("held-out text", "-", *score_cells(baseline)))
        groups.append(f"data: {held_out.name}")
    return Table(COLUMNS, tuple(rows), tuple(groups))


def explanation(settings: TextSettings, data: str | None) -> tuple[str, ...]:
    """How to read the table, one paragraph each."""
    average = (
        "the exponential of the mean negative log-likelihood over all tokens"
        if settings.average == "corpus"
        else "the mean over samples of the exponential of their mean negative log-likelihood"
    )
    perplexity = (
        f"Perplexity is computed by an independent language model, the evaluator LM "
        f"{Path(settings.eval_model).name}: {average}. Lower is better, but repetitive text also "
        f"has a low perplexity, so it must be read together with the entropy."
        if settings.has_evaluator
        else "Perplexity under another language model is not computed here."
    )
    features = "the evaluator LM" if settings.mauve == "evaluator" else "an embedding model"
    mauve = (
        f"MAUVE measures the similarity to held-out text of {data}, with features of {features}: 1 "
        f"for identical distributions, less if the samples miss or overrepresent something. It "
        f"depends on the number of samples, so only sets of equal size are comparable. The row of "
        f"held-out text shows the best score to expect."
        if data and settings.has_features
        else "MAUVE, the similarity to held-out text, is not computed here."
    )
    return (
        f"{perplexity} Entropy is the unigram entropy of a sample in bits; repetitive text has a "
        f"low entropy. Good samples have a low perplexity and the entropy of the data.",
        mauve,
        "Distinct-2 is the fraction of distinct bigrams in a sample, “repeated” the fraction of "
        "4-grams that occurred earlier in the same sample. “Calls” is the number of model "
        "evaluations per sample, the cost of sampling.",
        f"± is one standard deviation: over {settings.folds} folds of the samples for perplexity "
        f"and entropy, over bootstrap resamples for MAUVE. A fold is smaller than the whole set, "
        f"whose error is therefore smaller.",
    )


def _notes(
    scored: Sequence[ScoredText], held_out: TextReference | None, settings: TextSettings
) -> list[str]:
    notes = []
    if held_out is None:
        notes.append("MAUVE is omitted because there is no reference data.")
    elif settings.has_features:
        notes += _mauve_notes(scored, held_out)
    results = [(s, s.scores.perplexity) for s in scored]
    unscored = [f"{s} ({found.unscored:,})" for s, found in results if found and found.unscored]
    if unscored:
        notes.append(f"Samples without a token to score: {'; '.join(unscored)}.")
    return notes


def _mauve_notes(scored: Sequence[ScoredText], held_out: TextReference) -> list[str]:
    notes = []
    sizes = sorted({s.scores.statistics.samples for s in scored})
    available, requested = len(held_out.reference.texts), held_out.requested
    if available < requested:
        notes.append(
            f"{held_out.name} has only {available:,} held-out windows per side; {requested:,} were "
            f"requested."
        )
    smallest = min(available, sizes[0])
    if available < MIN_SAMPLES:
        notes.append(f"MAUVE needs {MIN_SAMPLES} texts per side; the data has {available}.")
    elif MIN_SAMPLES <= smallest < RECOMMENDED_SAMPLES:
        notes.append(
            f"MAUVE of {smallest:,} texts is coarse; use at least {RECOMMENDED_SAMPLES:,} for "
            f"published results."
        )
    small = [str(s) for s in scored if s.scores.statistics.samples < MIN_SAMPLES]
    if small:
        notes.append(f"Fewer than {MIN_SAMPLES} samples, so no MAUVE: {'; '.join(small)}.")
    if len(sizes) > 1:
        notes.append(
            f"The sets have {sizes[0]:,} to {sizes[-1]:,} samples, so their MAUVE scores are not "
            f"comparable."
        )
    return notes


def pictures(
    scored: Sequence[ScoredText], baseline: TextScores | None, out: Path
) -> tuple[Picture, ...]:
    """Curves for each model with samples at different numbers of steps."""
    groups = [(name, list(rows)) for name, rows in groupby(scored, key=lambda s: s.samples.model)]
    drawn = []
    suffixes = file_suffixes([name for name, _ in groups])
    for (model, rows), suffix in zip(groups, suffixes, strict=True):
        if len({s.samples.steps for s in rows}) > 1:
            path = out / f"curves{suffix}.png"
            curves(rows, path, baseline=baseline, title=model)
            line = " The dashed line is held-out text." if baseline else ""
            caption = (
                f"{model}: quality against the number of steps.{line} Bars are standard "
                f"deviations, over folds or, for MAUVE, over bootstrap resamples."
            )
            drawn.append(Picture(path.name, caption, wide=True))
    return tuple(drawn)


def curves(
    rows: Sequence[ScoredText], path: Path, *, baseline: TextScores | None, title: str
) -> None:
    """Draw perplexity, entropy and MAUVE against the number of steps, one line per solver."""
    panels = []
    for name, value in (
        ("perplexity (lower is better)", _perplexity),
        ("entropy in bits (closer to the data is better)", _entropy),
        ("MAUVE (higher is better)", _mauve),
    ):
        lines: dict[str, list[Point]] = {}
        for s in rows:
            if (found := value(s.scores)) is not None:
                point = (s.samples.steps or 0, *found)
                lines.setdefault(s.samples.solver or "-", []).append(point)
        if lines:
            level = value(baseline) if baseline else None
            log, share = value is _perplexity, value is _mauve
            panels.append(Panel(name, lines, level[0] if level else None, log, share))
    step_curves(panels, path, title=title)


def _perplexity(scores: TextScores) -> tuple[float, float | None] | None:
    found = scores.perplexity and scores.perplexity.perplexity
    return (found.value, found.fold_std) if found else None


def _entropy(scores: TextScores) -> tuple[float, float | None] | None:
    return scores.statistics.entropy.value, scores.statistics.entropy.fold_std


def _mauve(scores: TextScores) -> tuple[float, float | None] | None:
    return None if scores.mauve is None else (scores.mauve.mauve, scores.mauve.std)


def _conventions(
    scores: TextScores, held_out: TextReference | None, settings: TextSettings
) -> dict[str, Any]:
    """The conventions of the scores, for the page."""
    found, mauve = scores.perplexity, scores.mauve
    listed: dict[str, Any] = {"evaluator LM": found.evaluator if found else "none"}
    if found:
        listed["perplexity"] = (
            f"{'texts retokenized' if found.retokenized else 'own tokens'}, {found.average} "
            f"average, first token: {found.first_token}, after the end: {found.after_end}"
        )
    listed["folds"] = settings.folds
    if mauve:
        listed["MAUVE features"] = mauve.features
        listed["MAUVE"] = (
            f"{mauve.reference:,} held-out texts, {mauve.buckets} buckets, scaling "
            f"{mauve.scaling:g}"
        )
    return listed | {"data": held_out.about["name"] if held_out else "none"}


def _excerpts(sets: Sequence[SampleSet], baseline: Passages | None) -> tuple[Excerpt, ...]:
    """The first samples of each solver at its largest number of steps, and held-out text."""
    largest: dict[tuple[str, str | None], SampleSet] = {}
    for found in sets:  # ordered by steps
        largest[found.model, found.solver] = found
    models = {found.model for found in sets}
    excerpts = []
    for found in largest.values():
        title = found.title if len(models) > 1 else str(found)
        texts = tuple(found.texts[:_EXCERPTS])
        excerpts.append(Excerpt(f"{title}: {len(texts)} of {len(found.texts):,} samples", texts))
    if baseline:
        excerpts.append(Excerpt("Held-out text for comparison", tuple(baseline.texts[:_EXCERPTS])))
    return tuple(excerpts)
