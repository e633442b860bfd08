"""The tokenizer of data with one text per sequence: proteins, DNA, reactions, sentences."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Self, cast

from numpy.typing import NDArray

from cwdfm.data.text.tokenizer import CharacterTokenizer, TextTokenizer
from cwdfm.data.tokenizer import tokenizer_from_json
from cwdfm.errors import InputError


@dataclass(frozen=True)
class RowTokenizer(TextTokenizer, kind="rows"):
    """A text tokenizer for sequences that consist of a text, an end-of-text token and padding.

    It has the same ids as `inner`. Padding consists of end-of-text tokens, so a sequence is decoded
    up to the first one.
    """

    inner: TextTokenizer

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def eos_id(self) -> int:
        return self.inner.eos_id

    @property
    def has_line_breaks(self) -> bool:
        characters = self.inner.characters if isinstance(self.inner, CharacterTokenizer) else "\n"
        return characters.splitlines() != [characters]

    @property
    def words_include_space(self) -> bool:
        return self.inner.words_include_space

    @property
    def boundary(self) -> re.Pattern[str] | None:
        return self.inner.boundary

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return self.inner.encode_batch(texts)

    def decode_text(self, ids: Sequence[int]) -> str:
        return self.inner.decode_text(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end-of-text token."""
        return self.inner.decode(takewhile(lambda i: i != self.eos_id, map(int, ids)))

    def layout(self, texts: Sequence[str], length: int) -> tuple[list[list[int]], int]:
        """One text per sequence, with its own padding."""
        rows = [self.frame(self.encode(text), length, whole=True) for text in texts]
        return cast(list[list[int]], rows), 0

    def frame(self, ids: Sequence[int | None], length: int, *, whole: bool) -> list[int | None]:
        """The ids, followed by end-of-text tokens if `whole`, else by free tokens."""
        if len(ids) >= length:
            raise InputError(
                f"{len(ids)} tokens are given, but sequences of length {length} have room for "
                f"{length - 1} and the end-of-text token; pass fewer tokens"
            )
        return [*ids] + [self.eos_id if whole else None] * (length - len(ids))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "of": self.inner.to_json()}

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "of": self.inner.identity}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        inner = tokenizer_from_json(data["of"])
        if not isinstance(inner, TextTokenizer) or isinstance(inner, RowTokenizer):
            raise ValueError(f"the rows have a tokenizer of kind {inner.kind!r}")
        return cls(inner)
