"""Pack documents into windows of N tokens.

Documents, each followed by an end-of-text token, are concatenated and cut into windows, so no
tokens are lost. Only the last window of a split is padded, with end-of-text tokens. The result does
not depend on the number of workers, or on interruptions.

If a corpus has no split of its own, one document of each 20 consecutive ones is held out, chosen by
the seed (of the first 20, the last one). If this holds out nothing because there are too few
documents, the last 5% of the windows are held out instead; a document may then be in both splits.

`report` counts documents (`read` = `blank` + `kept`), windows (`train`, `valid`) and tokens:
`tokens` includes the end-of-text tokens of documents, and `filled` is the padding of windows.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.dataset import Split, TokenData, token_dtype
from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.data.text.encode import Encoder, batches, encode
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError
from cwdfm.files import write_json

HELD_OUT = 20  # one document in HELD_OUT is held out
SPLITS: tuple[Split, ...] = ("train", "valid")
PROGRESS = "progress.json"  # files of an unfinished preparation
VALID_STREAM = "valid.stream"

_SAVE_EVERY = 1 << 22  # tokens between updates of the progress file
_ROWS = 1 << 12  # rows copied at a time


@dataclass(frozen=True)
class Progress:
    """The state of an unfinished preparation. Data in the files beyond it are discarded."""

    key: str
    read: int = 0
    blank: int = 0
    train: int = 0  # tokens
    valid: int = 0


def split_of(number: int, seed: int) -> Split:
    """The split of a document, by its number in the corpus (from 0)."""
    block, place = divmod(number, HELD_OUT)
    drawn = int.from_bytes(hashlib.sha256(f"{seed}/{block}".encode()).digest()[:8], "big")
    # The last one of the first block, so that fewer than 20 documents are all for training.
    return "valid" if place == (drawn % HELD_OUT if block else HELD_OUT - 1) else "train"


def append(file: BinaryIO, ids: NDArray[Any]) -> None:
    """Append ids to a file. numpy's `tofile` would hide the reason for a failed write."""
    file.write(np.ascontiguousarray(ids).data)


def held_out_padding(data: TokenData) -> tuple[int, int] | None:
    """(row, count): the padded held-out window and its number of padding tokens; None without one.

    It was the last window before shuffling. The padding follows the end-of-text token of the last
    document.
    """
    if not data.report.get("filled") or not len(data.valid):
        return None
    row = int(_order(len(data.valid), data.source["seed"]).argmax())
    other = np.flatnonzero(data.valid[row] != data.tokenizer.eos_id)
    ends = data.length - (int(other[-1]) + 1 if len(other) else 0)
    return (row, ends - 1) if ends > 1 else None


def _order(rows: int, seed: int) -> NDArray[np.int64]:
    """The random order of held-out windows, which makes any prefix a random sample."""
    return np.random.default_rng(seed).permutation(rows)


class Packing:
    """Packs a corpus into the folder `work`; an interrupted run can be resumed."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: TextTokenizer,
        length: int,
        work: Path,
        source: dict[str, Any],
    ) -> None:
        self.corpus, self.tokenizer, self.length, self.work = corpus, tokenizer, length, work
        self.source = source
        self.dtype = token_dtype(tokenizer.vocab_size).newbyteorder("<")
        self.streams: dict[Split, Path] = {
            "train": work / "train.bin",
            "valid": work / VALID_STREAM,
        }

    def run(self, workers: int, progress: Callable[[int], object] | None) -> dict[str, int]:
        """Tokenize the remaining documents and write the windows; returns the report."""
        state = saved = self._resume()
        encoder = Encoder(self.tokenizer, self.corpus.detokenizer)
        with self.streams["train"].open("ab") as train, self.streams["valid"].open("ab") as valid:
            for found in encode(batches(self._documents(state.read)), encoder, workers):
                append(train, found.ids["train"].astype(self.dtype, copy=False))
                append(valid, found.ids["valid"].astype(self.dtype, copy=False))
                state = replace(
                    state,
                    read=state.read + found.read,
                    blank=state.blank + found.blank,
                    train=state.train + len(found.ids["train"]),
                    valid=state.valid + len(found.ids["valid"]),
                )
                if state.train + state.valid - saved.train - saved.valid >= _SAVE_EVERY:
                    self._save(state, train, valid)
                    saved = state
                if progress is not None:
                    progress(state.read)
            self._save(state, train, valid)
        return self._write_windows(state)

    def _documents(self, start: int) -> Iterator[tuple[Split, Document]]:
        found = self.corpus.documents(self.source["part"], self.source["limit"])
        for number, document in enumerate(islice(found, start, None), start=start):
            yield document.split or split_of(number, self.source["seed"]), document

    @property
    def _key(self) -> str:
        text = json.dumps([self.source, self.tokenizer.identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _resume(self) -> Progress:
        """Truncate the files to the saved progress and return it, or start from scratch."""
        try:
            state = Progress(**json.loads((self.work / PROGRESS).read_text()))
            sizes = {split: path.stat().st_size for split, path in self.streams.items()}
        except (OSError, ValueError, TypeError):
            state, sizes = Progress(""), {}
        wanted = {s: getattr(state, s) * self.dtype.itemsize for s in SPLITS}
        if state.key != self._key or any(sizes[s] < wanted[s] for s in SPLITS):
            state, wanted = Progress(self._key), dict.fromkeys(SPLITS, 0)
        for split, path in self.streams.items():
            path.touch()
            os.truncate(path, wanted[split])
        return state

    def _save(self, state: Progress, *files: Any) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_json(self.work / PROGRESS, asdict(state))

    def _write_windows(self, state: Progress) -> dict[str, int]:
        """Pad the last windows and write the held-out ones in random order; returns the report."""
        rows: dict[Split, int] = {s: -(-getattr(state, s) // self.length) for s in SPLITS}
        self._check(state, rows)
        for split, path in self.streams.items():
            fill = rows[split] * self.length - getattr(state, split)
            with path.open("ab") as file:
                append(file, np.full(fill, self.tokenizer.eos_id, self.dtype))
        filled = sum(rows.values()) * self.length - state.train - state.valid
        if rows["valid"]:
            self._shuffle(self.streams["valid"], 0, rows["valid"])
        else:
            rows["valid"] = max(1, rows["train"] // HELD_OUT)
            rows["train"] -= rows["valid"]
            self._shuffle(self.streams["train"], rows["train"], rows["valid"])
        return {
            "read": state.read,
            "blank": state.blank,
            "kept": state.read - state.blank,
            "train": rows["train"],
            "valid": rows["valid"],
            "tokens": state.train + state.valid,
            "filled": filled,
        }

    def _check(self, state: Progress, rows: dict[Split, int]) -> None:
        name = self.corpus.name
        if not state.train + state.valid:
            raise InputError(
                f"{name} contains no text: {state.read:,} documents were read, {state.blank:,} of "
                f"them blank; check the files, and for tables column=",
                fields=("column",),
            )
        if self.source["part"] is None and not rows["train"]:
            raise InputError(
                f"{name} has no training documents; use part= to load it for evaluation",
                fields=("part",),
            )
        if sum(rows.values()) < 2 and self.source["part"] is None:
            raise InputError(
                f"{name} has {state.train:,} tokens, only one window of length {self.length}; at "
                f"least 2 are required (one to train on, one to hold out): use a smaller length, "
                f"or more text"
            )

    def _shuffle(self, path: Path, start: int, rows: int) -> None:
        """Copy `rows` windows of a file, from window `start` on, to valid.bin in random order."""
        x = np.memmap(path, self.dtype, "r", shape=(start + rows, self.length))
        order = _order(rows, self.source["seed"])
        with (self.work / "valid.bin").open("wb") as file:
            for place in range(0, rows, _ROWS):
                append(file, x[start + order[place : place + _ROWS]])
            file.flush()
            os.fsync(file.fileno())
