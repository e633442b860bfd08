"""Prepared text on disk: a folder with the tokens of each split and what they are.

    train.bin  valid.bin    ids, little-endian, [rows, length]
    meta.json               name, tokenizer, report, source, rows, checksums

The files are memory-mapped, so that a corpus may be larger than the memory.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from cwdfm.data.dataset import Split, TokenData, Tokens, token_dtype
from cwdfm.data.readers import readable
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json
from cwdfm.errors import InputError
from cwdfm.files import write_json

FORMAT = 1
SPLITS: tuple[Split, ...] = ("train", "valid")
META = "meta.json"

_MAGIC = "cwdfm.text"
_SMALL = 1 << 30  # bytes that are read at every opening to check them
_CHUNK = 1 << 22


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds prepared text, to all appearances."""
    return (folder / META).is_file()


def open_prepared(folder: Path, verify: bool | None = None) -> TokenData:
    """Prepared text, memory-mapped; a damaged or foreign folder is refused.

    verify: compare the checksums of all tokens; None does so up to 1 GiB. Sizes always are.
    """
    meta = read_meta(folder)
    tokenizer = tokenizer_from_json(meta["tokenizer"])
    dtype = token_dtype(tokenizer.vocab_size)
    arrays = {split: _map(folder, split, meta, dtype) for split in SPLITS}
    if verify is None:
        verify = sum(x.nbytes for x in arrays.values()) <= _SMALL
    if verify:
        for split, x in arrays.items():
            if checksum(folder / f"{split}.bin", x.nbytes) != meta["sha256"][split]:
                raise InputError(
                    f"{folder / f'{split}.bin'} is damaged: its checksum is wrong; delete {folder} "
                    f"and prepare it again, or copy it again"
                )
    return TokenData(
        name=meta["name"],
        train=arrays["train"],
        valid=arrays["valid"],
        tokenizer=tokenizer,
        report=meta["report"],
        examples={},
        source=meta["source"],
    )


def _map(folder: Path, split: Split, meta: dict[str, Any], dtype: np.dtype[Any]) -> Tokens:
    path, shape = folder / f"{split}.bin", (meta["rows"][split], meta["length"])
    with readable(path):
        size = path.stat().st_size
    if size < shape[0] * shape[1] * dtype.itemsize:
        raise InputError(
            f"{path} is cut short: {size:,} bytes for {shape[0]:,} rows of {shape[1]} ids; delete "
            f"{folder} and prepare it again, or copy it again"
        )
    if not shape[0]:
        return np.empty(shape, dtype)
    # Copy on write: torch warns of arrays that it may not write to.
    return np.memmap(path, dtype=dtype.newbyteorder("<"), mode="c", shape=shape)


def read_meta(folder: Path) -> dict[str, Any]:
    """The description of a prepared folder."""
    path = folder / META
    try:
        with readable(path):
            meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is damaged: {error}; delete {folder} and prepare it again"
        ) from error
    if not isinstance(meta, dict) or meta.get("magic") != _MAGIC:
        raise InputError(f"{folder} is not text prepared by cwdfm; give a folder that it wrote")
    if meta["format"] > FORMAT:
        raise InputError(
            f"{folder} has format {meta['format']}, this release reads up to {FORMAT}; upgrade "
            f"cwdfm, or prepare the text again with this release"
        )
    if meta.pop("checksum", None) != _digest(meta):
        raise InputError(
            f"{path} is damaged: its checksum is wrong; delete {folder} and prepare it again"
        )
    return meta


def write_meta(
    folder: Path,
    *,
    name: str,
    tokenizer: Tokenizer,
    length: int,
    rows: dict[Split, int],
    report: dict[str, int],
    source: dict[str, Any],
) -> None:
    """Describe the tokens in a folder; the last thing to be written."""
    size = length * token_dtype(tokenizer.vocab_size).itemsize
    meta = {
        "magic": _MAGIC,
        "format": FORMAT,
        "name": name,
        "length": length,
        "rows": rows,
        "sha256": {s: checksum(folder / f"{s}.bin", rows[s] * size) for s in SPLITS},
        "report": report,
        "source": source,
        "tokenizer": tokenizer.to_json(),
    }
    write_json(folder / META, {**meta, "checksum": _digest(meta)})


def checksum(path: Path, size: int) -> str:
    """The SHA-256 of a file's first `size` bytes."""
    digest = hashlib.sha256()
    with readable(path), path.open("rb") as file:
        while size and (data := file.read(min(size, _CHUNK))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()


def _digest(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
