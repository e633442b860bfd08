"""All scores of a set of texts; those that need a model are computed once and kept."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cwdfm.errors import InputError, load_extra
from cwdfm.metrics.embed import Embedder
from cwdfm.metrics.evaluator import LoadedEvaluatorLM
from cwdfm.metrics.folds import fold_slices
from cwdfm.metrics.mauve import MIN_SAMPLES, FeatureModel, Mauve, mauve_score
from cwdfm.metrics.perplexity import END, Perplexity, generative_perplexity
from cwdfm.metrics.text import TextStatistics, text_statistics
from cwdfm.metrics.text_model import model_fingerprint
from cwdfm.report.score_cache import Cells
from cwdfm.report.settings import TextSettings
from cwdfm.report.text_samples import Passages

# Settings that change how long it takes, not what comes out; and those of the other score.
_ASIDE = ("eval_model", "device", "batch_tokens", "reference_size", "data_row", "mauve")


@dataclass(frozen=True)
class TextScores:
    """What a set of texts is worth."""

    perplexity: Perplexity | None  # where there is an evaluator LM
    statistics: TextStatistics
    mauve: Mauve | None

    def to_json(self) -> dict[str, Any]:
        """Every number, with its conventions."""
        return {
            "perplexity": self.perplexity and self.perplexity.to_json(),
            "statistics": self.statistics.to_json(),
            "mauve": self.mauve and self.mauve.to_json(),
        }


class TextScorer:
    """Scores texts by one evaluator and against one reference.

    Models are loaded when the first score is missing, and all of them before the first is computed.
    """

    def __init__(
        self,
        settings: TextSettings,
        reference: Passages | None,
        report: Path,
        say: Callable[[str], object],
    ) -> None:
        self.settings, self.reference, self.say = settings, reference, say
        self.cells = Cells(report)
        self.evaluator_identity = model_fingerprint(settings.eval_model)
        judged = settings.mauve == "evaluator"
        self.feature_identity = (
            self.evaluator_identity if judged else model_fingerprint(settings.mauve)
        )

    def prepare(self, sets: Sequence[Passages]) -> None:
        """Load what the sets need, and refuse what is wrong with it."""
        for passages in sets:
            fold_slices(len(passages.texts), self.settings.folds)
        judged = sets if self.settings.evaluates else []
        unjudged = [p for p in judged if self.cells.get(self._perplexity_key(p)) is None]
        uncompared = [
            p for p in sets if self.compares(p) and not self.cells.get(self._mauve_key(p))
        ]
        if uncompared:
            load_extra("mauve", "text")
            _ = self.features
        if unjudged:
            _ = self.evaluator
            if not self.settings.retokenize:
                for passages in unjudged:
                    check_reads_alike(self.evaluator, passages)
        self.cells.open()

    def score(self, passages: Passages) -> TextScores:
        """Compute, or find, the scores of a set."""
        return TextScores(
            perplexity=self._perplexity(passages) if self.settings.evaluates else None,
            statistics=text_statistics(passages.tokens, folds=self.settings.folds),
            mauve=self._mauve(passages) if self.compares(passages) else None,
        )

    def compares(self, passages: Passages) -> bool:
        """Whether there is a MAUVE score: it needs features, and some texts on both sides."""
        if self.reference is None or not self.settings.compares:
            return False
        return min(len(self.reference.texts), len(passages.texts)) >= MIN_SAMPLES

    @cached_property
    def evaluator(self) -> LoadedEvaluatorLM:
        """The evaluator in memory."""
        self.say(f"loading the evaluator LM {self.settings.eval_model}")
        try:
            return self.settings.eval_lm().load()
        except InputError as error:
            raise InputError(
                f"{error}; or do without perplexity: evaluator (--eval-model) none"
            ) from error

    @cached_property
    def features(self) -> FeatureModel:
        """The model whose features MAUVE compares."""
        name = self.settings.mauve
        if name == "evaluator":
            return self.evaluator
        self.say(f"loading the embedding model {name}")
        return Embedder(name, device=self.settings.model_device()).load()

    @cached_property
    def _reference_features(self) -> NDArray[np.float32]:
        assert self.reference is not None
        return self.features.features(self.reference.texts)

    def _perplexity(self, passages: Passages) -> Perplexity:
        key = self._perplexity_key(passages)
        if (found := self.cells.get(key)) is None:
            found = self._judged(passages).to_json()
            self.cells.put(key, found)
        return Perplexity.from_json(found)

    def _judged(self, passages: Passages) -> Perplexity:
        s = self.settings
        own = None if s.retokenize else self.evaluator.vocabulary()
        return generative_perplexity(
            passages.texts if s.retokenize else torch.from_numpy(passages.tokens),
            self.evaluator,
            average=s.average,
            first_token=s.first_token,
            after_end=s.after_end,
            end=END if s.retokenize else self.evaluator.loaded.tokenizer.eos_token or END,
            folds=s.folds,
            vocabulary=own,
        )

    def _mauve(self, passages: Passages) -> Mauve:
        key = self._mauve_key(passages)
        if (found := self.cells.get(key)) is None:
            with warnings.catch_warnings():
                # That few samples make a coarse score is said in the report.
                warnings.filterwarnings("ignore", "MAUVE of")
                score = mauve_score(
                    self.features.features(passages.texts), self._reference_features
                )
            found = replace(score, features=self.features.conventions()).to_json()
            self.cells.put(key, found)
        return Mauve.from_json(found)

    def _perplexity_key(self, passages: Passages) -> dict[str, Any]:
        how = {k: v for k, v in asdict(self.settings).items() if k not in _ASIDE}
        key = {"score": "perplexity", "sha256": list(passages.sha256), **how}
        return key | {"evaluator": self.evaluator_identity}

    def _mauve_key(self, passages: Passages) -> dict[str, Any]:
        assert self.reference is not None
        s = self.settings
        how = {"dtype": s.eval_dtype, "context": s.eval_context} if s.mauve == "evaluator" else {}
        return how | {
            "score": "mauve",
            "sha256": list(passages.sha256),
            "reference": list(self.reference.sha256),
            "features": self.feature_identity,
        }


def check_reads_alike(evaluator: LoadedEvaluatorLM, passages: Passages) -> None:
    """Refuse to score tokens as they are by an evaluator LM that reads something else from them."""
    tokenizer = evaluator.loaded.tokenizer
    read = tokenizer.batch_decode(
        passages.tokens.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    for number, (theirs, ours) in enumerate(zip(read, passages.texts, strict=True), start=1):
        if theirs.replace(tokenizer.eos_token or END, END) != ours:
            raise InputError(
                f"the evaluator {evaluator.config.model} has another vocabulary than the samples: "
                f"from the tokens of {ours[:40]!r} (sample {number}) it reads {theirs[:40]!r}; "
                f"leave out --no-retokenize, or give an evaluator with the sampler's tokenizer"
            )
