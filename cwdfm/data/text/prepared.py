"""Prepared text: a folder of memory-mapped windows of tokens.

    train.bin  valid.bin    ids, little-endian, [rows, length]
    meta.json               name, tokenizer, report, source, rows, checksums

`prepare` writes such a folder atomically and resumes after an interruption. If several processes
call it concurrently, one of them does the work. `open_prepared` memory-maps the folder, so the
corpus may be larger than memory.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

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
    check_metadata,
    damaged,
    token_dtype,
)
from cwdfm.data.readers import readable, sha256
from cwdfm.data.text.corpus import Corpus, Interrupted
from cwdfm.data.text.encode import check_main_guard, grouped
from cwdfm.data.text.fast_tokenizer import find_tokenizer
from cwdfm.data.text.pack import PROGRESS, VALID_STREAM, Packing
from cwdfm.data.text.row_tokenizer import RowTokenizer
from cwdfm.data.text.tokenizer import CharacterTokenizer, TextTokenizer
from cwdfm.data.tokenizer import tokenizer_from_json
from cwdfm.errors import MAX_LENGTH, InputError, check_choice, check_integer
from cwdfm.files import (
    MARKER,
    check_writable,
    locked,
    open_work,
    read_json,
    remove_files,
    write_advice,
    write_json,
)

META = "meta.json"
# Part of the cache keys. Increase it with any change that prepares the same documents differently.
PREPARATION = 1
MAX_WORKERS = 4096

_MAGIC = "cwdfm.text"
_PACKINGS = (
    {"packing": "documents with end tokens, joined and cut", "unit": "documents"},
    {"packing": "one document in each sequence, with end tokens", "unit": "rows"},
)
_WORK = r"(train|valid)\.bin|valid\.stream|(progress|meta)\.json"  # files of a preparation
_VERIFY_UP_TO = 1 << 30  # bytes whose checksum is verified when a folder is opened


def default_length(
    corpus: Corpus, tokenizer: TextTokenizer | str, part: str | None, limit: int | None
) -> int:
    """Default tokens per sequence: `corpus.length`, or less for rows if the longest row is shorter.

    For rows, the end-of-text token is included, and the length is rounded up to a multiple of 8,
    which is fast on a GPU.
    """
    if not corpus.rows:
        return corpus.length
    longest = 0
    for batch in grouped(((None, text) for text in corpus.texts(part, limit)), 1 << 20):
        texts = [text for _, text in batch]
        rows = texts if isinstance(tokenizer, str) else tokenizer.encode_batch(texts)
        longest = max(longest, *map(len, rows))
    return min(corpus.length, 8 * (longest // 8 + 1))


def prepare(
    corpus: Corpus,
    tokenizer: TextTokenizer | str,
    length: int | None,
    out: str | Path,
    *,
    workers: int = 1,
    part: str | None = None,
    limit: int | None = None,
    seed: int = SEED,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """Prepare a corpus in the folder `out`, or open it if it is already prepared.

    See `cwdfm.data.load` for the options. Unfinished work is kept in the folder `out`.part, and the
    next call resumes it.
    """
    check_integer("workers", workers, most=MAX_WORKERS)
    if workers > 1:
        check_main_guard()
    out = Path(out)
    if isinstance(tokenizer, str) and tokenizer != "chars":
        tokenizer = find_tokenizer(tokenizer)
    tokenizer = _for_rows(corpus, tokenizer)
    length = default_length(corpus, tokenizer, part, limit) if length is None else length
    source = text_source(corpus, tokenizer, length, part=part, limit=limit, seed=seed)
    try:
        if (done := _finished(out, source)) is not None:
            return done
        check_writable(out)
        with locked(out):
            if (done := _finished(out, source)) is not None:  # prepared while waiting for the lock
                return done
            work = out.with_name(out.name + ".part")
            open_work(work, _WORK)
            _pack(corpus, tokenizer, source, work, workers, progress)
            if out.exists():
                out.rmdir()  # `_finished` checked that it is empty
            work.rename(out)
            (out / MARKER).unlink(missing_ok=True)
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
    """Write the files of a prepared folder to `work`, then remove temporary files."""
    try:
        if isinstance(tokenizer, str):
            built = CharacterTokenizer.build(corpus.texts(source["part"], source["limit"]))
            tokenizer = _for_rows(corpus, built)
        report = Packing(corpus, tokenizer, source, work).run(workers, progress)
    except Interrupted:
        raise
    except InputError:  # the input is invalid, so there is nothing to resume
        remove_files(work, _WORK)
        raise
    row_bytes = source["length"] * token_dtype(tokenizer.vocab_size).itemsize
    os.truncate(work / "train.bin", report["train"] * row_bytes)
    meta = {
        "magic": _MAGIC,
        "format": FORMAT,
        "name": corpus.name,
        "length": source["length"],
        "rows": {split: report[split] for split in SPLITS},
        "sha256": {split: sha256(work / f"{split}.bin") for split in SPLITS},
        "report": report,
        "source": source,
        "tokenizer": tokenizer.to_json(),
    }
    write_json(work / META, {**meta, "checksum": content_digest(meta)})
    # *.part files are left by a process that was killed while writing.
    for file in (work / VALID_STREAM, work / PROGRESS, *work.glob("*.json.*.part")):
        file.unlink(missing_ok=True)


T = TypeVar("T", bound=TextTokenizer | str)


def _for_rows(corpus: Corpus, tokenizer: T) -> T | RowTokenizer:
    """Wrap the tokenizer in a `RowTokenizer` if each document of the corpus is its own sequence."""
    if not corpus.rows or isinstance(tokenizer, RowTokenizer | str):
        return tokenizer
    return RowTokenizer(tokenizer)


def text_source(
    corpus: Corpus,
    tokenizer: TextTokenizer | str,
    length: int,
    *,
    part: str | None = None,
    limit: int | None = None,
    seed: int = SEED,
) -> dict[str, Any]:
    """Everything that determines the prepared text; used as cache key. Checks the options."""
    check_integer("length", length, 2, MAX_LENGTH)
    check_integer("seed", seed, 0)
    if limit is not None:
        check_integer("limit", limit)
    if part is not None:
        check_choice("part", part, corpus.part_names)
    return {
        **{"corpus": corpus.name, **corpus.origin(), "detokenizer": corpus.detokenizer},
        "tokenizer": tokenizer if isinstance(tokenizer, str) else tokenizer.identity,
        **{"length": length, "part": part, "limit": limit, "seed": seed},
        **_PACKINGS[corpus.rows or isinstance(tokenizer, RowTokenizer)],
        "preparation": PREPARATION,
    }


def _finished(out: Path, source: dict[str, Any]) -> TokenData | None:
    """The prepared data in `out`; None if it is missing or empty, an InputError if it differs."""
    # Computed before `is_prepared`, because another process may finish in between.
    occupied = out.is_file() or (out.is_dir() and any(out.iterdir()))
    if is_prepared(out):
        if (data := open_prepared(out)).source == source:
            return data
        raise InputError(
            f"{out} contains text prepared from different data or with different options; "
            f"choose a different path, or delete it"
        )
    if occupied:
        raise InputError(f"{out} exists and contains other files; choose a different path")
    return None


def is_prepared(folder: Path) -> bool:
    """Whether a folder contains prepared text."""
    return (folder / META).is_file()


def open_prepared(folder: Path) -> TokenData:
    """Memory-map prepared text; raises InputError if the folder is damaged or was not prepared."""
    meta = _read_meta(folder)
    tokenizer = tokenizer_from_json(meta.get("tokenizer"))
    dtype = token_dtype(tokenizer.vocab_size)
    arrays = {split: _map(folder, split, meta, dtype) for split in SPLITS}
    if sum(x.nbytes for x in arrays.values()) <= _VERIFY_UP_TO:
        for split in SPLITS:
            if sha256(folder / f"{split}.bin") != meta["sha256"].get(split):
                raise damaged(folder, f"wrong checksum of {split}.bin")
    report, source = meta["report"], meta["source"]
    return TokenData(meta["name"], arrays["train"], arrays["valid"], tokenizer, report, {}, source)


def _map(folder: Path, split: Split, meta: dict[str, Any], dtype: np.dtype[Any]) -> Tokens:
    path, shape = folder / f"{split}.bin", (meta["rows"][split], meta["length"])
    with readable(path):
        if not path.is_file():  # also false for a named pipe
            raise damaged(folder, f"{path.name} does not exist or is not a regular file")
        size = path.stat().st_size
    if size != shape[0] * shape[1] * dtype.itemsize:
        raise damaged(folder, f"{path.name} has {size:,} bytes, which does not match {shape} ids")
    if not shape[0]:
        return np.empty(shape, dtype)
    # Copy on write, because torch warns about read-only arrays.
    return np.memmap(path, dtype=dtype.newbyteorder("<"), mode="c", shape=shape)


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        with readable(folder / META):
            meta = read_json(folder / META)
    except InputError:
        raise
    except ValueError as error:
        raise damaged(folder, f"{META}: {error}") from error
    check_format(folder, meta, _MAGIC)
    if meta.pop("checksum", None) != content_digest(meta):
        raise damaged(folder, f"wrong checksum of {META}")
    check_metadata(folder, meta, length=int, rows=dict, sha256=dict)
    try:
        check_integer("length", meta["length"], 2, MAX_LENGTH)
        for split in SPLITS:
            check_integer(split, meta["rows"].get(split), 0)
    except InputError as error:
        raise damaged(folder, str(error)) from error
    return dict(meta)
