"""Any Hugging Face fast tokenizer, through the `tokenizers` library."""

import base64
import hashlib
import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError, load_extra

# What common vocabularies call the end of a text, where no tokenizer_config.json says it.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
_NAME_END = "as eos_token in a tokenizer_config.json beside it, or in Python with end="


@dataclass(frozen=True)
class FastTokenizer(TextTokenizer, kind="fast"):
    """A tokenizer.json and the token that ends a document.

    It is stored whole, compressed, so that data and models need nothing else: half a megabyte for
    GPT-2's. Special tokens in a text are read as the characters they are written with, and what a
    tokenizer would add around a text (`[CLS]`, `<s>`) is not added.
    """

    content: str = field(repr=False)  # of tokenizer.json, without spaces
    end: str

    def __post_init__(self) -> None:
        if self._library.token_to_id(self.end) is None:
            raise InputError(
                f"the tokenizer has no token {self.end!r} to end documents with; name one of its "
                f"vocabulary {_NAME_END}"
            )

    @classmethod
    def of(cls, content: str, place: str, end: str | None) -> Self:
        """From the content of a tokenizer.json; `place` names it in messages."""
        try:
            parsed = {**json.loads(content), "truncation": None, "padding": None}
            special = {token["content"] for token in parsed.get("added_tokens", [])}
            end = end or next((name for name in _ENDS if name in special), None)
            if end is None:
                raise InputError(
                    f"{place} does not say which token ends a document, and has none of "
                    f"{', '.join(_ENDS)}; name one of its vocabulary {_NAME_END}"
                )
            return cls(json.dumps(parsed, ensure_ascii=False, separators=(",", ":")), end)
        except InputError:
            raise
        except Exception as error:  # the library raises bare Exceptions
            raise InputError(
                f"{place} is no tokenizer of the tokenizers library: {error}; give a "
                f"tokenizer.json, or a folder or hub name that has one"
            ) from error

    @cached_property
    def _library(self) -> Any:
        tokenizer = load_extra("tokenizers", "text").Tokenizer.from_str(self.content)
        tokenizer.encode_special_tokens = True  # that is: as ordinary text
        return tokenizer

    @cached_property
    def _sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: a vocabulary may have gaps."""
        return 1 + int(max(self._library.get_vocab(with_added_tokens=True).values()))

    @cached_property
    def eos_id(self) -> int:
        return int(self._library.token_to_id(self.end))

    @cached_property
    def space_begins_word(self) -> bool:
        return self.encode(" the") != self.encode(" ") + self.encode("the")

    def arrays(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int32) for one in found]

    @cached_property
    def _cuts_at_spaces(self) -> bool:
        """Whether a single space always begins a token, as GPT-2's rule for words has it."""
        parsed = json.loads(self.content)
        split = parsed.get("pre_tokenizer") or {}
        return (
            parsed.get("normalizer") is None
            and split.get("type") == "ByteLevel"
            and split.get("use_regex", True)
            and not split.get("add_prefix_space", True)
            and all(token["special"] for token in parsed.get("added_tokens", []))
        )

    def may_cut(self, text: str, place: int) -> bool:
        around = text[place - 1 : place + 2]
        return (
            self._cuts_at_spaces
            and len(around) == 3
            and around[1] == " "
            and not around[0].isspace()
            and not around[2].isspace()
        )

    def text_of(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(list(ids), skip_special_tokens=False))

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "end": self.end, "sha256": self._sha256}

    def to_json(self) -> dict[str, Any]:
        packed = base64.b85encode(lzma.compress(self.content.encode())).decode()
        return {**self.identity, "tokenizer.json.xz": packed}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        try:
            content = lzma.decompress(base64.b85decode(data["tokenizer.json.xz"]))
            if hashlib.sha256(content).hexdigest() != data["sha256"]:
                raise ValueError("its checksum is wrong")
            end = str(data["end"])
        except (KeyError, TypeError, ValueError, lzma.LZMAError) as error:
            raise InputError(
                f"the stored tokenizer is damaged ({type(error).__name__}: {error}); take the one "
                f"that the data or the model was saved with"
            ) from error
        return cls(content.decode(), end)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.content, self.end)
