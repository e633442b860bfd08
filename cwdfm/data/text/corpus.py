"""The interface of a text corpus, and detokenizers for corpora distributed as words."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cwdfm.data.dataset import Split
from cwdfm.errors import InputError

_Rules = tuple[tuple[str, str], ...]  # regular expressions and their replacements
# Only complete pairs within a line: a single quotation mark may open or close a quotation.
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
    # `@-@`, `@,@` and `@.@` in words, spaces at line ends, spaced punctuation.
    "wikitext": (*_WIKITEXT, *_PAIRS, *_SHORT, *_PUNCTUATION),
    # Penn Treebank conventions, including double backticks for quotation marks.
    "lambada": (*_LAMBADA, *_SHORT, *_PUNCTUATION),
    # Penn Treebank conventions, with plain quotation marks.
    "lm1b": (*_PAIRS, *_SHORT, *_PUNCTUATION),
}


def detokenize(text: str, name: str | None) -> str:
    """Undo a corpus's tokenization into words; with None the text is unchanged."""
    for pattern, new in DETOKENIZERS[name] if name else ():
        text = re.sub(pattern, new, text)
    return text


class Interrupted(InputError):
    """Preparation stopped for a reason outside the data; the same call resumes it."""


class Document(NamedTuple):
    """One document of a corpus."""

    text: str
    split: Split | None = None  # None: chosen by the document's number, see `pack`


@dataclass(frozen=True, kw_only=True)
class Corpus(ABC):
    """A corpus of text. A new corpus implements the abstract methods."""

    name: str
    tokenizer: str = "gpt2"  # default tokenizer
    length: int = 1024  # default length
    rows: bool = False  # each document is its own sequence, never joined with others
    detokenizer: str | None = None  # key of DETOKENIZERS, for corpora tokenized into words

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts that can be loaded separately."""
        return ("all",)

    @abstractmethod
    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        """The documents in corpus order, at most `limit` (of each split, if it has its own).

        part: None for the training and validation documents; otherwise only the given part, such
        as "test", all of it as the split "valid".
        """

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """What identifies the raw data: file names and SHA-256, or hub name and revision."""

    def texts(self, part: str | None, limit: int | None) -> Iterator[str]:
        """The detokenized texts of the documents."""
        return (detokenize(each.text, self.detokenizer) for each in self.documents(part, limit))
