"""Read lines and table columns from plain or compressed files.

Errors name the file and the line.
"""

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

from cwdfm.errors import InputError, load_extra

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "zstandard"}
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, OSError)
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PROGRESS_EVERY = 1000  # rows

T = TypeVar("T")
Progress = Callable[[str, int, int | None], object]  # stage, units done, total if known


def file_type(path: Path) -> str:
    """The suffix that selects the format, such as `.smi` or `.csv`, ignoring `.gz`, `.xz`, ..."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()


def is_table(path: Path) -> bool:
    """Whether the file is a table with named columns (.csv or .tsv)."""
    return file_type(path) in _DELIMITERS


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, with their line endings."""
    with opened(path) as file:
        yield from decoded(file, str(path))


@contextmanager
def opened(path: Path, suffix: str | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, and decompress it according to its suffix.

    Raises:
        InputError: the file cannot be read, or is truncated or damaged.
    """
    suffix = path.suffix.lower() if suffix is None else suffix
    with readable(path):
        try:
            with path.open("rb") as raw, _decompressed(raw, suffix) as file:
                yield file
        except _BROKEN as error:
            # Operating system errors have an errno; errors of the decompressors do not.
            if getattr(error, "errno", None) is not None:
                raise
            after = "".join(f", {note}" for note in getattr(error, "__notes__", []))
            raise InputError(
                f"{path} is not a complete {COMPRESSED.get(suffix, 'archive')} file{after}: "
                f"{error}; copy it again, or remove the suffix {suffix} if it is plain text"
            ) from error


def _decompressed(raw: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".zst":
        # The package zstandard would not report a truncated file.
        arrow = load_extra("pyarrow", "text")
        stream = arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")
        return cast(BinaryIO, stream)
    return cast(BinaryIO, _OPENERS[suffix](raw)) if suffix in _OPENERS else raw


def decoded(file: IO[bytes], location: str, newline: str | None = "") -> Iterator[str]:
    """Yield the lines of a UTF-8 file, and close it after the last one.

    location: the name of the file in error messages.
    newline: as for `open`.
    """
    number = 0
    try:
        with io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline) as text:
            for line in text:
                number += 1
                # Invalid bytes were decoded as surrogates, which encode() rejects on this line.
                if not line.isascii():
                    line.encode()
                yield line
    except UnicodeEncodeError as error:
        byte = ord(error.object[error.start]) & 0xFF
        raise InputError(
            f"{location}, line {number}: byte 0x{byte:02x} is not UTF-8 text; save the file as "
            f"UTF-8"
        ) from None
    except _BROKEN as error:
        error.add_note(f"after line {number}")  # `opened` adds it to the message
        raise


def read_column(path: Path, name: str | None) -> Iterator[tuple[int, str]]:
    """Yield (line number, field) for one column of a table with a header.

    The column name ignores case; None means `smiles`. Rows without the field yield "".
    """
    # strict: otherwise an unclosed quote would swallow the rows after it.
    reader = csv.reader(lines(path), delimiter=delimiter(path), strict=True)
    requested = "smiles" if name is None else name
    try:
        if (header := next(reader, None)) is None:
            raise InputError(f"{path} is empty; pass a table with a header line")
        names = [field.strip() for field in header]
        if (column := find_column(names, requested)) is None:
            raise missing_column(path, requested, names)
        index = names.index(column)
        for row in reader:
            yield reader.line_num, row[index] if index < len(row) else ""
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; check the quotes near this line"
        ) from error


def find_column(names: list[str], requested: str) -> str | None:
    """Find a column by its exact name, then case-insensitively.

    None if it is missing or ambiguous.
    """
    matches = [name for name in names if name.lower() == requested.lower()]
    return requested if requested in names else matches[0] if len(matches) == 1 else None


def table_columns(path: Path) -> list[str]:
    """The column names of a table."""
    header = next(csv.reader(lines(path), delimiter=delimiter(path)), [])
    return [field.strip() for field in header]


def delimiter(path: Path) -> str:
    """The delimiter of a table: of comma, semicolon and tab, the one that splits the header most.

    Spreadsheets write semicolons where the comma is the decimal separator. Ties are decided by the
    suffix: a comma in .csv files, a tab in .tsv files.
    """
    usual = _DELIMITERS[file_type(path)]
    header = re.sub('"[^"]*"', "", next(lines(path), ""))
    return max((usual, ",", ";", "\t"), key=header.count)


def missing_column(path: str | Path, column: str, names: list[str]) -> InputError:
    """The error for a table without the column."""
    return InputError(
        f"{path} has no column {column!r}, its columns are {', '.join(map(repr, names))}; choose "
        f"one of them with column=",
        fields=("column",),
    )


def reported(items: Iterable[T], progress: Callable[[int], object] | None) -> Iterator[T]:
    """Yield the items, calling `progress` with the number of items after every thousand."""
    for number, item in enumerate(items, start=1):
        if progress is not None and number % _PROGRESS_EVERY == 0:
            progress(number)
        yield item


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert operating system errors while reading `path` to InputErrors."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from error


def local_data(name: str) -> Path | None:
    """The local copy of a corpus or tokenizer, `$CWDFM_DATA/NAME`; None if there is none."""
    folder = os.environ.get("CWDFM_DATA")
    return Path(folder, name) if folder and Path(folder, name).exists() else None


def summarize_error(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
