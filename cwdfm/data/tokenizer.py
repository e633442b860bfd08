"""Tokenizers: text to ids and back, with a vocabulary that travels with the data and the model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

from cwdfm.errors import InputError

_KINDS: dict[str, type["Tokenizer"]] = {}


class Tokenizer(ABC):
    """Text to ids 0..vocab_size-1 and back.

    A subclass names its kind, `class SmilesTokenizer(Tokenizer, kind="smiles")`, under which it is
    stored and found again by `tokenizer_from_json`; an abstract one has none.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind is not None:
            cls.kind = kind
            _KINDS[kind] = cls

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """How many ids there are, special tokens included, mask not included."""

    @property
    @abstractmethod
    def pad_id(self) -> int:
        """What fills a sequence up behind its end."""

    @property
    @abstractmethod
    def bos_id(self) -> int:
        """The token before the first one of a molecule or a document."""

    @property
    @abstractmethod
    def eos_id(self) -> int:
        """The token that ends a molecule or a document."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens; InputError if the vocabulary lacks one."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence: of a molecule, or of the documents in a window of text."""

    @abstractmethod
    def holes(self, template: str) -> list[int | None]:
        """The ids of a template for infilling; None stands for each free token."""

    @abstractmethod
    def frame(self, ids: Sequence[int | None], length: int, *, whole: bool) -> list[int | None]:
        """A sequence to sample, around given tokens and holes (None).

        With `whole` they are all there is of it; else they are how it begins, and the rest up to
        `length` is free. InputError if there is no room for them.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything `tokenizer_from_json` needs, `kind` included."""

    @property
    def identity(self) -> dict[str, Any]:
        """What tells tokenizers apart, for checksums and caches: short, the same everywhere."""
        return self.to_json()

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""


def tokenizer_from_json(data: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `to_json` described."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in _KINDS:
        raise InputError(
            f"there is no tokenizer of kind {kind!r}, known are "
            f"{', '.join(map(repr, sorted(_KINDS)))}; a newer release may have written this"
        )
    return _KINDS[kind].from_json(data)
