"""Tokenizers of text: what bytes, characters and byte pairs have in common.

Text has one special token, the end of a document. It stands between documents, and fills up the
last window; as in GPT-2 it is begin, end and padding at once. Text never makes it: the characters
`<|endoftext|>` in a document are characters.
"""

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError

END = "<|endoftext|>"  # how `decode` shows the end of a document, whatever the vocabulary calls it
MAX_HOLE = 65_536

_HOLE = re.compile(r"\[\[|\[([0-9]+)\]|\[")


class TextTokenizer(Tokenizer):
    """Text to ids and back; to add one, say how texts become arrays and ids without an end text."""

    @property
    def bos_id(self) -> int:
        return self.eos_id

    @property
    def pad_id(self) -> int:
        return self.eos_id

    @property
    @abstractmethod
    def space_begins_word(self) -> bool:
        """Whether a space is part of the token of the word behind it."""

    @abstractmethod
    def arrays(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The ids of each text, without end tokens."""

    @abstractmethod
    def may_cut(self, text: str, place: int) -> bool:
        """Whether text[:place] and text[place:] have, joined, the ids of the text."""

    @abstractmethod
    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids without end tokens."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.arrays([text])[0].tolist()
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a window; each end token shows as `<|endoftext|>`.

        `text.split(END)` gives the documents, the first and the last perhaps cut. Bytes that are
        not UTF-8, as where a window begins within a character, show as U+FFFD.
        """
        parts: list[list[int]] = [[]]
        for i in map(int, ids):
            if not 0 <= i < self.vocab_size:
                raise InputError(
                    f"id {i} cannot be decoded, allowed are 0..{self.vocab_size - 1}; "
                    f"id {self.vocab_size} would be a mask that no solver step has revealed"
                )
            if i == self.eos_id:
                parts.append([])
            else:
                parts[-1].append(i)
        return END.join(map(self.text_of, parts))

    def pieces(self, text: str, size: int) -> Iterator[str]:
        """The text in pieces of about `size` characters whose ids, joined, are the text's."""
        start = 0
        while len(text) - start > size:
            places = range(start + size, min(len(text), start + 2 * size))
            cut = next((place for place in places if self.may_cut(text, place)), None)
            if cut is None:  # a place may come later, but a search to the end would be quadratic
                break
            yield text[start:cut]
            start = cut
        yield text[start:]

    def holes(self, template: str) -> list[int | None]:
        """`[12]` is twelve free tokens: 'The [12] of the [3] was'; `[[` is a bracket.

        Where words carry the space before them, as in GPT-2's vocabulary, one space before a hole
        is left to the hole's first token.
        """
        ids: list[int | None] = []
        fixed, start, holes = "", 0, 0
        for match in _HOLE.finditer(template):
            fixed += template[start : match.start()]
            start = match.end()
            if match[0] == "[[":
                fixed += "["
                continue
            size = self._hole(template, match)
            ids += self.encode(fixed.removesuffix(" ") if self.space_begins_word else fixed)
            ids += [None] * size
            fixed, holes = "", holes + 1
        if not holes:
            raise InputError(
                f"the template {template!r} has no holes; write [12] for twelve free tokens, as in "
                f"'The [12] of the [3] was'"
            )
        return ids + self.encode(fixed + template[start:])

    def frame(self, ids: Sequence[int | None], length: int, *, whole: bool) -> list[int | None]:
        """The ids themselves, a shorter sequence than others perhaps; or they and free tokens."""
        if whole and len(ids) > length:
            raise InputError(
                f"the template has {len(ids)} tokens, its holes included, for sequences of "
                f"{length}; give a shorter one, or length (--length) {len(ids)}"
            )
        if not whole and len(ids) >= length:
            raise InputError(
                f"the prompt has {len(ids)} tokens, for sequences of {length} with one at least to "
                f"be sampled; give a shorter one, or a larger length (--length)"
            )
        return list(ids) if whole else [*ids] + [None] * (length - len(ids))

    @staticmethod
    def _hole(template: str, match: "re.Match[str]") -> int:
        if match[1] is None:
            raise InputError(
                f"the template {template!r} has a bracket at position {match.start()} that begins "
                f"no hole; write [12] for twelve free tokens and [[ for a bracket"
            )
        digits = match[1].lstrip("0") or "0"
        size = int(digits) if len(digits) < 10 else MAX_HOLE + 1
        if not 1 <= size <= MAX_HOLE:
            raise InputError(
                f"the template {template!r} has the hole {match[0][:20]}; a hole has 1 to "
                f"{MAX_HOLE:,} tokens"
            )
        return size
