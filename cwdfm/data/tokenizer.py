"""Tokenizers: text to ids and back, with a vocabulary that travels with the data and the model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from cwdfm.errors import InputError

_KINDS: dict[str, type["Tokenizer"]] = {}


class Tokenizer(ABC):
    """Text to ids 0..vocab_size-1 and back.

    A subclass names its kind, `class SmilesTokenizer(Tokenizer, kind="smiles")`, under which it is
    stored and found again by `tokenizer_from_json`.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str, **options: Any) -> None:
        super().__init_subclass__(**options)
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
        """The first token of every sequence."""

    @property
    @abstractmethod
    def eos_id(self) -> int:
        """The token that ends a sequence; whatever follows it is no part of the text."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens; InputError if the vocabulary lacks one."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end token; begin and padding tokens leave no trace."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything `tokenizer_from_json` needs, `kind` included."""

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""

    def pack(self, ids: list[int], length: int) -> list[int]:
        """`<bos> ids <eos> <pad> ...`, `length` ids in all."""
        if len(ids) + 2 > length:
            raise InputError(
                f"{len(ids)} tokens with <bos> and <eos> do not fit into length {length}; "
                f"leave the sequence out or use length >= {len(ids) + 2}"
            )
        return [self.bos_id, *ids, self.eos_id] + [self.pad_id] * (length - len(ids) - 2)


def tokenizer_from_json(data: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `to_json` described."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in _KINDS:
        raise InputError(
            f"there is no tokenizer of kind {kind!r}, known are "
            f"{', '.join(map(repr, sorted(_KINDS)))}; a newer release may have written this"
        )
    return _KINDS[kind].from_json(data)
