"""Documents inside files: plain text, JSON lines, parquet, and archives of them."""

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import IO, Literal

from cwdfm.data.readers import COMPRESSED, decoded, kind_of, opened, readable
from cwdfm.errors import InputError, load_extra

Unit = Literal["file", "paragraphs", "lines"]
UNITS: tuple[Unit, ...] = ("file", "paragraphs", "lines")

PLAIN = (".txt", ".text", ".md")
JSON_LINES = (".jsonl", ".ndjson")
ARCHIVES = (".tar", ".tgz", ".txz")
KINDS = (*PLAIN, *JSON_LINES, ".parquet", *ARCHIVES)

_ROWS = 256  # of parquet, at a time


def is_text(path: Path) -> bool:
    """Whether the ending says how to read documents from a file."""
    kind = kind_of(path)
    return kind in KINDS and (kind != ".parquet" or path.suffix.lower() not in COMPRESSED)


def records(path: Path, column: str, unit: Unit) -> Iterator[tuple[str, str]]:
    """(place, text) of each document of a file, read as its ending says.

    column: the field of JSON lines, the column of parquet.
    unit: what is one document of plain text: the file, a paragraph (between blank lines), a line.
    """
    kind = kind_of(path)
    if kind == ".parquet":
        yield from _parquet(path, column)
    elif kind in ARCHIVES:
        yield from _archive(path, column, unit)
    else:
        with opened(path) as file:
            yield from _stream(file, str(path), kind, column, unit)


def _stream(
    file: IO[bytes], place: str, kind: str, column: str, unit: Unit
) -> Iterator[tuple[str, str]]:
    lines = decoded(file, place, newline=None)
    if kind in JSON_LINES:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                here = f"{place}, line {number}"
                yield here, _field(line, column, here)
    elif unit == "file":
        yield place, "".join(lines)
    elif unit == "lines":
        for number, line in enumerate(lines, start=1):
            yield f"{place}, line {number}", line.rstrip("\n")
    else:
        yield from _paragraphs(lines, place)


def _paragraphs(lines: Iterable[str], place: str) -> Iterator[tuple[str, str]]:
    found: list[str] = []
    start = 1
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found.append(line)
            continue
        if found:
            yield f"{place}, line {start}", "".join(found).rstrip("\n")
        found, start = [], number + 1
    if found:
        yield f"{place}, line {start}", "".join(found).rstrip("\n")


def _field(line: str, column: str, place: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, too
        raise InputError(
            f"{place}: not JSON ({error}); each line must be one JSON object, such as "
            f'{{"{column}": "..."}}'
        ) from error
    if not isinstance(row, dict):
        raise InputError(
            f"{place}: a {type(row).__name__} and no JSON object; each line must be one, such as "
            f'{{"{column}": "..."}}'
        )
    if column not in row:
        raise InputError(
            f"{place}: no field {column!r}, there is {', '.join(map(repr, row)) or 'nothing'}; "
            f"name the one with the text as column (--column)"
        )
    return as_text(row[column], column, place)


def as_text(value: object, column: str, place: str) -> str:
    """A value as a document; nothing at all is a blank one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{place}: {column!r} must be a string, got {type(value).__name__}; name the one with "
            f"the text as column (--column)"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place}: {column!r} holds half a surrogate pair at character {error.start}, which "
            f"no text has; mend or drop the line"
        ) from None
    return value


def _parquet(path: Path, column: str) -> Iterator[tuple[str, str]]:
    parquet = load_extra("pyarrow.parquet", "text")
    arrow = load_extra("pyarrow", "text")
    number = 0
    try:
        with readable(path), parquet.ParquetFile(path, memory_map=True) as file:
            names = file.schema_arrow.names
            if column not in names:
                raise InputError(
                    f"{path} has no column {column!r}, its columns are "
                    f"{', '.join(map(repr, names))}; name the one with the text as column "
                    f"(--column)"
                )
            for batch in file.iter_batches(batch_size=_ROWS, columns=[column]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    place = f"{path}, row {number}"
                    yield place, as_text(value, column, place)
    except arrow.ArrowException as error:
        raise InputError(
            f"{path} is not a whole parquet file, after row {number}: {error}; copy it again"
        ) from error


def _archive(path: Path, column: str, unit: Unit) -> Iterator[tuple[str, str]]:
    """The text files of a tar archive, in its order."""
    short = {".tgz": ".gz", ".txz": ".xz"}.get(path.suffix.lower())
    members = 0
    try:
        with opened(path, short) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                inner = PurePath(member.name)
                kind = inner.suffix.lower()
                hidden = inner.name.startswith(".")
                if not member.isfile() or hidden or kind not in (*PLAIN, *JSON_LINES):
                    continue
                content = archive.extractfile(member)
                assert content is not None  # of a file there is one
                members += 1
                whole = io.BytesIO(content.read())  # a member of a stream cannot be wrapped
                yield from _stream(whole, f"{path}: {member.name}", kind, column, unit)
    except tarfile.TarError as error:
        raise InputError(
            f"{path} is not a whole tar archive, after {members} text files: {error}; copy it again"
        ) from error
    if not members:
        raise InputError(
            f"{path} holds no text files; known are {', '.join((*PLAIN, *JSON_LINES))}"
        )
