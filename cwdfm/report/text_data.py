"""Texts with their tokens: the samples of a set, and held-out data to compare with."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data import TokenData, load
from cwdfm.data.text import is_prepared
from cwdfm.errors import InputError
from cwdfm.report.sample_set import TEXT, File, SampleSet

# The tokenizer for data that is not prepared, by the kind of the samples' tokenizer.
_TOKENIZERS = {"bytes": "bytes", "characters": "chars", "fast": "gpt2"}
_DECODED = 8  # samples that are decoded to check that the vocabularies agree


@dataclass(frozen=True, eq=False)
class Passages:
    """Texts of equal length in tokens, with a digest of each source."""

    texts: list[str]
    tokens: NDArray[np.int64]  # [B, N]
    sha256: tuple[str, ...]

    @classmethod
    def of_samples(cls, found: SampleSet) -> Self:
        """The samples of a set; InputError if lengths differ or tokens are missing."""
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
            f"{file.path} contains texts without tokens, which entropy and repetition need; give a "
            f".jsonl file written by `cwdfm sample`{smiles}"
        )
    for number, (text, row) in enumerate(zip(samples.texts, samples.tokens, strict=True), start=1):
        if not text or not row:
            raise InputError(
                f"sample {number} of {file.path} is empty; a text sample needs at least one token "
                f"and one character: omit the file, or sample again"
            )
    return samples.tokens


def check_same_length(passages: Sequence[Passages], names: Sequence[str]) -> None:
    """Require samples of the same length, since scores depend on it."""
    lengths = {int(p.tokens.shape[1]): name for p, name in zip(passages, names, strict=True)}
    if len(lengths) > 1:
        listed = ", ".join(f"{name} has {length}" for length, name in lengths.items())
        raise InputError(
            f"perplexity, entropy and MAUVE depend on the length, so samples of different lengths "
            f"need separate reports; tokens per sample: {listed}"
        )


@dataclass(frozen=True, eq=False)
class TextReference:
    """Held-out text: MAUVE compares with `reference`, and `baseline` is scored like samples.

    Both are disjoint, and in the random order of the dataset.
    """

    name: str
    reference: Passages
    baseline: Passages | None
    about: dict[str, Any]  # provenance, for scores.json
    requested: int  # windows per side

    @classmethod
    def load(
        cls,
        name: str,
        kind: str,
        samples: Sequence[Passages],
        *,
        size: int = 0,
        baseline: bool = True,
        folds: int = 5,
    ) -> Self:
        """Load a prepared folder, a corpus or files that match the samples.

        `size` is the number of windows per side; 0 is the size of the largest sample set.
        """
        length = samples[0].tokens.shape[1]
        if is_prepared(Path(name)):
            data = load(name)
        else:
            data = load(name, length=length, tokenizer=_TOKENIZERS.get(kind))
        _check_matches(name, data, kind, samples[0], length)
        requested = size or max(len(p.texts) for p in samples)
        size = min(requested, len(data.valid) // (2 if baseline else 1))
        if size < (folds if baseline else 1):
            raise InputError(
                f"{name} has {len(data.valid)} held-out windows of {length} tokens, too few for "
                f"{folds} folds; give more text, reduce the number of folds, or set data='none'",
                fields=("data",),
            )
        about = {"name": data.name, "windows": size, "source": data.source}
        about["fingerprint"] = hashlib.sha256(data.valid[: 2 * size].tobytes()).hexdigest()
        other = Passages.of_data(data, slice(size, 2 * size), length) if baseline else None
        first = Passages.of_data(data, slice(0, size), length)
        return cls(data.name, first, other, about, requested)


def _check_matches(name: str, data: TokenData, kind: str, samples: Passages, length: int) -> None:
    """Require data with the vocabulary and at least the length of the samples."""
    if kind not in (data.tokenizer.kind, TEXT):
        raise InputError(
            f"{name} has tokens of kind {data.tokenizer.kind!r}, the samples {kind!r}; give the "
            f"training data of the model, or set data='none'",
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
    if data.length < length:
        raise InputError(
            f"{name} has windows of {data.length} tokens, the samples have {length}; prepare it "
            f"with at least that length"
        )
