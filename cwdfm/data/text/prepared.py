"""Prepared text: a folder of memory-mapped windows of tokens.

    train.bin  valid.bin    ids, little-endian, [rows, length]
    meta.json               name, tokenizer, report, source, rows, checksums

`prepare` writes such a folder atomically. It resumes interrupted work, and concurrent calls do the
work once. `open_prepared` reads it; the corpus may be larger than memory.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cwdfm.cache import content_digest
from cwdfm.data.dataset import (
    FORMAT,
    SEED,
    SPLITS,
    Split,
    TokenData,
    Tokens,
    check_format,
    damaged,
    token_dtype,
)
from cwdfm.data.readers import readable
from cwdfm.data.text.corpus import Corpus, Interrupted
from cwdfm.data.text.encode import check_main_guard
from cwdfm.data.text.fast_tokenizer import find_tokenizer
from cwdfm.data.text.pack import PROGRESS, VALID_STREAM, Packing
from cwdfm.data.text.tokenizer import CharacterTokenizer, TextTokenizer
from cwdfm.data.tokenizer import tokenizer_from_json
from cwdfm.errors import MAX_LENGTH, InputError, check_choice, check_integer
from cwdfm.files import check_writable, locked, write_advice, write_json

META = "meta.json"
# Increase this when the same documents would be prepared differently; cache keys contain it.
PREPARATION = 1
MAX_WORKERS = 4096

_MAGIC = "cwdfm.text"
_VERIFY_UP_TO = 1 << 30  # bytes whose checksum is verified when a folder is opened
_CHUNK = 1 << 22


def prepare(
    corpus: Corpus,
    tokenizer: TextTokenizer | str,
    length: int,
    out: str | Path,
    *,
    workers: int = 1,
    part: str | None = None,
    limit: int | None = None,
    seed: int = SEED,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """Prepare a corpus in the folder `out`, or open it if it is already prepared.

    tokenizer: a tokenizer, a name for `find_tokenizer`, or "chars" for the corpus's characters.
    workers: number of tokenizing processes. With more than one, a script needs an
        `if __name__ == "__main__":` guard.
    part: prepare only this part of the corpus, all of it held out, for evaluation.
    limit: use only the first documents (of each split, if the corpus has its own).
    seed: seed of the split and of the order of held-out windows.
    progress: called with the number of finished documents.

    Unfinished work is kept in `out`.part, and the next call resumes it.
    """
    check_integer("workers", workers, most=MAX_WORKERS)
    if workers > 1:
        check_main_guard()
    out = Path(out)
    if isinstance(tokenizer, str) and tokenizer != "chars":
        tokenizer = find_tokenizer(tokenizer)
    source = text_source(corpus, tokenizer, length, part=part, limit=limit, seed=seed)
    try:
        if (done := _finished(out, source)) is not None:
            return done
        check_writable(out)
        with locked(out):
            if (done := _finished(out, source)) is not None:  # by the previous holder of the lock
                return done
            work = out.with_name(out.name + ".part")
            _pack(corpus, tokenizer, source, work, workers, progress)
            if out.exists():
                out.rmdir()  # it is empty, as checked by `_finished`
            work.rename(out)
    except OSError as error:
        raise InputError(
            f"cannot write {out}: {error.strerror or error}; {write_advice(error)} (out=, or "
            f"CWDFM_CACHE for cached data)",
            fields=("out",),
        ) from error
    return open_prepared(out)


def _pack(
    corpus: Corpus,
    tokenizer: TextTokenizer | str,
    source: dict[str, Any],
    work: Path,
    workers: int,
    progress: Callable[[int], object] | None,
) -> None:
    """Write a complete prepared folder at `work`, without temporary files."""
    work.mkdir(exist_ok=True)
    try:
        if isinstance(tokenizer, str):
            tokenizer = CharacterTokenizer.build(corpus.texts(source["part"], source["limit"]))
        report = Packing(corpus, tokenizer, source, work).run(workers, progress)
    except Interrupted:
        raise
    except InputError:  # there is nothing to resume
        shutil.rmtree(work, ignore_errors=True)
        raise
    row_bytes = source["length"] * token_dtype(tokenizer.vocab_size).itemsize
    meta = {
        "magic": _MAGIC,
        "format": FORMAT,
        "name": corpus.name,
        "length": source["length"],
        "rows": {split: report[split] for split in SPLITS},
        "sha256": {s: checksum(work / f"{s}.bin", report[s] * row_bytes) for s in SPLITS},
        "report": report,
        "source": source,
        "tokenizer": tokenizer.to_json(),
    }
    write_json(work / META, {**meta, "checksum": content_digest(meta)})
    os.truncate(work / "train.bin", report["train"] * row_bytes)
    for name in (VALID_STREAM, PROGRESS):
        (work / name).unlink(missing_ok=True)
    for leftover in work.glob("*.json.*.part"):  # of a killed process
        leftover.unlink()


def text_source(
    corpus: Corpus,
    tokenizer: TextTokenizer | str,
    length: int,
    *,
    part: str | None,
    limit: int | None,
    seed: int,
) -> dict[str, Any]:
    """Everything the prepared text depends on; the cache key. InputError for invalid options."""
    check_integer("length", length, 2, MAX_LENGTH)
    check_integer("seed", seed, 0)
    if limit is not None:
        check_integer("limit", limit)
    if part is not None:
        check_choice("part", part, corpus.part_names)
    return {
        "corpus": corpus.name,
        **corpus.origin(),
        "detokenizer": corpus.detokenizer,
        "tokenizer": tokenizer if isinstance(tokenizer, str) else tokenizer.identity,
        "length": length,
        "packing": "documents with end tokens, joined and cut",
        "part": part,
        "limit": limit,
        "seed": seed,
        "unit": "documents",
        "preparation": PREPARATION,
    }


def _finished(out: Path, source: dict[str, Any]) -> TokenData | None:
    """The prepared data in `out`; None if it is missing or empty, InputError for other content."""
    occupied = _is_occupied(out)  # before `is_prepared`: another process may finish in between
    if is_prepared(out):
        if read_meta(out)["source"] == source:
            return open_prepared(out)
        raise InputError(
            f"{out} contains text prepared from other data or with other options; choose a "
            f"different path, or delete it"
        )
    if occupied:
        raise InputError(f"{out} exists and contains other files; choose a different path")
    return None


def _is_occupied(out: Path) -> bool:
    """Whether `out` is a file or a non-empty folder."""
    try:
        return any(out.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return out.exists()  # False if a parent is a file; then `check_writable` raises


def is_prepared(folder: Path) -> bool:
    """Whether a folder contains prepared text."""
    return (folder / META).is_file()


def open_prepared(folder: Path, verify: bool | None = None) -> TokenData:
    """Open prepared text, memory-mapped; InputError if the folder is damaged or something else.

    verify: whether to verify the checksums of all tokens; by default only up to 1 GiB. File sizes
        are always verified.
    """
    meta = read_meta(folder)
    tokenizer = tokenizer_from_json(meta["tokenizer"])
    dtype = token_dtype(tokenizer.vocab_size)
    arrays = {split: _map(folder, split, meta, dtype) for split in SPLITS}
    if verify is None:
        verify = sum(x.nbytes for x in arrays.values()) <= _VERIFY_UP_TO
    if verify:
        for split, x in arrays.items():
            if checksum(folder / f"{split}.bin", x.nbytes) != meta["sha256"][split]:
                raise damaged(folder, f"wrong checksum of {split}.bin")
    report, source = meta["report"], meta["source"]
    return TokenData(meta["name"], arrays["train"], arrays["valid"], tokenizer, report, {}, source)


def _map(folder: Path, split: Split, meta: dict[str, Any], dtype: np.dtype[Any]) -> Tokens:
    path, shape = folder / f"{split}.bin", (meta["rows"][split], meta["length"])
    with readable(path):
        size = path.stat().st_size
    if size < shape[0] * shape[1] * dtype.itemsize:
        raise damaged(folder, f"{size:,} bytes of {path.name} are too few for {shape} ids")
    if not shape[0]:
        return np.empty(shape, dtype)
    # Copy on write, because torch warns about read-only arrays.
    return np.memmap(path, dtype=dtype.newbyteorder("<"), mode="c", shape=shape)


def read_meta(folder: Path) -> dict[str, Any]:
    """Read and verify the metadata of a prepared folder."""
    with readable(folder / META):
        text = (folder / META).read_text(encoding="utf-8", errors="replace")
    try:
        meta = json.loads(text)
    except ValueError as error:
        raise damaged(folder, f"{META}: {error}") from error
    check_format(folder, meta, _MAGIC)
    if meta.pop("checksum", None) != content_digest(meta):
        raise damaged(folder, f"wrong checksum of {META}")
    return dict(meta)


def checksum(path: Path, size: int) -> str:
    """The SHA-256 of the first `size` bytes of a file."""
    digest = hashlib.sha256()
    with readable(path), path.open("rb") as file:
        while size and (data := file.read(min(size, _CHUNK))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()
