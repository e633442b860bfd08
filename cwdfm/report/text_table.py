"""A set of texts with its scores: the line of the table, and how to read it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.report.sample_set import SampleSet
from cwdfm.report.settings import TextSettings
from cwdfm.report.text_scores import TextScores

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


@dataclass(frozen=True)
class ScoredText:
    """A set with its scores."""

    samples: SampleSet
    scores: TextScores

    def __str__(self) -> str:
        model, place = self.samples.model, str(self.samples)
        return model if self.samples.solver is None else f"{model}, {place}"

    @property
    def calls(self) -> float | None:
        """Model calls a sample; None where the files do not say."""
        counts = [file.samples.head.get("evaluations") for file in self.samples.files]
        numbers = [n for n in counts if isinstance(n, int)]
        whole = len(numbers) == len(counts)
        return sum(numbers) / len(self.samples.texts) if whole else None

    def to_json(self) -> dict[str, Any]:
        """Every number."""
        scores = self.scores.to_json()
        return {**self.samples.to_json(), "evaluations": self.calls, **scores}


def cells(found: ScoredText) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    calls, samples = found.calls, found.samples
    shown = "-" if calls is None else f"{calls:.4g}"
    steps = str(samples.steps) if samples.steps else "-"
    return samples.solver or "-", steps, *score_cells(found.scores, shown)


def score_cells(scores: TextScores, calls: str = "-") -> tuple[str, ...]:
    """The cells of a row behind solver and steps."""
    judged = scores.perplexity and scores.perplexity.perplexity
    statistics = scores.statistics
    mauve, distinct = scores.mauve, statistics.distinct
    return (
        spread(judged.value, judged.fold_std) if judged else "-",
        spread(statistics.entropy.value, statistics.entropy.fold_std),
        f"{mauve.mauve:.3f} ± {mauve.std:.3f}" if mauve else "-",
        f"{distinct[1].value:.3f}" if len(distinct) > 1 else "-",
        f"{statistics.repetition.value:.3f}" if statistics.repetition else "-",
        calls,
        f"{statistics.samples:,}",
    )


def spread(value: float, std: float | None) -> str:
    """A value with its standard deviation, to the second digit of the latter."""
    if not std or not math.isfinite(std) or not math.isfinite(value):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    digits = min(4, max(0, 1 - math.floor(math.log10(std))))
    return f"{value:,.{digits}f} ± {std:,.{digits}f}"


def meaning(settings: TextSettings, data: str | None) -> tuple[str, ...]:
    """How to read the table."""
    compared = (
        f"MAUVE compares the samples with held-out text of {data}, by the features of "
        f"{'the evaluator' if settings.mauve == 'evaluator' else 'an embedding model'}: 1 "
        f"for texts that cannot be told apart, less for what samples lack or have too much of. It "
        f"depends on the number of samples, so only sets of one size compare; the row of the data, "
        f"as many other held-out texts, shows how much can be reached."
        if data and settings.compares
        else "MAUVE, the closeness to held-out text, is left out here."
    )
    average = (
        "the exponential of its mean surprise over all tokens"
        if settings.average == "corpus"
        else "the mean over samples of the exponential of their mean surprise"
    )
    judged = (
        f"Perplexity is how surprising a language model that has nothing to do with the sampler, "
        f"the evaluator {Path(settings.eval_model).name}, finds the samples: {average}. Lower "
        f"is better, but repetitive text is not surprising either, so it says nothing alone."
        if settings.evaluates
        else "Perplexity, how surprising another language model finds the samples, is left out."
    )
    return (
        f"{judged} Entropy is how many bits the choice of a token takes within one sample: text "
        f"that repeats few words has little. Good samples have the data's entropy and a low "
        f"perplexity.",
        compared,
        "Distinct-2 is the share of different pairs of tokens in a sample, “repeated” the share "
        "of its runs of four tokens that stood in it before; “calls” is how many "
        "times a sample needed the model, which is what sampling costs.",
        f"Behind ± is one standard deviation: of perplexity and entropy over {settings.folds} "
        f"folds of the samples, of MAUVE over bootstrap resamples. A fold is smaller than the "
        f"whole, so the whole is steadier than that.",
    )
