"""What a corpus is: documents in a fixed order, and what identifies them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cwdfm.data.dataset import Split
from cwdfm.data.text.detokenize import DETOKENIZERS
from cwdfm.errors import InputError


class Interrupted(InputError):
    """The work broke off for a reason outside the data; the same call resumes it."""


class Document(NamedTuple):
    """One document of a corpus as it was read."""

    place: str  # for messages: "a.jsonl, line 7", "document 12"
    text: str
    split: Split | None = None  # None: by its number, see `pack`


@dataclass(frozen=True, kw_only=True)
class Corpus(ABC):
    """A corpus of text. To add one, say where its documents come from."""

    name: str
    tokenizer: str = "gpt2"  # the default
    length: int = 1024  # the default
    detokenizer: str | None = None  # for text tokenised into words: one of DETOKENIZERS

    @property
    @abstractmethod
    def part_names(self) -> tuple[str, ...]:
        """The parts that can be asked for one at a time."""

    @abstractmethod
    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        """The documents in their own order, at most `limit` of them (of each split it brings).

        part: None for all that is for training and for validation; else one part alone, such as
        "test", all of it as "valid".
        """

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """What identifies the raw data: file names and SHA-256, or the hub's name and revision."""

    def texts(self, part: str | None, limit: int | None) -> Iterator[str]:
        """The documents' texts as they will be tokenised."""
        clean = DETOKENIZERS[self.detokenizer] if self.detokenizer else str
        return (clean(document.text) for document in self.documents(part, limit))
