"""The interface of a text corpus: documents in a fixed order, and what identifies them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cwdfm.data.dataset import Split
from cwdfm.data.text.detokenize import detokenize
from cwdfm.errors import InputError


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
    detokenizer: str | None = None  # key of DETOKENIZERS, for corpora tokenized into words

    @property
    @abstractmethod
    def part_names(self) -> tuple[str, ...]:
        """The parts that can be loaded separately."""

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
