"""Texts with the tokens they are made of: what the metrics of text read."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data import TokenData
from cwdfm.errors import InputError
from cwdfm.report.sample_set import File, SampleSet


@dataclass(frozen=True, eq=False)
class Passages:
    """Texts of one length in tokens; `sha256` tells them from others."""

    texts: list[str]
    tokens: NDArray[np.int64]  # [B, N]
    sha256: tuple[str, ...]

    @classmethod
    def of_samples(cls, found: SampleSet) -> Self:
        """The samples of a set, file after file; refused where a sample is none."""
        rows = [row for file in found.files for row in _tokens(file)]
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise InputError(
                f"{found.files[0].path} holds sequences of {lengths[0]} to {lengths[-1]} tokens; "
                f"samples that are compared have one length"
            )
        return cls(found.texts, np.array(rows), tuple(file.sha256 for file in found.files))

    @classmethod
    def of_data(cls, data: TokenData, rows: slice, length: int) -> Self:
        """Held-out windows, cut to `length` tokens."""
        tokens = np.asarray(data.valid[rows, :length]).astype(np.int64)
        texts = [data.tokenizer.decode(row) for row in tokens.tolist()]
        return cls(texts, tokens, (hashlib.sha256(tokens.tobytes()).hexdigest(),))


def _tokens(file: File) -> list[list[int]]:
    samples = file.samples
    if samples.tokens is None:
        other = "" if "tokenizer" in samples.head else ", or of molecules one SMILES a line alone"
        raise InputError(
            f"{file.path} holds texts without their tokens, which entropy and repetition are "
            f"counted in; give a .jsonl file as `cwdfm sample` writes it{other}"
        )
    for number, (text, row) in enumerate(zip(samples.texts, samples.tokens, strict=True), start=1):
        if not text or not row:
            raise InputError(
                f"sample {number} of {file.path} is empty; a sample of text has at least one "
                f"token and one character: leave the file out, or sample again"
            )
    return samples.tokens


def common_length(passages: Sequence[Passages], names: Sequence[str]) -> int:
    """The one length of all; sets of different lengths are refused, whose scores do not compare."""
    lengths = {int(p.tokens.shape[1]): name for p, name in zip(passages, names, strict=True)}
    if len(lengths) > 1:
        told = ", ".join(f"{name} has {length}" for length, name in lengths.items())
        raise InputError(
            f"perplexity, entropy and MAUVE depend on the length, so samples of different lengths "
            f"need reports of their own: tokens a sample, {told}"
        )
    (length,) = lengths
    return length
