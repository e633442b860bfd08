"""Evaluate text: generative perplexity, diversity, and similarity to held-out text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.errors import load_extra
from cwdfm.metrics.folds import fold_slices
from cwdfm.metrics.mauve import MIN_SAMPLES, RECOMMENDED_SAMPLES
from cwdfm.metrics.text import sample_entropies
from cwdfm.provenance import package_version
from cwdfm.report.figure import figure_of, save_figure, step_curves, styles_of
from cwdfm.report.page import Evaluation, Picture
from cwdfm.report.sample_set import TEXT, SampleSet, Scored, by_model, kind_of, note
from cwdfm.report.table import Table
from cwdfm.report.text_data import Passages, TextReference, TextSettings, read_passages
from cwdfm.report.text_scores import COLUMNS, SHOWN_NGRAM, TextScorer, TextScores

_PANELS = {
    "perplexity": "perplexity (lower is better)",
    "entropy": "entropy in bits (closer to the data is better)",
    "MAUVE": "MAUVE (higher is better)",
}
_EXCERPTS = 3  # samples per solver on the page
_PACKAGES = ("torch", "transformers", "mauve-text")


@dataclass(frozen=True)
class ScoredText(Scored):
    """A sample set and its scores."""

    scores: TextScores

    @property
    def empty(self) -> int:
        """The number of samples without a character."""
        return self.samples.texts.count("")

    @property
    def calls(self) -> float | None:
        """Model evaluations per sample; None if a file does not record them."""
        counts = [file.samples.head.get("evaluations") for file in self.samples.files]
        numbers = [n for n in counts if isinstance(n, int)]
        complete = len(numbers) == len(counts)
        return sum(numbers) / len(self.samples.texts) if complete else None

    def to_json(self) -> dict[str, Any]:
        return {**self.samples.to_json(), "evaluations": self.calls, **self.scores.to_json()}

    def estimates(self) -> dict[str, tuple[float, float | None]]:
        return self.scores.estimates()

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        calls = "-" if self.calls is None else f"{self.calls:.4g}"
        return *self.samples.cells(), *self.scores.cells(calls)


def evaluate_text(
    sets: Sequence[SampleSet],
    out: Path,
    *,
    data: str,
    column: str | None = None,
    settings: TextSettings,
    log: Callable[[str], object],
) -> Evaluation:
    """Score sample sets and held-out text of `data` ("auto" is none); write figures to `out`.

    Scores that need a language model are cached in `out`, so an interrupted command can resume, and
    only new files are scored.
    """
    load_extra("matplotlib", "plot")  # fail now, not when figures are drawn at the end
    passages = read_passages(sets)
    for texts in passages:  # check the samples before the data, so that errors name the samples
        fold_slices(len(texts.texts), settings.folds)
    held_out = reference = baseline = None
    if data not in ("auto", "none"):
        log(f"reading {data}")
        held_out = TextReference.load(data, kind_of(sets, TEXT), passages, settings, column)
        reference, baseline = held_out.reference, held_out.baseline
    training = held_out.training if held_out else None
    scorer = TextScorer(settings, reference, out, log, training)
    scorer.prepare([*passages, baseline] if baseline else passages)
    scored = []
    for number, (samples, texts) in enumerate(zip(sets, passages, strict=True), start=1):
        scored.append(ScoredText(samples, scorer.score(texts)))
        log(f"{number} of {len(sets)}: {scored[-1]}: {summary(scored[-1].scores)}")
    held_out_scores = scorer.score(baseline) if baseline else None
    rows, groups = [s.cells() for s in scored], [s.samples.model for s in scored]
    if held_out and held_out_scores:
        rows.append(("held-out text", "-", *held_out_scores.cells()))
        groups.append(f"data: {held_out.name}")
    perplexity, mauve = scored[0].scores.perplexity, scored[0].scores.mauve
    return Evaluation(
        title="Text: " + ", ".join(dict.fromkeys(s.model for s in sets)),
        table=Table(("solver", "steps", *COLUMNS), tuple(rows), tuple(groups)),
        explanation=explanation(settings, held_out.name if held_out else None),
        notes=tuple(_notes(scored, held_out, settings)),
        pictures=(
            *pictures(scored, held_out_scores, out),
            *token_pictures(scored, passages, baseline, out),
        ),
        settings={
            "data": held_out.name if held_out else "none",
            "settings": asdict(settings),
            "evaluator LM": perplexity.evaluator if perplexity else "none",
            "MAUVE": mauve.conventions() if mauve else "none",
        },
        scores={
            "settings": asdict(settings),
            "versions": {name: package_version(name) for name in _PACKAGES},
            "data": held_out.about if held_out else None,
            "data_row": held_out_scores.to_json() if held_out_scores else None,
            "sets": [s.to_json() for s in scored],
        },
        excerpts=_excerpts(sets, baseline),
    )


def summary(scores: TextScores) -> str:
    """Perplexity, entropy and MAUVE on one line."""
    cells = zip(_PANELS, scores.cells(), strict=False)
    return ", ".join(f"{name} {cell}" for name, cell in cells if cell != "-")


def explanation(settings: TextSettings, data: str | None) -> tuple[str, ...]:
    """Paragraphs that explain how to read the table."""
    average = (
        "the exponential of the mean negative log-likelihood over all tokens"
        if settings.average == "corpus"
        else "the mean over samples of the exponential of their mean negative log-likelihood"
    )
    perplexity = (
        f"Perplexity is computed by an independent language model, the evaluator LM "
        f"{Path(settings.eval_model).name}: {average}. Lower is better, but repetitive text also "
        f"has a low perplexity, so always compare the entropy as well."
    )
    features = "the evaluator LM" if settings.mauve == "evaluator" else "an embedding model"
    mauve = (
        f"MAUVE measures the similarity to held-out text of {data}, with features of {features}: "
        f"1 for identical distributions, and less if samples miss or overrepresent parts of the "
        f"data. It depends on the number of samples, so only sets of equal size are comparable. "
        f"The row of held-out text shows the best score to expect."
    )
    paragraphs = {
        perplexity: settings.has_evaluator,
        mauve: data is not None and settings.has_features,
        "Entropy is the unigram entropy of a sample in bits; good samples have the entropy of the "
        "data. Distinct-2 is the fraction of distinct bigrams in a sample, “repeated” the fraction "
        "of 4-grams that occurred earlier in the same sample. “Calls” is the number of model "
        "evaluations per sample, the cost of sampling.": True,
        f"“In training” is the fraction of a sample's {SHOWN_NGRAM}-grams that occur in the first "
        f"{settings.overlap_tokens:,} tokens of the training text. Held-out text shows the level "
        f"that common phrases cause; copied text is above it.": data is not None
        and settings.overlap_tokens > 0,
        f"± is one standard deviation: over {settings.folds} folds of the samples for perplexity "
        f"and entropy, over bootstrap resamples for MAUVE. The error of the whole set is smaller, "
        f"because a fold has fewer samples.": True,
    }
    return tuple(text for text, applies in paragraphs.items() if applies)


def _notes(
    scored: Sequence[ScoredText], held_out: TextReference | None, settings: TextSettings
) -> list[str]:
    notes = []
    if held_out is None:
        notes.append("MAUVE is omitted because there is no reference data.")
    elif settings.has_features:
        notes += _mauve_notes(scored, held_out)
    results = [(s, s.scores.perplexity) for s in scored]
    unscored = [f"{s} ({result.unscored:,})" for s, result in results if result and result.unscored]
    return notes + note("Samples without a token to score", unscored, len(scored))


def _mauve_notes(scored: Sequence[ScoredText], held_out: TextReference) -> list[str]:
    sizes = sorted({s.scores.statistics.samples for s in scored})
    available, requested = len(held_out.reference.texts), held_out.requested
    smallest = min(available, sizes[0])
    notes = {
        f"{held_out.name} has only {available:,} held-out windows for the comparison; "
        f"{requested:,} "
        f"were requested.": available < requested,
        f"MAUVE needs {MIN_SAMPLES} texts per set, but the data has {available}.": (
            available < MIN_SAMPLES
        ),
        f"MAUVE of {smallest:,} texts is unreliable; use at least {RECOMMENDED_SAMPLES:,} for "
        f"published results.": MIN_SAMPLES <= smallest < RECOMMENDED_SAMPLES,
        f"The sets have {sizes[0]:,} to {sizes[-1]:,} samples, so their MAUVE scores are not "
        f"comparable.": len(sizes) > 1,
    }
    small = [str(s) for s in scored if s.empty + MIN_SAMPLES > s.scores.statistics.samples]
    too_small = f"Fewer than {MIN_SAMPLES} samples, so no MAUVE"
    empty = [f"{s} ({s.empty:,})" for s in scored if s.empty and s.scores.mauve]
    return [
        *(text for text, applies in notes.items() if applies),
        *note(too_small, small, len(scored)),
        *note("Empty samples, which MAUVE leaves out", empty, len(scored)),
    ]


def pictures(
    scored: Sequence[ScoredText], held_out: TextScores | None, out: Path
) -> tuple[Picture, ...]:
    """Draw curves for each model that has samples with different numbers of steps."""
    drawn = []
    levels = {name: value for name, (value, _) in held_out.estimates().items()} if held_out else {}
    for model, rows, suffix in by_model(scored):
        if len({s.samples.steps for s in rows}) > 1:
            path = out / f"curves{suffix}.png"
            step_curves(rows, path, _PANELS, levels=levels)
            line = " The dashed line is held-out text." if held_out else ""
            caption = (
                f"{model}: quality over the number of steps.{line} Bars are standard "
                f"deviations, over folds or, for MAUVE, over bootstrap resamples."
            )
            drawn.append(Picture(path.name, caption, wide=True))
    return tuple(drawn)


def token_pictures(
    scored: Sequence[ScoredText], passages: Sequence[Passages], baseline: Passages | None, out: Path
) -> Iterator[Picture]:
    """Draw token statistics of each model, for each solver at its largest number of steps."""
    tokens = {str(s): texts.tokens for s, texts in zip(scored, passages, strict=True)}
    for model, rows, suffix in by_model(scored):
        largest = {s.samples.solver: s.samples for s in rows}  # ordered by steps
        shown = {str(found): tokens[found.title] for found in largest.values()}
        path = out / f"tokens{suffix}.png"
        token_plot(shown, path, title=model, held_out=baseline.tokens if baseline else None)
        caption = (
            f"{model}: share of each token, by rank, and entropy of each sample. Good samples have "
            f"the curves of the data; repetitive ones have few tokens and a low entropy."
        )
        yield Picture(path.name, caption, wide=True)


def token_plot(
    sets: Mapping[str, NDArray[Any]],
    path: Path,
    *,
    title: str,
    held_out: NDArray[Any] | None = None,
) -> None:
    """Draw token frequency over rank, and the distribution of entropies, for sets of ids [B, N]."""
    line_styles = {
        name: {"color": style.color, "linestyle": style.line, "linewidth": 1.4}
        for name, style in styles_of(list(sets)).items()
    }
    shown = dict(sets)
    if held_out is not None:
        name = "held-out text"
        shown[name], line_styles[name] = held_out, {"color": "#888888", "linestyle": "--"}
    figure = figure_of(9.6, 4.2)
    ranks, entropies = figure.subplots(1, 2)
    for name, tokens in shown.items():
        counts = np.sort(np.unique(tokens, return_counts=True)[1])[::-1]
        ranks.plot(
            np.arange(1, len(counts) + 1), counts / counts.sum(), label=name, **line_styles[name]
        )
        entropies.ecdf(sample_entropies(tokens), **line_styles[name])
    ranks.set(xscale="log", yscale="log", xlabel="rank of a token", ylabel="share of all tokens")
    entropies.set(xlabel="entropy, bits", ylabel="share of samples with at most this entropy")
    for axis in (ranks, entropies):
        axis.grid(alpha=0.3)
    ranks.legend(fontsize=8)
    figure.suptitle(title)
    save_figure(figure, path)


def _excerpts(sets: Sequence[SampleSet], baseline: Passages | None) -> dict[str, list[str]]:
    """The first samples of each solver at its largest number of steps, and held-out text."""
    largest = {(found.model, found.solver): found for found in sets}  # ordered by steps
    several = len({found.model for found in sets}) > 1
    excerpts = {}
    for found in largest.values():
        texts, title = found.texts, found.title if several else str(found)
        shown = texts[:_EXCERPTS]
        excerpts[f"{title}: {len(shown)} of {len(texts):,} samples"] = shown
    if baseline:
        excerpts["Held-out text for comparison"] = baseline.texts[:_EXCERPTS]
    return excerpts
