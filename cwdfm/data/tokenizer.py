"""The tokenizer interface. Prepared data and models store their tokenizer as JSON."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from lzma import LZMAError
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.errors import InputError

MAX_HOLE = 65_536  # maximum number of free tokens in one hole of a template
_ROWS = 16_384  # sequences decoded at a time, which bounds the memory

_KINDS: dict[str, type["Tokenizer"]] = {}


class Tokenizer(ABC):
    """Converts text to ids 0..vocab_size-1 and back.

    A concrete subclass declares its kind: `class SmilesTokenizer(Tokenizer, kind="smiles")`.
    `to_json` stores the kind, which tells `tokenizer_from_json` the class.
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
        """The number of ids, including special tokens but not the mask."""

    @property
    @abstractmethod
    def pad_id(self) -> int:
        """The token that fills a sequence after its end."""

    @property
    @abstractmethod
    def bos_id(self) -> int:
        """The token before the first token of a molecule or document."""

    @property
    @abstractmethod
    def eos_id(self) -> int:
        """The token that ends a molecule or document."""

    @property
    def has_line_breaks(self) -> bool:
        """Whether a decoded text may contain line breaks."""
        return False

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Encode a text without special tokens; raises InputError for unknown tokens."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Decode a sequence: a molecule, or the documents in a window of text."""

    def decode_rows(self, x_BN: NDArray[np.integer[Any]]) -> list[str]:
        """The texts of several sequences."""
        chunks = (x_BN[start : start + _ROWS] for start in range(0, len(x_BN), _ROWS))
        return [self.decode(row) for chunk in chunks for row in chunk.tolist()]

    @abstractmethod
    def encode_template(self, template: str) -> list[int | None]:
        """Encode an infilling template; free tokens are None.

        `[12]` is a hole of twelve free tokens.
        """

    @abstractmethod
    def frame(self, ids: Sequence[int | None], length: int, *, whole: bool) -> list[int | None]:
        """Lay out given and free tokens (None) in a sequence for the sampler.

        whole: whether `ids` is the complete text, as for a template. Otherwise it is a prefix, and
            all tokens after it are free.

        Raises:
            InputError: the tokens do not fit into `length`.
        """

    @abstractmethod
    def layout(self, texts: Sequence[str], length: int) -> tuple[list[list[int]], int]:
        """Encode texts as sequences of `length` tokens, as in training.

        Also returns the number of padding tokens at the end of the last sequence that belong to no
        text.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A JSON-serializable description, from which `tokenizer_from_json` restores it."""

    @property
    def identity(self) -> dict[str, Any]:
        """A short description that differs between tokenizers, for checksums and cache keys."""
        return self.to_json()

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`; damaged data may raise any ValueError, KeyError, ..."""

    def not_decodable(self, i: int) -> InputError:
        """The error for an id that is not in the vocabulary."""
        return InputError(
            f"id {i} cannot be decoded, valid ids are 0..{self.vocab_size - 1}; "
            f"id {self.vocab_size} is the mask, which sampling should have replaced"
        )


def hole_size(template: str, digits: str) -> int:
    """The number of free tokens of the hole `[digits]` in a template."""
    size = int(digits.lstrip("0")[:9] or 0)  # nine digits already exceed the maximum
    if not 1 <= size <= MAX_HOLE:
        raise InputError(
            f"the template {template!r} has the hole [{digits[:20]}]; a hole must have 1 to "
            f"{MAX_HOLE:,} tokens"
        )
    return size


def tokenizer_from_json(data: Any) -> Tokenizer:
    """Restore a tokenizer from `Tokenizer.to_json`."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(
            f"unknown tokenizer kind {kind!r}, expected one of "
            f"{', '.join(map(repr, sorted(_KINDS)))}; import the module that defines your own "
            f"tokenizer first, or install a newer version of cwdfm"
        )
    try:
        return _KINDS[kind].from_json(data)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, LZMAError) as error:
        raise InputError(
            f"the stored tokenizer is damaged ({type(error).__name__}: {error}); use the tokenizer "
            f"saved with the data or the model"
        ) from error
