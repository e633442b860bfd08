"""Text tokenizers: the base class, and tokenizers for bytes and characters.

Text has one special token, the end-of-text token. As in GPT-2, it is the begin, end and padding
token: it separates documents and pads the last window. Encoding a text never produces it; the
characters `<|endoftext|>` in a document are ordinary text.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.tokenizer import Tokenizer, hole_size
from cwdfm.errors import InputError

END = "<|endoftext|>"  # how `decode` shows the end-of-text token, in every vocabulary
MAX_PIECE = 1 << 20  # maximum characters of a piece of text without boundaries

_ANYWHERE = re.compile("")
_PART = re.compile(r"[^\[]+|\[\[|\[([0-9]+)\]|\[")  # parts of a template


class TextTokenizer(Tokenizer):
    """A tokenizer of text. Subclasses implement the abstract methods for text without END."""

    @property
    def bos_id(self) -> int:
        return self.eos_id

    @property
    def pad_id(self) -> int:
        return self.eos_id

    @property
    def has_line_breaks(self) -> bool:
        return True

    @property
    def words_include_space(self) -> bool:
        """Whether the token of a word includes the space before it."""
        return False

    @property
    def boundary(self) -> re.Pattern[str] | None:
        """Matches where a text can be split and its parts encoded separately; None: nowhere."""
        return None

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The ids of each text, without end-of-text tokens."""

    @abstractmethod
    def decode_text(self, ids: Sequence[int]) -> str:
        """Decode ids that contain no end-of-text token."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a window, with each end-of-text token shown as `<|endoftext|>`.

        `text.split(END)` returns the documents; the first and the last may be incomplete. Invalid
        UTF-8, as at the start of a window inside a character, is shown as U+FFFD.
        """
        parts: list[list[int]] = [[]]
        for i in map(int, ids):
            if not 0 <= i < self.vocab_size:
                raise self.not_decodable(i)
            if i == self.eos_id:
                parts.append([])
            else:
                parts[-1].append(i)
        return END.join(map(self.decode_text, parts))

    def layout(self, texts: Sequence[str], length: int) -> tuple[list[list[int]], int]:
        """Join the documents, each followed by an end-of-text token, and cut into windows."""
        stream = [i for text in texts for i in (*self.encode(text), self.eos_id)]
        padding = -len(stream) % length
        stream += [self.eos_id] * padding
        return [stream[i : i + length] for i in range(0, len(stream), length)], padding

    def split_text(self, text: str, size: int, most: int = MAX_PIECE) -> Iterator[str]:
        """Split a text into pieces of about `size` characters that can be encoded separately.

        A piece has at most max(2 size, most) characters. If it contains no boundary, as in DNA
        without spaces, it is cut anywhere; only then can the ids differ from those of the entire
        text. Encoding takes about a hundred bytes of memory per character of a piece.
        """
        start = 0
        while self.boundary is not None and len(text) - start > size:
            last = start + max(2 * size, most)
            cut = self.boundary.search(text, start + size, last)
            if cut is None and last >= len(text):
                break
            stop = last if cut is None else cut.start()
            yield text[start:stop]
            start = stop
        yield text[start:]

    def encode_template(self, template: str) -> list[int | None]:
        """See `encode_holes`."""
        return encode_holes(template, self.encode, self.words_include_space)

    def frame(self, ids: Sequence[int | None], length: int, *, whole: bool) -> list[int | None]:
        """The ids unchanged if `whole`, else followed by free tokens up to `length`."""
        if whole and len(ids) > length:
            raise InputError(
                f"the template has {len(ids)} tokens including holes, but sequences have length "
                f"{length}; shorten it, or set `length={len(ids)}`",
                fields=("length",),
            )
        if not whole and len(ids) >= length:
            raise InputError(
                f"the prompt has {len(ids)} tokens, but sequences have length {length} and at "
                f"least one token must be free; shorten it, or increase length=",
                fields=("length",),
            )
        return list(ids) if whole else [*ids] + [None] * (length - len(ids))


def encode_holes(
    template: str, encode: Callable[[str], list[int]], words_include_space: bool
) -> list[int | None]:
    """Encode a template: `[12]` is a hole of twelve free tokens (None), and `[[` is a bracket.

    For example, 'The [12] of the [3] was'. If the tokens of words include the space before them, as
    in GPT-2, one space before a hole becomes part of the hole.
    """
    ids: list[int | None] = []
    literal = ""
    for match in _PART.finditer(template):
        if match[0] == "[[" or match[0][0] != "[":
            literal += match[0].replace("[[", "[")
            continue
        if match[1] is None:
            raise InputError(
                f"the template {template!r} has a bracket at position {match.start()} that "
                f"does not start a hole; write [12] for twelve free tokens and [[ for a bracket"
            )
        ids += encode(literal.removesuffix(" ") if words_include_space else literal)
        ids += [None] * hole_size(template, match[1])
        literal = ""
    if None not in ids:
        raise InputError(
            f"the template {template!r} has no holes; write [12] for twelve free tokens, as "
            f"in 'The [12] of the [3] was'"
        )
    return ids + encode(literal)


@dataclass(frozen=True)
class ByteTokenizer(TextTokenizer, kind="bytes"):
    """UTF-8 bytes have the ids 0..255; the end-of-text token has the id 256."""

    vocab_size, eos_id = 257, 256
    boundary = _ANYWHERE

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def decode_text(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls()


@dataclass(frozen=True)
class CharacterTokenizer(TextTokenizer, kind="characters"):
    """Characters have the ids 0, 1, ... in code point order; the end-of-text token comes last."""

    characters: str
    boundary = _ANYWHERE

    def __post_init__(self) -> None:
        if not self.characters or list(self.characters) != sorted(set(self.characters)):
            raise InputError(
                f"characters must be a non-empty string of distinct characters in ascending order, "
                f"got {self.characters[:80]!r}; build() creates one from texts"
            )

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        """Build a vocabulary from the characters of texts."""
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        if not characters:
            raise InputError(
                "the texts contain no characters; pass texts with at least one character"
            )
        return cls("".join(sorted(characters)))

    @property
    def vocab_size(self) -> int:
        return len(self.characters) + 1

    @property
    def eos_id(self) -> int:
        return len(self.characters)

    @cached_property
    def _points(self) -> NDArray[np.uint32]:
        return _code_points(self.characters)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return list(map(self._encode, texts))

    def _encode(self, text: str) -> NDArray[Any]:
        points = _code_points(text)
        ids = np.searchsorted(self._points, points)
        known = self._points[np.minimum(ids, len(self._points) - 1)] == points
        if not known.all():
            unknown = "".join(sorted(set(text) - set(self.characters)))
            raise InputError(
                f"the text {text[:40]!r} contains characters that are not in the vocabulary of "
                f"{self.vocab_size}: {unknown[:40]!r}; leave the text out, or build a vocabulary "
                f"that includes them"
            )
        return ids

    def decode_text(self, ids: Sequence[int]) -> str:
        return "".join(self.characters[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["characters"])


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint32)
