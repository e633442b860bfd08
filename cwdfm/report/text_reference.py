"""Held-out text that samples are compared with."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cwdfm.data import TokenData, load
from cwdfm.data.text import is_prepared
from cwdfm.errors import InputError
from cwdfm.report.sample_set import TEXT
from cwdfm.report.settings import TextSettings
from cwdfm.report.text_samples import Passages

# How to read text that is not prepared, by the kind of the samples' tokenizer.
_TOKENIZERS = {"bytes": "bytes", "characters": "chars", "fast": "gpt2"}
_COMPARED = 8  # samples whose tokens are decoded, to see that the vocabulary is the same


@dataclass(frozen=True, eq=False)
class TextReference:
    """MAUVE compares with `shown`; `row` are as many other windows, scored as if they were samples.

    Both are held out, and in random order as the data have them.
    """

    name: str
    shown: Passages
    row: Passages | None
    about: dict[str, Any]  # where they come from, for scores.json
    wanted: int  # windows that were asked for, a side

    @classmethod
    def load(
        cls, name: str, kind: str, samples: Sequence[Passages], settings: TextSettings
    ) -> Self:
        """From a prepared folder, a corpus or files; refused if they do not fit the samples."""
        length = samples[0].tokens.shape[1]
        if is_prepared(Path(name)):
            data = load(name)
        else:
            data = load(name, length=length, tokenizer=_TOKENIZERS.get(kind))
        _check(name, data, kind, samples[0], length)
        wanted = settings.reference_size or max(len(p.texts) for p in samples)
        size = min(wanted, len(data.valid) // (2 if settings.data_row else 1))
        if size < (settings.folds if settings.data_row else 1):
            raise InputError(
                f"{name} holds {len(data.valid)} held-out windows of {length} tokens, too few to "
                f"compare with in {settings.folds} folds; give more text, fewer --folds, or --data "
                f"none"
            )
        row = Passages.of_data(data, slice(size, 2 * size), length) if settings.data_row else None
        about = {"name": data.name, "windows": size, "source": data.source}
        about["fingerprint"] = hashlib.sha256(data.valid[: 2 * size].tobytes()).hexdigest()
        return cls(data.name, Passages.of_data(data, slice(0, size), length), row, about, wanted)


def _check(name: str, data: TokenData, kind: str, samples: Passages, length: int) -> None:
    """Refuse data of another vocabulary, or of windows too short."""
    if kind not in (data.tokenizer.kind, TEXT):
        raise InputError(
            f"{name} holds tokens of kind {data.tokenizer.kind!r}, the samples {kind!r}; give the "
            f"data that the model was trained on, or --data none"
        )
    for text, row in zip(samples.texts[:_COMPARED], samples.tokens.tolist(), strict=False):
        try:
            same = data.tokenizer.decode(row) == text
        except InputError:
            same = False
        if not same:
            raise InputError(
                f"{name} has another vocabulary than the samples: its tokenizer does not read "
                f"{text[:40]!r} from that sample's tokens; prepare it with the model's tokenizer"
            )
    if data.length < length:
        raise InputError(
            f"{name} holds windows of {data.length} tokens, the samples have {length}; prepare it "
            f"with at least that length"
        )
