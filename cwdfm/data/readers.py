"""Files line by line and column by column, plain or compressed; bad ones are refused by line."""

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, BinaryIO, cast

from cwdfm.data.zst import ZstReader
from cwdfm.errors import InputError, NotInstalled

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "zstandard"}
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, OSError)
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def kind_of(path: Path) -> str:
    """The ending that says how to read a file: `.smi`, `.csv`, ...; `.gz`, `.xz`, ... set aside."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()


def is_table(path: Path) -> bool:
    """Whether a file has named columns, by its ending."""
    return kind_of(path) in _DELIMITERS


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, line ends as they are."""
    with opened(path) as file:
        yield from decoded(file, str(path))


@contextmanager
def opened(path: Path, ending: str | None = None) -> Iterator[BinaryIO]:
    """A file to read bytes from, decompressed as its ending says; a broken one is refused."""
    ending = path.suffix.lower() if ending is None else ending
    with readable(path):
        try:
            with path.open("rb") as raw, _decompressed(raw, ending) as file:
                yield file
        except _BROKEN as error:
            # What the operating system says comes with a number, what a decompressor says without.
            if getattr(error, "errno", None) is not None:
                raise
            after = "".join(f", {note}" for note in getattr(error, "__notes__", []))
            raise InputError(
                f"{path} is not a whole {COMPRESSED.get(ending, 'archive')} file{after}: {error}; "
                f"copy it again, or drop the ending {ending} if it is plain text"
            ) from error


def _decompressed(raw: BinaryIO, ending: str) -> BinaryIO:
    if ending == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if ending == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if ending == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(raw))
    if ending == ".zst":
        return cast(BinaryIO, io.BufferedReader(ZstReader(raw)))
    return raw


def decoded(file: IO[bytes], place: str, newline: str | None = "") -> Iterator[str]:
    """The lines of a file of UTF-8 bytes, which is closed behind the last.

    `place` names it in messages, `newline` is `open`'s.
    """
    number = 0
    try:
        with io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline) as text:
            for line in text:
                number += 1
                # Undecodable bytes arrive as surrogates, so that the line can be named.
                if not line.isascii():
                    line.encode()
                yield line
    except UnicodeEncodeError as error:
        byte = ord(error.object[error.start]) & 0xFF
        raise InputError(
            f"{place}, line {number}: byte 0x{byte:02x} is not UTF-8 text; save the file as UTF-8"
        ) from None
    except _BROKEN as error:
        error.add_note(f"after line {number}")  # `opened` tells it
        raise


def column(path: Path, name: str | None) -> Iterator[tuple[int, str]]:
    """(line number, field) of one column of a table with a header.

    Capitals do not matter in the column's name; None asks for the column `smiles`.
    A row too short to have the field gives an empty one.
    """
    reader = csv.reader(lines(path), delimiter=_DELIMITERS[kind_of(path)])
    wanted = "smiles" if name is None else name
    try:
        header = next(reader, None)
        if header is None:
            raise InputError(f"{path} is empty; give a table with a header line")
        names = [field.strip() for field in header]
        place = _find(wanted, names)
        if place is None:
            raise InputError(
                f"{path} has no column {wanted!r}, its columns are "
                f"{', '.join(map(repr, names))}; name one of them as column (--column of prepare "
                f"and train; for other commands, prepare the file first). Columns are told apart "
                f"by commas in .csv, by tabs in .tsv; text in a table is read from .jsonl or "
                f".parquet"
            )
        for row in reader:
            yield reader.line_num, row[place] if place < len(row) else ""
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; check the quotes around there"
        ) from error


def _find(wanted: str, names: list[str]) -> int | None:
    if wanted in names:
        return names.index(wanted)
    same = [i for i, name in enumerate(names) if name.lower() == wanted.lower()]
    return same[0] if len(same) == 1 else None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a file into a message that helps."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from error


def package_files(module: str, package: str, install: str, names: list[str]) -> list[Path]:
    """Files inside an installed package, found without importing the package's code."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalled(
            f"this dataset comes with the package {package}, which is not installed; run: {install}"
        )
    root = Path(spec.submodule_search_locations[0])
    files = [root / name for name in names]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise NotInstalled(
            f"the installed {package} lacks {', '.join(missing)}; "
            f"run: pip install --force-reinstall --no-deps {package}"
        )
    return files


def package_version(package: str) -> str | None:
    """The installed version of a package; None where its metadata are missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
