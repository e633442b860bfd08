"""Text of one's own: files, folders, globs."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cwdfm.data.readers import COMPRESSED, kind_of, sha256
from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.data.text.records import ARCHIVES, KINDS, PLAIN, UNITS, Unit, is_text, records
from cwdfm.errors import InputError, check_choice


@dataclass(frozen=True, kw_only=True)
class TextFiles(Corpus):
    """Files of text, in the order of their paths; see `records` for how each kind is read."""

    paths: tuple[Path, ...]
    column: str = "text"
    unit: Unit = "file"

    @classmethod
    def of(
        cls, path: str | Path, column: str | None = None, unit: Unit | None = None
    ) -> "TextFiles":
        """The corpus of a file, of all text files in a folder, or of those that fit a glob."""
        check_choice("documents", unit or "file", UNITS)
        name = Path(path).name.replace("*", "all")
        paths = tuple(find_files(path))
        kinds = {kind_of(file) for file in paths}
        if column is not None and kinds <= set(PLAIN):
            raise InputError(
                f"column={column!r} is for parquet and JSON lines, and {path} is plain text; "
                f"leave it out"
            )
        if unit is not None and not kinds & {*PLAIN, *ARCHIVES}:
            raise InputError(
                f"documents={unit!r} is for plain text, and {path} has a document a row; leave "
                f"it out"
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
    """The text files that a path, a folder or a glob means, sorted; at least one."""
    endings = f"{', '.join(KINDS)}, also with {', '.join(COMPRESSED)}"
    root = Path(path)
    if root.is_file():
        if not is_text(root):
            raise InputError(
                f"cannot tell how to read {root} as text: known are {endings}; save its text as "
                f"one of these, or rename the file to fit"
            )
        return [root]
    if root.is_dir():
        what = "is a folder"
        inside = (file for file in root.rglob("*") if not _hidden(file.relative_to(root)))
    elif glob.has_magic(str(path)):
        what = "is a pattern"
        inside = (Path(file) for file in glob.iglob(str(path), recursive=True))  # noqa: PTH207
    else:
        raise InputError(f"{str(path)!r} does not exist; check the path")
    found = sorted(file for file in inside if file.is_file() and is_text(file))
    if not found:
        raise InputError(f"{str(path)!r} {what} without text files; known are {endings}")
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
