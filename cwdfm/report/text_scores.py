"""Scores of a set of texts. Scores that need a language model are cached in the report folder."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cwdfm.cache import Cache
from cwdfm.errors import InputError, check_choice, check_integer, load_extra
from cwdfm.metrics.evaluator import EvaluatorLM, FirstToken, LoadedEvaluatorLM
from cwdfm.metrics.folds import fold_slices
from cwdfm.metrics.mauve import MIN_SAMPLES, Embedder, FeatureModel, Mauve, mauve_score
from cwdfm.metrics.perplexity import END, AfterEnd, Average, Perplexity, generative_perplexity
from cwdfm.metrics.text import TextStatistics, text_statistics
from cwdfm.metrics.text_model import Dtype, model_fingerprint
from cwdfm.report.text_data import Passages

CACHE = "cache"  # the folder of cached scores in the report folder
NONE = "none"  # as eval_model or mauve: skip that score
_COMPUTE = ("batch_tokens", "device")  # settings that affect speed, not scores
# Settings that do not affect perplexity; the evaluator LM is identified by its fingerprint.
_NOT_PERPLEXITY = ("eval_model", *_COMPUTE, "reference_size", "data_row", "mauve")


@dataclass(frozen=True)
class TextSettings:
    """Settings of the text metrics; see `metrics.perplexity` and `metrics.mauve`."""

    # Evaluator LM for perplexity: a causal LM as a hub name, a folder or a .gguf file; or none.
    eval_model: str = "gpt2-large"
    eval_dtype: Dtype = "float32"  # dtype of the evaluator LM
    eval_context: int = 1024  # context of the evaluator LM in tokens; longer texts use windows
    retokenize: bool = True  # or score the sampler's tokens, if the vocabularies are the same
    average: Average = "corpus"  # perplexity over all tokens, or the mean over samples
    first_token: FirstToken = "skip"  # do not score it, or prepend the start token
    after_end: AfterEnd = "keep"  # or cut each sample at its first end token
    folds: int = 5  # folds of a sample set, for standard deviations
    # Features for MAUVE: of the evaluator LM, of a folder with a sentence-embedding model, or none.
    mauve: str = "evaluator"
    reference_size: int = 0  # held-out texts for MAUVE; 0 for the size of the largest sample set
    data_row: bool = True  # score further held-out texts as a baseline
    batch_tokens: int = 0  # tokens per forward pass; 0 chooses by the free memory
    device: str = "auto"  # device of the evaluator LM: auto, cpu, cuda, cuda:1, ...

    def __post_init__(self) -> None:
        check_integer("folds", self.folds)
        check_integer("reference_size", self.reference_size, 0)
        check_integer("batch_tokens", self.batch_tokens, 0)
        check_choice("average", self.average, ("corpus", "sample"))
        check_choice("first_token", self.first_token, ("skip", "start"))
        check_choice("after_end", self.after_end, ("keep", "cut"))
        self.evaluator()

    def changed(self) -> dict[str, Any]:
        """The settings that affect scores and differ from their defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return {k: v for k, v in values.items() if v != defaults[k] and k not in _COMPUTE}

    @property
    def has_evaluator(self) -> bool:
        """Whether perplexity is computed."""
        return self.eval_model != NONE

    @property
    def has_features(self) -> bool:
        """Whether MAUVE is computed, given held-out text."""
        return self.has_evaluator if self.mauve == "evaluator" else self.mauve != NONE

    def evaluator(self) -> EvaluatorLM:
        """The configuration of the evaluator LM."""
        return EvaluatorLM(
            self.eval_model,
            dtype=self.eval_dtype,
            context=self.eval_context,
            device=self.model_device,
            batch_tokens=self.batch_tokens or None,
        )

    @property
    def model_device(self) -> str | None:
        """The device for the metrics, where None is a GPU if there is one."""
        return None if self.device == "auto" else self.device


@dataclass(frozen=True)
class TextScores:
    """The scores of a set of texts."""

    perplexity: Perplexity | None  # None without an evaluator LM
    statistics: TextStatistics
    mauve: Mauve | None

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {
            "perplexity": self.perplexity and self.perplexity.to_json(),
            "statistics": self.statistics.to_json(),
            "mauve": self.mauve and self.mauve.to_json(),
        }


class TextScorer:
    """Computes scores with one evaluator LM and one set of held-out text.

    `prepare` loads the models that are needed for scores missing in the cache.
    """

    def __init__(
        self,
        settings: TextSettings,
        reference: Passages | None,
        report: Path,
        log: Callable[[str], object],
    ) -> None:
        self.settings, self.reference, self.log = settings, reference, log
        self.cache = Cache(report / CACHE)
        self.evaluator_id = model_fingerprint(settings.eval_model)
        own = settings.mauve == "evaluator"
        self.feature_id = self.evaluator_id if own else model_fingerprint(settings.mauve)

    def prepare(self, sets: Sequence[Passages]) -> None:
        """Check the sets, and load all models before the first score is computed."""
        for passages in sets:
            fold_slices(len(passages.texts), self.settings.folds)
        scored = sets if self.settings.has_evaluator else []
        unscored = [p for p in scored if self.cache.json(self._perplexity_key(p)) is None]
        compared = [p for p in sets if self.has_mauve(p)]
        if any(self.cache.json(self._mauve_key(p)) is None for p in compared):
            load_extra("mauve", "text")
            _ = self.features
        if unscored:
            _ = self.evaluator
            if not self.settings.retokenize:
                for passages in unscored:
                    check_same_decoding(self.evaluator, passages)
        self.cache.folder.mkdir(parents=True, exist_ok=True)

    def score(self, passages: Passages) -> TextScores:
        """Compute the scores of a set, or read them from the cache."""
        return TextScores(
            perplexity=self._perplexity(passages) if self.settings.has_evaluator else None,
            statistics=text_statistics(passages.tokens, folds=self.settings.folds),
            mauve=self._mauve(passages) if self.has_mauve(passages) else None,
        )

    def has_mauve(self, passages: Passages) -> bool:
        """Whether MAUVE can be computed: it needs features and enough texts on both sides."""
        if self.reference is None or not self.settings.has_features:
            return False
        return min(len(self.reference.texts), len(passages.texts)) >= MIN_SAMPLES

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
    def features(self) -> FeatureModel:
        """The feature model of MAUVE, loaded on first use."""
        name = self.settings.mauve
        if name == "evaluator":
            return self.evaluator
        self.log(f"loading the embedding model {name}")
        return Embedder(name, device=self.settings.model_device)

    @cached_property
    def _reference_features(self) -> NDArray[np.float32]:
        assert self.reference is not None
        return self.features.features(self.reference.texts)

    def _perplexity(self, passages: Passages) -> Perplexity:
        key = self._perplexity_key(passages)
        if (found := self.cache.json(key)) is None:
            found = self._compute_perplexity(passages).to_json()
            self.cache.put_json(key, found)
        return Perplexity.from_json(found)

    def _compute_perplexity(self, passages: Passages) -> Perplexity:
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
        key = self._mauve_key(passages)
        if (found := self.cache.json(key)) is None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "MAUVE of")  # the report has a note instead
                score = mauve_score(
                    self.features.features(passages.texts), self._reference_features
                )
            found = replace(score, features=self.features.conventions()).to_json()
            self.cache.put_json(key, found)
        return Mauve.from_json(found)

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
            "features": self.feature_id,
        }


def check_same_decoding(evaluator: LoadedEvaluatorLM, passages: Passages) -> None:
    """Require that the evaluator LM decodes the tokens of the sampler to the same texts."""
    tokenizer = evaluator.loaded.tokenizer
    decoded = tokenizer.batch_decode(
        passages.tokens.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    for number, (theirs, ours) in enumerate(zip(decoded, passages.texts, strict=True), start=1):
        if theirs.replace(tokenizer.eos_token or END, END) != ours:
            raise InputError(
                f"the evaluator LM {evaluator.config.model} and the samples have different "
                f"vocabularies: it decodes the tokens of {ours[:40]!r} (sample {number}) to "
                f"{theirs[:40]!r}; set retokenize=True, or choose an "
                f"evaluator LM with the tokenizer of the sampler",
                fields=("retokenize",),
            )
