"""Read text files: plain text, JSON lines, parquet, FASTA, tar archives, folders and globs."""

import glob
import io
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path, PurePath
from typing import IO, Any, Literal, get_args

from cwdfm.data.readers import (
    COMPRESSED,
    decoded,
    file_type,
    is_table,
    missing_column,
    opened,
    read_column,
    readable,
    sha256,
)
from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.errors import InputError, check_choice, load_extra, reject_options

# What one document of a plain text file is. Rows are lines, records or table rows; each becomes its
# own sequence.
Unit = Literal["file", "paragraphs", "lines", "rows"]

PLAIN = (".txt", ".text", ".md")
JSON_LINES = (".jsonl", ".ndjson")
IN_ARCHIVES = (*PLAIN, *JSON_LINES)
ARCHIVES = (".tar", ".tgz", ".txz")
FASTA = (".fasta", ".fa", ".faa", ".fna")
SUFFIXES = (*IN_ARCHIVES, ".parquet", *FASTA, *ARCHIVES)

_ROWS = 256  # rows of a parquet file read at a time


@dataclass(frozen=True, kw_only=True)
class TextFiles(Corpus):
    """A user's text files, in the order of their paths; see `read_texts` for the formats."""

    paths: tuple[Path, ...]
    column: str = "text"  # column of a table or parquet file, or field of JSON lines
    unit: Unit = "file"  # what one document of plain text is

    @classmethod
    def of(
        cls, path: str | Path, column: str | None = None, unit: Unit | None = None
    ) -> "TextFiles":
        """The corpus of a file, of the text files in a folder, or of those matching a pattern."""
        check_choice("documents", unit or "file", get_args(Unit))
        name = Path(path).name.replace("*", "all")
        paths = tuple(find_files(path, tables=unit == "rows"))
        types = {file_type(file) for file in paths}
        if types <= {*PLAIN, *FASTA}:
            reason = f"for tables, parquet and JSON lines, but {path} is plain text"
            reject_options(reason, column=column)
        if not types & {*PLAIN, *ARCHIVES} and unit != "rows":
            reason = f"for plain text, but {path} has one document per row"
            reject_options(reason, documents=unit)
        is_fasta = types <= set(FASTA)
        unit = "rows" if is_fasta else unit or "file"
        return cls(
            name=name,
            tokenizer="chars" if is_fasta else cls.tokenizer,
            rows=unit == "rows",
            paths=paths,
            column=column or "text",
            unit=unit,
        )

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        texts = (text for path in self.paths for text in read_texts(path, self.column, self.unit))
        if self.rows:
            texts = (text.strip() for text in texts)
        return (Document(text, None if part is None else "valid") for text in islice(texts, limit))

    def origin(self) -> dict[str, Any]:
        return {
            "files": [{"name": path.name, "sha256": sha256(path)} for path in self.paths],
            "column": self.column,
            "unit_of_text": self.unit,
        }


def find_files(path: str | Path, *, tables: bool = False) -> list[Path]:
    """Find the text files of a path, folder or glob, sorted; raises InputError if there are none.

    tables: whether to treat .csv and .tsv files as text.
    """
    names = (*SUFFIXES, ".csv", ".tsv") if tables else SUFFIXES
    suffixes = f"{', '.join(names)}, also with {', '.join(COMPRESSED)}"
    root = Path(path)
    if root.is_file():
        if not is_text(root, tables=tables):
            raise InputError(
                f"cannot tell how to read {root} as text; supported: {suffixes}; convert the "
                f"file, or rename it accordingly"
            )
        return [root]
    if root.is_dir():
        kind = "is a folder"
        relative = (file.relative_to(root) for file in root.rglob("*"))
        candidates = (
            root / file for file in relative if not re.search(r"(^|/)\.", file.as_posix())
        )
    elif glob.has_magic(str(path)):
        kind = "is a glob pattern"
        candidates = (Path(file) for file in glob.iglob(str(path), recursive=True))  # noqa: PTH207
    else:
        raise InputError(f"{str(path)!r} does not exist; check the path")
    files = sorted(file for file in candidates if file.is_file() and is_text(file, tables=tables))
    if not files:
        raise InputError(
            f"{str(path)!r} {kind} that contains no text files; supported types: {suffixes}"
        )
    return files


def is_text(path: Path, *, tables: bool = False) -> bool:
    """Whether the suffix belongs to a supported text format."""
    kind = file_type(path)
    if is_table(path):
        return tables
    return kind in SUFFIXES and (kind != ".parquet" or path.suffix.lower() not in COMPRESSED)


def read_texts(path: Path, column: str, unit: Unit) -> Iterator[str]:
    """Yield the documents of a file, whose suffix selects the format."""
    kind = file_type(path)
    if kind == ".parquet":
        yield from read_parquet(path, column)
    elif is_table(path):
        yield from (text for _, text in read_column(path, column))
    elif kind in ARCHIVES:
        yield from _read_archive(path, column, unit)
    else:
        with opened(path) as file:
            yield from _read_stream(file, str(path), kind, column, unit)


def _read_stream(
    file: IO[bytes], location: str, kind: str, column: str, unit: Unit
) -> Iterator[str]:
    lines = decoded(file, location, newline=None)
    if kind in JSON_LINES:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _json_field(line, column, f"{location}, line {number}")
    elif kind in FASTA:
        yield from _read_fasta(lines, location)
    elif unit == "file":
        yield "".join(lines)
    elif unit in ("lines", "rows"):
        yield from (line.rstrip("\n") for line in lines)
    else:
        for has_text, group in groupby(lines, lambda line: bool(line.strip())):
            if has_text:
                yield "".join(group).rstrip("\n")


def _read_fasta(lines: Iterator[str], location: str) -> Iterator[str]:
    """Yield the sequences of a FASTA file: each starts with `>name` and may span several lines."""
    parts: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        if line.startswith(">"):
            if parts is not None:
                yield "".join(parts)
            parts = []
        elif line.strip() and not line.startswith(";"):  # lines with ; are comments
            if parts is None:
                raise InputError(
                    f"{location}, line {number}: a FASTA file must start with a line '>name', got "
                    f"{line.strip()[:40]!r}; check the file"
                )
            parts += line.split()
    if parts is not None:
        yield "".join(parts)


def _json_field(line: str, column: str, location: str) -> str:
    expected = f'each line must be a JSON object such as {{"{column}": "..."}}'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also a ValueError: numbers with too many digits
        raise InputError(f"{location}: not JSON ({error}); {expected}") from error
    if not isinstance(row, dict):
        raise InputError(f"{location}: {expected}, got a {type(row).__name__}; check the file")
    if column not in row:
        raise InputError(
            f"{location}: there is no field {column!r}, only {', '.join(map(repr, row)) or 'none'}"
            f"; name the field that contains the text with column=",
            fields=("column",),
        )
    return as_text(row[column], column, location)


def as_text(value: object, column: str, location: str) -> str:
    """Check that a value is valid text; null becomes a blank document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{location}: {column!r} must be a string, got {type(value).__name__}; name the field "
            f"that contains the text with column=",
            fields=("column",),
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{location}: {column!r} contains an unpaired surrogate at character {error.start}; "
            f"fix or remove the line"
        ) from None
    return value


def parquet_columns(path: Path) -> list[str]:
    """The column names of a parquet file."""
    with _open_parquet(path) as file:
        names: list[str] = file.schema_arrow.names
        return names


def read_parquet(path: Path, column: str, *, texts: bool = True) -> Iterator[str]:
    """Yield the values of a column, which must be strings if `texts`; null becomes ""."""
    number = 0
    with _open_parquet(path) as file:
        if column not in (names := file.schema_arrow.names):
            raise missing_column(path, column, names)
        for batch in file.iter_batches(batch_size=_ROWS, columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                if not texts:
                    value = None if value is None else str(value)
                yield as_text(value, column, f"{path}, row {number}")


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    parquet, arrow = load_extra("pyarrow.parquet", "text"), load_extra("pyarrow", "text")
    try:
        with readable(path), parquet.ParquetFile(path, memory_map=True) as file:
            yield file
    except arrow.ArrowException as error:
        raise InputError(
            f"{path} is not a complete parquet file: {error}; copy it again"
        ) from error


def _read_archive(path: Path, column: str, unit: Unit) -> Iterator[str]:
    """The documents of the text files in a tar archive, in archive order."""
    compression = {".tgz": ".gz", ".txz": ".xz"}.get(path.suffix.lower())
    members = 0
    try:
        with opened(path, compression) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                inner = PurePath(member.name)
                kind = "" if inner.name.startswith(".") else inner.suffix.lower()
                if not member.isfile() or kind not in IN_ARCHIVES:
                    continue
                content = archive.extractfile(member)
                assert content is not None  # not None for a file
                members += 1
                data = io.BytesIO(content.read())  # members of a stream cannot be wrapped
                yield from _read_stream(data, f"{path}: {member.name}", kind, column, unit)
    except tarfile.TarError as error:
        raise InputError(
            f"{path} is not a complete tar archive, after {members} text files: {error}; copy it "
            f"again"
        ) from error
    if not members:
        raise InputError(f"{path} contains no text files; supported: {', '.join(IN_ARCHIVES)}")
