"""Text to windows of N tokens: documents, each with an end token, joined and cut.

The cuts run over the whole corpus, so no remainder is lost; only the last window of a split is
filled up, with end tokens. The result does not depend on the number of workers, nor on how often
the work was interrupted.

Where a corpus has no split of its own, one document in twenty is held out: of each twenty in a row
one, drawn by its number and the seed (the last one, of the first twenty). A corpus of so few
documents that this holds out nothing gives its last 5% of windows instead, so that one document may
then lie on both sides of the cut.

`report` counts documents (`read` = `blank` + `kept`), windows (`train`, `valid`), and tokens:
`tokens` with the end tokens of documents, `filled` to complete windows.
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
from cwdfm.data.text.prepared import SPLITS, write_meta
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError
from cwdfm.files import write_json

HELD_OUT = 20  # one document in so many

_KEEP = 1 << 22  # tokens between records of the progress, which an interrupted run resumes from
_ROWS = 1 << 12  # copied at a time


@dataclass(frozen=True)
class Progress:
    """How far the work has come; what lies beyond in the files is cut off on resuming."""

    key: str
    read: int = 0
    blank: int = 0
    train: int = 0  # tokens
    valid: int = 0


def split_of(number: int, seed: int) -> Split:
    """The split of a document by its number in the corpus, counted from 0."""
    block, place = divmod(number, HELD_OUT)
    drawn = int.from_bytes(hashlib.sha256(f"{seed}/{block}".encode()).digest()[:8], "big")
    # In the first block the last, so that fewer than twenty documents are all to train on.
    return "valid" if place == (drawn % HELD_OUT if block else HELD_OUT - 1) else "train"


def append(file: BinaryIO, ids: NDArray[Any]) -> None:
    """Write ids behind what a file holds.

    Not by numpy's tofile, which says of a full disk how much it wrote, and not why no more.
    """
    file.write(np.ascontiguousarray(ids).data)


def held_out_fill(data: TokenData) -> tuple[int, int] | None:
    """(row, count): which held-out window was filled up, and with how many tokens at its end.

    None for none. It was the last one before the order was drawn. What fills it are end tokens
    behind the one of the last document.
    """
    if not data.report.get("filled") or not len(data.valid):
        return None
    row = int(_order(len(data.valid), data.source["seed"]).argmax())
    other = np.flatnonzero(data.valid[row] != data.tokenizer.eos_id)
    ends = data.length - (int(other[-1]) + 1 if len(other) else 0)
    return (row, ends - 1) if ends > 1 else None


def _order(rows: int, seed: int) -> NDArray[np.int64]:
    """In which order held-out windows are written: a prefix of them is a fair sample."""
    return np.random.default_rng(seed).permutation(rows)


class Packing:
    """The work in one folder."""

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
        self.row_size = length * self.dtype.itemsize
        self.streams: dict[Split, Path] = {
            "train": work / "train.bin",
            "valid": work / "valid.stream",
        }

    def run(self, workers: int, progress: Callable[[int], object] | None) -> int:
        """Tokenise what has not been, then lay out the windows; how many are to train on."""
        state = self._resume()
        kept = state
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
                if state.train + state.valid - kept.train - kept.valid >= _KEEP:
                    self._keep(state, train, valid)
                    kept = state
                if progress is not None:
                    progress(state.read)
            self._keep(state, train, valid)
        return self._lay_out(state)

    def _documents(self, start: int) -> Iterator[tuple[Split, Document]]:
        found = self.corpus.documents(self.source["part"], self.source["limit"])
        for number, document in enumerate(islice(found, start, None), start=start):
            yield document.split or split_of(number, self.source["seed"]), document

    @property
    def _key(self) -> str:
        text = json.dumps([self.source, self.tokenizer.identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _resume(self) -> Progress:
        """The kept progress, with the files cut back to it; or a fresh start."""
        try:
            state = Progress(**json.loads((self.work / "progress.json").read_text()))
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

    def _keep(self, state: Progress, *files: Any) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_json(self.work / "progress.json", asdict(state))

    def _lay_out(self, state: Progress) -> int:
        """Fill up the last windows, put the held-out ones in random order, describe it all."""
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
        report = {
            "read": state.read,
            "blank": state.blank,
            "kept": state.read - state.blank,
            "train": rows["train"],
            "valid": rows["valid"],
            "tokens": state.train + state.valid,
            "filled": filled,
        }
        write_meta(
            self.work,
            name=self.corpus.name,
            tokenizer=self.tokenizer,
            length=self.length,
            rows=rows,
            report=report,
            source=self.source,
        )
        return rows["train"]

    def _check(self, state: Progress, rows: dict[Split, int]) -> None:
        name = self.corpus.name
        if not state.train + state.valid:
            raise InputError(
                f"{name} holds no text: {state.read:,} documents were read, {state.blank:,} of "
                f"them blank; check the files, and column (--column) for tables"
            )
        if self.source["part"] is None and not rows["train"]:
            raise InputError(f"{name} has nothing to train on; use part (--part) to evaluate on it")
        if sum(rows.values()) < 2 and self.source["part"] is None:
            raise InputError(
                f"{name} has {state.train:,} tokens, which is one window of length {self.length}; "
                f"at least 2 are needed (one to train on, one to hold out): use a smaller length, "
                f"or more text"
            )

    def _shuffle(self, path: Path, start: int, rows: int) -> None:
        """Write `rows` windows of a file, from number `start`, to valid.bin in random order."""
        x = np.memmap(path, self.dtype, "r", shape=(start + rows, self.length))
        order = _order(rows, self.source["seed"])
        with (self.work / "valid.bin").open("wb") as file:
            for place in range(0, rows, _ROWS):
                append(file, x[start + order[place : place + _ROWS]])
            file.flush()
            os.fsync(file.fileno())
