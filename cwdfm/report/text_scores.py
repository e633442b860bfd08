"""Scores of a set of texts. Those that need a language model are cached in the report folder."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from cwdfm.cache import cache_json, cached_json
from cwdfm.errors import InputError, load_extra
from cwdfm.metrics.evaluator import LoadedEvaluatorLM
from cwdfm.metrics.folds import fold_slices
from cwdfm.metrics.mauve import MIN_SAMPLES, Embedder, Mauve, mauve_score
from cwdfm.metrics.overlap import Overlap, ngram_overlap
from cwdfm.metrics.perplexity import END, Perplexity, generative_perplexity
from cwdfm.metrics.text import TextStatistics, text_statistics
from cwdfm.metrics.text_model import model_fingerprint
from cwdfm.report.table import format_estimate
from cwdfm.report.text_data import COMPUTE, Passages, TextSettings

CACHE = "cache"  # the folder of cached scores in the report folder
SHOWN_NGRAM = 8  # n of the n-grams in the column “in training”
COLUMNS = (
    *("perplexity", "entropy", "MAUVE", "distinct-2", "repeated", "in training"),
    *("calls", "samples"),
)
# Settings that are not part of the cache key of a perplexity. The fingerprint of the evaluator LM
# is.
_NOT_PERPLEXITY = (
    *("eval_model", "eval_revision", *COMPUTE, "reference_size", "data_row", "mauve"),
    "overlap_tokens",
)

S = TypeVar("S", Perplexity, Mauve, Overlap)


@dataclass(frozen=True)
class TextScores:
    """The scores of a set of texts."""

    perplexity: Perplexity | None  # None without an evaluator LM
    statistics: TextStatistics
    mauve: Mauve | None
    overlap: Overlap | None = None  # None without training text

    def estimates(self) -> dict[str, tuple[float, float | None]]:
        """The scores that were computed, with their standard deviations."""
        entropy = self.statistics.entropy
        estimates = {"entropy": (entropy.value, entropy.fold_std)}
        if self.perplexity:
            perplexity = self.perplexity.perplexity
            estimates["perplexity"] = (perplexity.value, perplexity.fold_std)
        if self.mauve:
            estimates["MAUVE"] = (self.mauve.mauve, self.mauve.std)
        return estimates

    def cells(self, calls: str = "-") -> tuple[str, ...]:
        """The cells of a row under COLUMNS."""
        statistics = self.statistics
        shown = {name: format_estimate(*estimate) for name, estimate in self.estimates().items()}
        if len(statistics.distinct) > 1:
            shown["distinct-2"] = f"{statistics.distinct[1].value:.3f}"
        if statistics.repetition:
            shown["repeated"] = f"{statistics.repetition.value:.3f}"
        if self.overlap and (share := self.overlap.shares.get(SHOWN_NGRAM)):
            shown["in training"] = f"{share.value:.3f}"
        shown |= {"calls": calls, "samples": f"{statistics.samples:,}"}
        return tuple(shown.get(name, "-") for name in COLUMNS)

    def to_json(self) -> dict[str, Any]:
        return {
            "perplexity": self.perplexity and self.perplexity.to_json(),
            "statistics": self.statistics.to_json(),
            "mauve": self.mauve and self.mauve.to_json(),
            "overlap": self.overlap and self.overlap.to_json(),
        }


class TextScorer:
    """Computes scores with one evaluator LM and one set of held-out text.

    `prepare` loads the models for scores that are not cached.
    """

    def __init__(
        self,
        settings: TextSettings,
        reference: Passages | None,
        report: Path,
        log: Callable[[str], object],
        training: NDArray[Any] | None = None,
    ) -> None:
        self.settings, self.reference, self.log = settings, reference, log
        self.training = training
        self.folder = report / CACHE
        self.evaluator_id = model_fingerprint(settings.eval_model)
        if settings.eval_revision is not None:
            self.evaluator_id["revision"] = settings.eval_revision

    def prepare(self, sets: Sequence[Passages]) -> None:
        """Check the sets and load all required models, before any score is computed."""
        for passages in sets:
            fold_slices(len(passages.texts), self.settings.folds)
        scored = sets if self.settings.has_evaluator else []
        unscored = [p for p in scored if cached_json(self.folder, self._perplexity_key(p)) is None]
        compared = [p for p in sets if self.has_mauve(p)]
        if any(cached_json(self.folder, self._mauve_key(p)) is None for p in compared):
            load_extra("mauve", "text")
            _ = self.features
        if unscored:
            _ = self.evaluator
            if not self.settings.retokenize:
                for passages in unscored:
                    check_same_decoding(self.evaluator, passages)
        self.folder.mkdir(parents=True, exist_ok=True)

    def score(self, passages: Passages) -> TextScores:
        """Compute the scores of a set, or read them from the cache."""
        perplexity = mauve = overlap = None
        if self.settings.has_evaluator:
            key = self._perplexity_key(passages)
            perplexity = self._cached(Perplexity, key, lambda: self._perplexity(passages))
        if self.has_mauve(passages):
            mauve = self._cached(Mauve, self._mauve_key(passages), lambda: self._mauve(passages))
        if (training := self.training) is not None:
            key, folds = self._overlap_key(passages), self.settings.folds
            overlap = self._cached(
                Overlap, key, lambda: ngram_overlap(passages.tokens, training, folds=folds)
            )
        statistics = text_statistics(passages.tokens, folds=self.settings.folds)
        return TextScores(perplexity, statistics, mauve, overlap)

    def has_mauve(self, passages: Passages) -> bool:
        """Whether MAUVE can be computed, which requires features and enough texts in both sets."""
        if self.reference is None or not self.settings.has_features:
            return False
        return min(len(self.reference.not_empty), len(passages.not_empty)) >= MIN_SAMPLES

    @cached_property
    def evaluator(self) -> LoadedEvaluatorLM:
        """The evaluator LM, loaded on first use."""
        self.log(f"loading the evaluator LM {self.settings.eval_model}")
        try:
            return self.settings.evaluator().load()
        except InputError as error:
            raise InputError(
                f"{error}; or skip perplexity with eval_model='none'",
                fields=(*error.fields, "eval_model"),
            ) from error

    @cached_property
    def features(self) -> LoadedEvaluatorLM | Embedder:
        """The feature model of MAUVE, loaded on first use."""
        name = self.settings.mauve
        if name == "evaluator":
            return self.evaluator
        self.log(f"loading the embedding model {name}")
        return Embedder(name, device=self.settings.device)

    @cached_property
    def _reference_features(self) -> NDArray[np.float32]:
        assert self.reference is not None
        return self.features.features(self.reference.not_empty)

    def _cached(self, cls: type[S], key: dict[str, Any], compute: Callable[[], S]) -> S:
        if (stored := cached_json(self.folder, key)) is None:
            stored = compute().to_json()
            cache_json(self.folder, key, stored)
        return cls.from_json(stored)

    def _perplexity(self, passages: Passages) -> Perplexity:
        s = self.settings
        return generative_perplexity(
            passages.texts if s.retokenize else torch.from_numpy(passages.tokens),
            self.evaluator,
            average=s.average,
            first_token=s.first_token,
            after_end=s.after_end,
            end=END if s.retokenize else self.evaluator.loaded.tokenizer.eos_token or END,
            folds=s.folds,
            vocabulary=None if s.retokenize else self.evaluator.vocabulary(),
        )

    def _mauve(self, passages: Passages) -> Mauve:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "MAUVE of")  # the report has a note instead
            features = self.features.features(passages.not_empty)
            score = mauve_score(features, self._reference_features)
        return replace(score, features=self.features.conventions())

    @cached_property
    def _training_digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.training).data).hexdigest()

    def _overlap_key(self, passages: Passages) -> dict[str, Any]:
        compared = {"training": self._training_digest, "folds": self.settings.folds}
        return {"score": "overlap", "sha256": list(passages.sha256), **compared}

    def _perplexity_key(self, passages: Passages) -> dict[str, Any]:
        settings = {k: v for k, v in asdict(self.settings).items() if k not in _NOT_PERPLEXITY}
        key = {"score": "perplexity", "sha256": list(passages.sha256), **settings}
        return key | {"evaluator": self.evaluator_id}

    def _mauve_key(self, passages: Passages) -> dict[str, Any]:
        assert self.reference is not None
        s = self.settings
        own = {"dtype": s.eval_dtype, "context": s.eval_context} if s.mauve == "evaluator" else {}
        return own | {
            "score": "mauve",
            "sha256": list(passages.sha256),
            "reference": list(self.reference.sha256),
            "features": self.evaluator_id if own else model_fingerprint(s.mauve),
        }


def check_same_decoding(evaluator: LoadedEvaluatorLM, passages: Passages) -> None:
    """Raise an error unless the evaluator LM decodes the sampler's tokens to the same texts."""
    tokenizer = evaluator.loaded.tokenizer
    decoded = tokenizer.batch_decode(
        passages.tokens.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    for number, (theirs, text) in enumerate(zip(decoded, passages.texts, strict=True), start=1):
        if theirs.replace(tokenizer.eos_token or END, END) != text:
            raise InputError(
                f"the evaluator LM {evaluator.config.model} and the samples have different "
                f"vocabularies: it decodes the tokens of {text[:40]!r} (sample {number}) to "
                f"{theirs[:40]!r}; set retokenize=True, or choose an evaluator LM with the "
                f"tokenizer of the sampler",
                fields=("retokenize",),
            )
