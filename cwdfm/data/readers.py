"""Reading files: plain or compressed lines, table columns, and files of installed packages.

Errors name the file and the line.
"""

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, BinaryIO, cast

from cwdfm.errors import InputError, NotInstalled, load_extra

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "zstandard"}
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, OSError)
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def file_type(path: Path) -> str:
    """The suffix that selects the format, such as `.smi` or `.csv`, ignoring `.gz`, `.xz`, ..."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()


def is_table(path: Path) -> bool:
    """Whether the suffix is that of a table with named columns."""
    return file_type(path) in _DELIMITERS


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, with their line endings."""
    with opened(path) as file:
        yield from decoded(file, str(path))


@contextmanager
def opened(path: Path, suffix: str | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed according to its suffix.

    Raises:
        InputError: the file cannot be read, or is truncated or damaged.
    """
    suffix = path.suffix.lower() if suffix is None else suffix
    with readable(path):
        try:
            with path.open("rb") as raw, _decompressed(raw, suffix) as file:
                yield file
        except _BROKEN as error:
            # Errors of the operating system have an errno, those of decompressors do not.
            if getattr(error, "errno", None) is not None:
                raise
            after = "".join(f", {note}" for note in getattr(error, "__notes__", []))
            raise InputError(
                f"{path} is not a complete {COMPRESSED.get(suffix, 'archive')} file{after}: "
                f"{error}; copy it again, or remove the suffix {suffix} if it is plain text"
            ) from error


def _decompressed(raw: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(raw))
    if suffix == ".zst":
        # Not the package zstandard, whose stream reader ignores that a file is truncated.
        arrow = load_extra("pyarrow", "text")
        stream = arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")
        return cast(BinaryIO, stream)
    return raw


def decoded(file: IO[bytes], place: str, newline: str | None = "") -> Iterator[str]:
    """The lines of a file of UTF-8 bytes, which is closed after the last line.

    place: the name of the file in error messages.
    newline: as for `open`.
    """
    number = 0
    try:
        with io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline) as text:
            for line in text:
                number += 1
                # Undecodable bytes become surrogates, which tells us the number of their line.
                if not line.isascii():
                    line.encode()
                yield line
    except UnicodeEncodeError as error:
        byte = ord(error.object[error.start]) & 0xFF
        raise InputError(
            f"{place}, line {number}: byte 0x{byte:02x} is not UTF-8 text; save the file as UTF-8"
        ) from None
    except _BROKEN as error:
        error.add_note(f"after line {number}")  # `opened` adds it to the message
        raise


def read_column(path: Path, name: str | None) -> Iterator[tuple[int, str]]:
    """(line number, field) for one column of a table with a header.

    The column name is case-insensitive; None means `smiles`. Rows without the field yield "".
    """
    reader = csv.reader(lines(path), delimiter=_DELIMITERS[file_type(path)])
    wanted = "smiles" if name is None else name
    try:
        header = next(reader, None)
        if header is None:
            raise InputError(f"{path} is empty; give a table with a header line")
        names = [field.strip() for field in header]
        index = _find(wanted, names)
        if index is None:
            raise InputError(
                f"{path} has no column {wanted!r}, its columns are {', '.join(map(repr, names))}; "
                f"name one of them with column=. Columns are separated by commas in .csv files and "
                f"by tabs in .tsv files. Text in a table must be .jsonl or .parquet",
                fields=("column",),
            )
        for row in reader:
            yield reader.line_num, row[index] if index < len(row) else ""
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; check the quotes near this line"
        ) from error


def _find(wanted: str, names: list[str]) -> int | None:
    if wanted in names:
        return names.index(wanted)
    same = [i for i, name in enumerate(names) if name.lower() == wanted.lower()]
    return same[0] if len(same) == 1 else None


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


def package_files(module: str, package: str, install: str, names: list[str]) -> list[Path]:
    """Files inside an installed package, found without importing the package."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalled(
            f"this dataset is part of the package {package}, which is not installed; run: {install}"
        )
    root = Path(spec.submodule_search_locations[0])
    files = [root / name for name in names]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise NotInstalled(
            f"the installed package {package} has no {', '.join(missing)}; "
            f"run: pip install --force-reinstall --no-deps {package}"
        )
    return files
