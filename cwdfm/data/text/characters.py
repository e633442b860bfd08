"""Bytes and characters: vocabularies that need no package."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError


@dataclass(frozen=True)
class ByteTokenizer(TextTokenizer, kind="bytes"):
    """Ids 0..255 are the bytes of UTF-8, 256 is the end of a document."""

    @property
    def vocab_size(self) -> int:
        return 257

    @property
    def eos_id(self) -> int:
        return 256

    @property
    def space_begins_word(self) -> bool:
        return False

    def arrays(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def may_cut(self, text: str, place: int) -> bool:
        return True

    def text_of(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls()


@dataclass(frozen=True)
class CharacterTokenizer(TextTokenizer, kind="characters"):
    """Ids 0, 1, ... are the characters in the order of their code points; the last is the end."""

    characters: str

    def __post_init__(self) -> None:
        if not self.characters or list(self.characters) != sorted(set(self.characters)):
            raise InputError(
                f"characters must be a string of distinct characters in ascending order, at least "
                f"one, got {self.characters[:80]!r}; build() makes one from texts"
            )

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        """The vocabulary of some texts."""
        found: set[str] = set()
        for text in texts:
            found.update(text)
        if not found:
            raise InputError("there are no characters in the texts; give at least one")
        return cls("".join(sorted(found)))

    @property
    def vocab_size(self) -> int:
        return len(self.characters) + 1

    @property
    def eos_id(self) -> int:
        return len(self.characters)

    @property
    def space_begins_word(self) -> bool:
        return False

    @cached_property
    def _points(self) -> NDArray[np.uint32]:
        return _points(self.characters)

    def arrays(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return [self._array(text) for text in texts]

    def _array(self, text: str) -> NDArray[Any]:
        points = _points(text)
        ids = np.searchsorted(self._points, points)
        known = self._points[np.minimum(ids, len(self._points) - 1)] == points
        if not known.all():
            lacking = "".join(sorted(set(text) - set(self.characters)))
            raise InputError(
                f"the text {text[:40]!r} holds characters that the vocabulary of "
                f"{self.vocab_size} lacks: {lacking[:40]!r}; leave it out or build a vocabulary "
                f"that has them"
            )
        return ids

    def may_cut(self, text: str, place: int) -> bool:
        return True

    def text_of(self, ids: Sequence[int]) -> str:
        return "".join(self.characters[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        if not isinstance(characters := data.get("characters"), str):
            raise InputError(
                f"a tokenizer of characters is stored as a string of them, got {data!r}; take the "
                f"one that the data or the model was saved with"
            )
        return cls(characters)


def _points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint32)
