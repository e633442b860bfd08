"""Pack documents into windows of N tokens.

Documents are concatenated, each followed by an end-of-text token, and cut into windows. No tokens
are lost. Only the last window of a split is padded, with end-of-text tokens. The result does not
depend on the number of workers or on interruptions.

If a corpus has no split, the seed selects one document to hold out from every 20 consecutive ones
(from the first 20, always the last). With fewer than 20 documents this holds out nothing, and the
last 5% of the windows are held out instead; a document may then be in both splits.

With a `RowTokenizer`, each document is its own window, padded with end-of-text tokens, and
documents that are too long are dropped.

`report` counts documents (`read` = `blank` + `too_long` + `kept`), windows (`train`, `valid`) and
tokens (`tokens` includes the end-of-text token of each document; `filled` is padding).
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cwdfm.cache import content_digest
from cwdfm.data.dataset import SPLITS, Split, TokenData, token_dtype
from cwdfm.data.text.corpus import Corpus
from cwdfm.data.text.encode import Encoder, encode
from cwdfm.data.text.row_tokenizer import RowTokenizer
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError
from cwdfm.files import read_json, write_json

HELD_OUT = 20  # one document in HELD_OUT is held out
PROGRESS = "progress.json"  # files of an unfinished preparation
VALID_STREAM = "valid.stream"

_SAVE_EVERY = 1 << 22  # tokens between updates of the progress file
_ROWS = 1 << 12  # rows copied at a time


def split_of(number: int, seed: int) -> Split:
    """The split of the document with this index in the corpus."""
    block, offset = divmod(number, HELD_OUT)
    drawn = int.from_bytes(hashlib.sha256(f"{seed}/{block}".encode()).digest()[:8], "big")
    # In the first block hold out the last document, so that fewer than 20 are all for training.
    return "valid" if offset == (drawn % HELD_OUT if block else HELD_OUT - 1) else "train"


def append(file: BinaryIO, ids: NDArray[Any]) -> None:
    """Append ids to a file. Unlike numpy's `tofile`, errors say why the write failed."""
    file.write(np.ascontiguousarray(ids).data)


def held_out_padding(data: TokenData) -> tuple[int, int] | None:
    """Find the padded held-out window: (row, number of padding tokens), or None without padding.

    It is the last window before shuffling. Its padding follows the end-of-text token of the last
    document.
    """
    is_rows = isinstance(data.tokenizer, RowTokenizer)  # there, padding belongs to each row
    if is_rows or not data.report.get("filled") or not len(data.valid):
        return None
    row = int(_order(len(data.valid), data.source["seed"]).argmax())
    other = np.flatnonzero(data.valid[row] != data.tokenizer.eos_id)
    ends = data.length - (int(other[-1]) + 1 if len(other) else 0)
    return (row, ends - 1) if ends > 1 else None


def _order(rows: int, seed: int) -> NDArray[np.int64]:
    """The random order of the held-out windows: any prefix of them is a random sample."""
    return np.random.default_rng(seed).permutation(rows)


@dataclass(frozen=True)
class Packing:
    """Packs a corpus into the folder `work`; an interrupted run can be resumed."""

    corpus: Corpus
    tokenizer: TextTokenizer
    source: dict[str, Any]  # everything that determines the result: length, part, limit, seed, ...
    work: Path

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the ids in the files."""
        return token_dtype(self.tokenizer.vocab_size).newbyteorder("<")

    @property
    def _streams(self) -> dict[Split, Path]:
        return {"train": self.work / "train.bin", "valid": self.work / VALID_STREAM}

    def run(self, workers: int, progress: Callable[[int], object] | None) -> dict[str, int]:
        """Tokenize the remaining documents and write the windows; returns the report."""
        counts = self._resume()
        is_rows = isinstance(self.tokenizer, RowTokenizer)  # each document is its own window
        row_length = self.source["length"] if is_rows else None
        encoder = Encoder(self.tokenizer, self.corpus.detokenizer, row_length)
        unsaved = 0
        with self._streams["train"].open("ab") as train, self._streams["valid"].open("ab") as valid:
            for ids, new in encode(self._documents(counts["read"]), encoder, workers):
                append(train, ids["train"])
                append(valid, ids["valid"])
                counts += new
                unsaved += new["train"] + new["valid"]
                if unsaved >= _SAVE_EVERY:
                    self._save(counts, train, valid)
                    unsaved = 0
                if progress is not None:
                    progress(counts["read"])
            self._save(counts, train, valid)
        return self._write_windows(counts)

    def _documents(self, start: int) -> Iterator[tuple[Split, str]]:
        documents = self.corpus.documents(self.source["part"], self.source["limit"])
        for number, document in enumerate(islice(documents, start, None), start=start):
            yield document.split or split_of(number, self.source["seed"]), document.text

    @property
    def _key(self) -> str:
        return content_digest([self.source, self.tokenizer.identity])

    def _resume(self) -> Counter[str]:
        """Truncate the files to the saved counts, or to zero, and return the counts."""
        width, counts = self.dtype.itemsize, Counter[str]()
        with suppress(OSError, ValueError, TypeError, AttributeError):
            saved = read_json(self.work / PROGRESS)
            is_same = saved.pop("key", None) == self._key
            sizes = {split: path.stat().st_size for split, path in self._streams.items()}
            if is_same and all(sizes[split] >= saved.get(split, 0) * width for split in SPLITS):
                counts = Counter(saved)
        for split, path in self._streams.items():
            path.touch()
            os.truncate(path, counts[split] * width)
        return counts

    def _save(self, counts: Counter[str], *files: BinaryIO) -> None:
        """Flush the files and save their counts. When resuming, data beyond them is discarded."""
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_json(self.work / PROGRESS, {"key": self._key, **counts})

    def _write_windows(self, counts: Counter[str]) -> dict[str, int]:
        """Pad the last windows and write the held-out ones in random order; returns the report."""
        length = self.source["length"]
        tokens = counts["train"] + counts["valid"] - counts["filled"]
        rows: dict[str, int] = {split: -(-counts[split] // length) for split in SPLITS}
        self._check(counts, rows)
        for split, path in self._streams.items():
            with path.open("ab") as file:
                fill = rows[split] * length - counts[split]
                append(file, np.full(fill, self.tokenizer.eos_id, self.dtype))
        filled = sum(rows.values()) * length - tokens
        if rows["valid"]:
            self._shuffle(self._streams["valid"], 0, rows["valid"])
        else:
            rows["valid"] = max(1, rows["train"] // HELD_OUT)
            rows["train"] -= rows["valid"]
            self._shuffle(self._streams["train"], rows["train"], rows["valid"])
        read, blank, too_long = (counts[name] for name in ("read", "blank", "too_long"))
        documents = {"read": read, "blank": blank} | ({"too_long": too_long} if too_long else {})
        documents["kept"] = read - blank - too_long
        return {**documents, **rows, "tokens": tokens, "filled": filled}

    def _check(self, counts: Counter[str], rows: dict[str, int]) -> None:
        name, length = self.corpus.name, self.source["length"]
        training = self.source["part"] is None
        if not sum(rows.values()):
            raise InputError(
                f"{name} contains no text: {counts['read']:,} documents were read, "
                f"{counts['blank']:,} of them blank, {counts['too_long']:,} longer than length "
                f"{length}; check the files, length=, and for tables column=",
                fields=("column", "length"),
            )
        if training and not rows["train"]:
            raise InputError(
                f"{name} has no training documents; use part= to load it for evaluation",
                fields=("part",),
            )
        if training and sum(rows.values()) < 2:
            raise InputError(
                f"{name} has {counts['train']:,} tokens, which is only one window of length "
                f"{length}; at least 2 are required (one to train on, one to hold out): use a "
                f"smaller length, or more text"
            )

    def _shuffle(self, path: Path, start: int, rows: int) -> None:
        """Copy windows start..start + rows of a file to valid.bin in random order."""
        x = np.memmap(path, self.dtype, "r", shape=(start + rows, self.source["length"]))
        order = _order(rows, self.source["seed"])
        with (self.work / "valid.bin").open("wb") as file:
            for first in range(0, rows, _ROWS):
                append(file, x[start + order[first : first + _ROWS]])
            file.flush()
            os.fsync(file.fileno())
