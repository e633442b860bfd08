"""Text files: plain text, JSON lines, parquet, tar archives, and folders and globs of them."""

import glob
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any, Literal

from cwdfm.data.readers import COMPRESSED, decoded, file_type, opened, readable, sha256
from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.errors import InputError, check_choice, load_extra

Unit = Literal["file", "paragraphs", "lines"]  # one document of a plain text file
UNITS: tuple[Unit, ...] = ("file", "paragraphs", "lines")

PLAIN = (".txt", ".text", ".md")
JSON_LINES = (".jsonl", ".ndjson")
ARCHIVES = (".tar", ".tgz", ".txz")
SUFFIXES = (*PLAIN, *JSON_LINES, ".parquet", *ARCHIVES)

_ROWS = 256  # rows of a parquet file read at a time


@dataclass(frozen=True, kw_only=True)
class TextFiles(Corpus):
    """A user's text files, in the order of their paths; see `records` for the formats."""

    paths: tuple[Path, ...]
    column: str = "text"
    unit: Unit = "file"

    @classmethod
    def of(
        cls, path: str | Path, column: str | None = None, unit: Unit | None = None
    ) -> "TextFiles":
        """The corpus of a file, of all text files in a folder, or of all that match a glob."""
        check_choice("documents", unit or "file", UNITS)
        name = Path(path).name.replace("*", "all")
        paths = tuple(find_files(path))
        types = {file_type(file) for file in paths}
        if column is not None and types <= set(PLAIN):
            raise InputError(
                f"column={column!r} is only for parquet and JSON lines, but {path} is plain text; "
                f"leave it out",
                fields=("column",),
            )
        if unit is not None and not types & {*PLAIN, *ARCHIVES}:
            raise InputError(
                f"documents={unit!r} is only for plain text, but {path} has one document per row; "
                f"leave it out",
                fields=("documents",),
            )
        return cls(name=name, paths=paths, column=column or "text", unit=unit or "file")

    @property
    def part_names(self) -> tuple[str, ...]:
        return ("all",)

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        found = (item for path in self.paths for item in records(path, self.column, self.unit))
        for place, text in islice(found, limit):
            yield Document(place, text, None if part is None else "valid")

    def origin(self) -> dict[str, Any]:
        return {
            "files": [{"name": path.name, "sha256": sha256(path)} for path in self.paths],
            "column": self.column,
            "unit_of_text": self.unit,
        }


def find_files(path: str | Path) -> list[Path]:
    """The text files of a path, folder or glob, sorted; InputError if there are none."""
    suffixes = f"{', '.join(SUFFIXES)}, also with {', '.join(COMPRESSED)}"
    root = Path(path)
    if root.is_file():
        if not is_text(root):
            raise InputError(
                f"cannot tell how to read {root} as text: supported are {suffixes}; convert the "
                f"file, or rename it accordingly"
            )
        return [root]
    if root.is_dir():
        what = "is a folder"
        inside = (file for file in root.rglob("*") if not _hidden(file.relative_to(root)))
    elif glob.has_magic(str(path)):
        what = "is a glob pattern"
        inside = (Path(file) for file in glob.iglob(str(path), recursive=True))  # noqa: PTH207
    else:
        raise InputError(f"{str(path)!r} does not exist; check the path")
    found = sorted(file for file in inside if file.is_file() and is_text(file))
    if not found:
        raise InputError(f"{str(path)!r} {what} without text files; supported are {suffixes}")
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def is_text(path: Path) -> bool:
    """Whether the suffix is that of a supported text file."""
    kind = file_type(path)
    return kind in SUFFIXES and (kind != ".parquet" or path.suffix.lower() not in COMPRESSED)


def records(path: Path, column: str, unit: Unit) -> Iterator[tuple[str, str]]:
    """(place, text) of each document of a file; the suffix selects the format.

    column: the field of JSON lines, or the column of a parquet file.
    unit: what forms one document of plain text: the file, a paragraph or a line.
    """
    kind = file_type(path)
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
    except (ValueError, RecursionError) as error:  # ValueError also for numbers of many digits
        raise InputError(
            f"{place}: not JSON ({error}); each line must be a JSON object such as "
            f'{{"{column}": "..."}}'
        ) from error
    if not isinstance(row, dict):
        raise InputError(
            f"{place}: expected a JSON object such as "
            f'{{"{column}": "..."}}, got a {type(row).__name__}; check the file'
        )
    if column not in row:
        raise InputError(
            f"{place}: there is no field {column!r}, only {', '.join(map(repr, row)) or 'none'}; "
            f"name the field that contains the text with column=",
            fields=("column",),
        )
    return as_text(row[column], column, place)


def as_text(value: object, column: str, place: str) -> str:
    """Check that a value is valid text; null becomes a blank document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{place}: {column!r} must be a string, got {type(value).__name__}; name the field "
            f"that contains the text with column=",
            fields=("column",),
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place}: {column!r} contains an unpaired surrogate at character {error.start}; fix "
            f"or remove the line"
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
                    f"{', '.join(map(repr, names))}; name the one that contains the text with "
                    f"column=",
                    fields=("column",),
                )
            for batch in file.iter_batches(batch_size=_ROWS, columns=[column]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    place = f"{path}, row {number}"
                    yield place, as_text(value, column, place)
    except arrow.ArrowException as error:
        raise InputError(
            f"{path} is not a complete parquet file, after row {number}: {error}; copy it again"
        ) from error


def _archive(path: Path, column: str, unit: Unit) -> Iterator[tuple[str, str]]:
    """The documents of the text files in a tar archive, in archive order."""
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
                assert content is not None  # because it is a file
                members += 1
                data = io.BytesIO(content.read())  # members of a stream cannot be wrapped
                yield from _stream(data, f"{path}: {member.name}", kind, column, unit)
    except tarfile.TarError as error:
        raise InputError(
            f"{path} is not a complete tar archive, after {members} text files: {error}; copy it "
            f"again"
        ) from error
    if not members:
        raise InputError(
            f"{path} contains no text files; supported are {', '.join((*PLAIN, *JSON_LINES))}"
        )
