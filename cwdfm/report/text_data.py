"""Settings of the text report, the texts of a sample set, and held-out reference text."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data import TokenData, is_prepared, load
from cwdfm.errors import InputError, check_choice, check_integer
from cwdfm.metrics.evaluator import EvaluatorLM, FirstToken
from cwdfm.metrics.perplexity import AfterEnd, Average
from cwdfm.metrics.text_model import Dtype
from cwdfm.report.sample_set import TEXT, File, SampleSet

NONE = "none"  # value of eval_model or mauve that skips the score
# Settings that do not affect scores.
COMPUTE = ("batch_tokens", "device", "trust_remote_code")
# The tokenizer for raw reference data, by the kind of the samples' tokenizer.
_TOKENIZERS = {"bytes": "bytes", "characters": "chars", "fast": "gpt2"}
_DECODED = 8  # samples to decode when checking that the vocabularies agree


@dataclass(frozen=True)
class TextSettings:
    """Settings of the text metrics; see `metrics.perplexity` and `metrics.mauve`."""

    # Evaluator LM for perplexity: a causal LM as a hub name, a folder or a .gguf file; or none.
    eval_model: str = "gpt2-large"
    eval_dtype: Dtype = "float32"  # dtype of the evaluator LM
    eval_context: int = 1024  # context of the evaluator LM in tokens; longer texts use windows
    retokenize: bool = True  # score texts; if false, score the sampler's tokens (same vocabulary)
    average: Average = "corpus"  # perplexity over all tokens, or averaged over samples
    first_token: FirstToken = "skip"  # skip the first token, or score it after a start token
    after_end: AfterEnd = "keep"  # keep text after the first end token, or cut it off
    folds: int = 5  # number of folds for standard deviations
    # Features for MAUVE: evaluator (the evaluator LM), a folder with a sentence-embedding model, or
    # none.
    mauve: str = "evaluator"
    reference_size: int = 0  # held-out texts for MAUVE; 0: as many as the largest sample set has
    data_row: bool = True  # also score other held-out texts, as a baseline
    # Number of training tokens in which to search for n-grams of the samples; 0 for none.
    overlap_tokens: int = 100_000_000
    batch_tokens: int = 0  # tokens per forward pass; 0: as many as fit in available memory
    device: str = "auto"  # device of the evaluator LM: auto, cpu, cuda, cuda:1, ...
    eval_revision: str | None = None  # commit of an evaluator LM on the hub; default: the latest
    # Execute Python code from the repository of the evaluator LM. A hub name also needs
    # --eval-revision.
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_integer("folds", self.folds)
        check_integer("reference_size", self.reference_size, 0)
        check_integer("overlap_tokens", self.overlap_tokens, 0)
        check_integer("batch_tokens", self.batch_tokens, 0)
        check_choice("average", self.average, ("corpus", "sample"))
        check_choice("first_token", self.first_token, ("skip", "start"))
        check_choice("after_end", self.after_end, ("keep", "cut"))
        self.evaluator()

    def changed(self) -> dict[str, Any]:
        """The settings that affect scores and differ from their defaults."""
        values = ((f, getattr(self, f.name)) for f in fields(self) if f.name not in COMPUTE)
        return {field.name: value for field, value in values if value != field.default}

    @property
    def has_evaluator(self) -> bool:
        """Whether perplexity is computed."""
        return self.eval_model != NONE

    @property
    def has_features(self) -> bool:
        """Whether MAUVE is computed if there is held-out text."""
        return self.has_evaluator if self.mauve == "evaluator" else self.mauve != NONE

    def evaluator(self) -> EvaluatorLM:
        """The configuration of the evaluator LM."""
        return EvaluatorLM(
            self.eval_model,
            dtype=self.eval_dtype,
            context=self.eval_context,
            device=self.device,
            batch_tokens=self.batch_tokens or None,
            revision=self.eval_revision,
            trust_remote_code=self.trust_remote_code,
        )


@dataclass(frozen=True, eq=False)
class Passages:
    """Texts of equal length in tokens, with a digest of each source."""

    texts: list[str]
    tokens: NDArray[np.int64]  # [B, N]
    sha256: tuple[str, ...]

    @property
    def not_empty(self) -> list[str]:
        """The texts with at least one character; only these have features."""
        return [text for text in self.texts if text]

    @classmethod
    def of_samples(cls, found: SampleSet) -> Self:
        """The samples of a set; raises InputError if lengths differ or tokens are missing."""
        rows = [row for file in found.files for row in _tokens(file)]
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise InputError(
                f"{found.files[0].path} contains sequences of {lengths[0]} to {lengths[-1]} "
                f"tokens; all samples must have the same length"
            )
        return cls(found.texts, np.array(rows), tuple(file.sha256 for file in found.files))

    @classmethod
    def of_data(cls, data: TokenData, rows: slice, length: int) -> Self:
        """Held-out windows, truncated to `length` tokens."""
        tokens = np.asarray(data.valid[rows, :length]).astype(np.int64)
        texts = [data.tokenizer.decode(row) for row in tokens.tolist()]
        return cls(texts, tokens, (hashlib.sha256(tokens.tobytes()).hexdigest(),))


def _tokens(file: File) -> list[list[int]]:
    samples = file.samples
    if samples.tokens is None:
        smiles = "" if "tokenizer" in samples.head else ", or for molecules one SMILES per line"
        raise InputError(
            f"{file.path} contains no tokens, which entropy and repetition are computed from; pass "
            f"a .jsonl file written by `cwdfm sample`{smiles}"
        )
    if [] in samples.tokens:
        raise InputError(
            f"sample {samples.tokens.index([]) + 1} of {file.path} has no tokens; omit the file, "
            f"or sample again"
        )
    return samples.tokens


def read_passages(sets: Sequence[SampleSet]) -> list[Passages]:
    """The texts of each set, which must have the same length, since scores depend on it."""
    passages = [Passages.of_samples(found) for found in sets]
    lengths = {p.tokens.shape[1]: s.files[0].path for p, s in zip(passages, sets, strict=True)}
    if len(lengths) > 1:
        listed = ", ".join(f"{path} has {length}" for length, path in lengths.items())
        raise InputError(
            f"perplexity, entropy and MAUVE depend on the length, so samples of different lengths "
            f"require separate reports; tokens per sample: {listed}"
        )
    return passages


@dataclass(frozen=True, eq=False)
class TextReference:
    """Held-out text: the `reference` for MAUVE, and a `baseline` that is scored like samples.

    They are disjoint, and in the random order of the dataset.
    """

    name: str
    reference: Passages
    baseline: Passages | None
    about: dict[str, Any]  # provenance, for scores.json
    requested: int  # requested number of reference windows
    # Training windows in which to search for n-grams of the samples.
    training: NDArray[Any] | None = None

    @classmethod
    def load(
        cls,
        name: str,
        kind: str,
        samples: Sequence[Passages],
        settings: TextSettings,
        column: str | None = None,
    ) -> Self:
        """Load a prepared folder, a corpus or files that match the samples."""
        length = samples[0].tokens.shape[1]
        if is_prepared(Path(name)):
            data = load(name, column=column)
        else:
            data = load(name, length=length, column=column, tokenizer=_TOKENIZERS.get(kind))
        _check_matches(name, data, kind, samples[0])
        requested = settings.reference_size or max(len(p.texts) for p in samples)
        size = min(requested, len(data.valid) // (2 if settings.data_row else 1))
        minimum = settings.folds if settings.data_row else 1
        if requested < minimum:
            raise InputError(
                f"reference_size={requested} is less than the {minimum} folds; use at least "
                f"{minimum}, reduce the number of folds, or set data_row=False",
                fields=("reference_size", "data_row"),
            )
        if size < minimum:
            raise InputError(
                f"{name} has {len(data.valid)} held-out windows of {length} tokens, too few for "
                f"{settings.folds} folds; use more text, reduce the number of folds, or set "
                f"data='none'",
                fields=("data",),
            )
        about = {"name": data.name, "windows": size, "source": data.source}
        about["fingerprint"] = hashlib.sha256(data.valid[: 2 * size].tobytes()).hexdigest()
        first = Passages.of_data(data, slice(0, size), length)
        other = Passages.of_data(data, slice(size, 2 * size), length) if settings.data_row else None
        windows = settings.overlap_tokens // data.length
        training = data.train[:windows] if windows and len(data.train) else None
        return cls(data.name, first, other, about, requested, training)


def _check_matches(name: str, data: TokenData, kind: str, samples: Passages) -> None:
    """Raise an error if data and samples have different vocabularies, or the data is shorter."""
    if kind not in (data.tokenizer.kind, TEXT):
        raise InputError(
            f"{name} has tokens of kind {data.tokenizer.kind!r}, but the samples have {kind!r}; "
            f"pass the training data of the model, or set data='none'",
            fields=("data",),
        )
    for text, row in zip(samples.texts[:_DECODED], samples.tokens.tolist(), strict=False):
        try:
            same = data.tokenizer.decode(row) == text
        except InputError:
            same = False
        if not same:
            raise InputError(
                f"{name} and the samples have different vocabularies: its tokenizer does not "
                f"decode the tokens of {text[:40]!r} to that text; prepare the data with the "
                f"tokenizer of the model"
            )
    if data.length < (length := samples.tokens.shape[1]):
        raise InputError(
            f"{name} has windows of {data.length} tokens, but the samples have {length}; prepare "
            f"it with at least that length"
        )
