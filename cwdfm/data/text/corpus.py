"""The interface of a text corpus, and detokenizers for word-tokenized corpora."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cwdfm.data.dataset import Split
from cwdfm.errors import InputError

_Rules = tuple[tuple[str, str], ...]  # regular expressions and their replacements
# Only pairs of quotation marks within a line, since a single mark may open or close a quotation.
_PAIRS = ((r'" ([^"\n]*?) "', r'"\1"'),)
_SHORT = ((r" n't\b", "n't"), (r" '(s|t|m|d|re|ve|ll|S|T|M|D|RE|VE|LL)\b", r"'\1"))
_PUNCTUATION = (
    (r" ([,.;:!?%])(?=[\s\"'),.;:!?\]]|$)", r"\1"),
    (r"([(\[$£]) ", r"\1"),
    (r" ([)\]])", r"\1"),
)
_WIKITEXT = ((r" @([-,.])@ ", r"\1"), (r"(?<==) (?==)", ""), (r"(?m)^ | $", ""))
_LAMBADA = ((r"`` ?", '"'), (r" ?''", '"'), (r"` ", "'"))

# Lost information, such as the capitalization of LAMBADA, cannot be restored.
DETOKENIZERS: dict[str, _Rules] = {
    # Undoes `@-@`, `@,@` and `@.@` in words, spaces at line ends, and spaces before punctuation.
    "wikitext": (*_WIKITEXT, *_PAIRS, *_SHORT, *_PUNCTUATION),
    # Penn Treebank conventions, including double backticks for quotation marks.
    "lambada": (*_LAMBADA, *_SHORT, *_PUNCTUATION),
    # Penn Treebank conventions, with plain quotation marks.
    "lm1b": (*_PAIRS, *_SHORT, *_PUNCTUATION),
}


def detokenize(text: str, name: str | None) -> str:
    """Undo the word tokenization of a corpus; `name` is a key of DETOKENIZERS, or None."""
    for pattern, replacement in DETOKENIZERS[name] if name else ():
        text = re.sub(pattern, replacement, text)
    return text


class Interrupted(InputError):
    """Preparation stopped for a reason other than the data; the same call resumes it."""


class Document(NamedTuple):
    """One document of a corpus."""

    text: str
    split: Split | None = None  # None: determined by the index of the document (see `pack`)


@dataclass(frozen=True, kw_only=True)
class Corpus(ABC):
    """A corpus of text. A new corpus implements the abstract methods."""

    name: str
    tokenizer: str = "gpt2"  # default tokenizer
    length: int = 1024  # default length
    rows: bool = False  # each document is its own sequence, not joined with others
    detokenizer: str | None = None  # key of DETOKENIZERS, for corpora tokenized into words

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts that can be loaded separately."""
        return ("all",)

    @abstractmethod
    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        """Yield the documents in order, at most `limit` (per split, if the corpus defines one).

        part: None for the training and validation documents. Otherwise only this part, such as
            "test", with all its documents in the split "valid".
        """

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """Identifies the raw data: file names and SHA-256, or hub name and revision."""

    def texts(self, part: str | None, limit: int | None) -> Iterator[str]:
        """The detokenized texts of the documents."""
        return (detokenize(d.text, self.detokenizer) for d in self.documents(part, limit))
