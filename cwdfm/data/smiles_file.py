"""Molecules of one's own: a text file with one SMILES a line, or a column of a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cwdfm.data.molecules import Molecules, Row
from cwdfm.data.readers import column, is_table, kind_of, lines, sha256
from cwdfm.errors import InputError

LINES = (".smi", ".smiles", ".txt")


@dataclass(frozen=True)
class SmilesFile(Molecules):
    """A file of molecules, read as its ending says; each ending may be followed by `.gz`.

    `.smi`, `.smiles`, `.txt`: one SMILES a line, perhaps with white space and a name behind it.
    `.csv`, `.tsv`: a column of a table with a header.
    """

    path: Path
    column: str | None = None  # of a table; None for `smiles`, capitals or not

    @classmethod
    def of(cls, path: Path, column: str | None = None) -> "SmilesFile":
        """The dataset of a file, with the defaults: length 32, the file's own vocabulary."""
        if not is_table(path) and kind_of(path) not in LINES:
            raise InputError(
                f"cannot tell how to read {path}: known are one SMILES a line "
                f"({', '.join(LINES)}) and tables (.csv, .tsv), also with .gz, and prepared .npz; "
                f"rename the file to fit"
            )
        if column is not None and not is_table(path):
            raise InputError(
                f"column={column!r} is for tables (.csv, .tsv), and {path.name} is read as one "
                f"SMILES a line; leave column out or rename the file"
            )
        return cls(name=path.name, length=32, tokens=None, path=path, column=column)

    def rows(self, limit: int | None) -> Iterator[Row]:
        return islice(self._table() if is_table(self.path) else self._lines(), limit)

    def origin(self) -> dict[str, Any]:
        return {"file": self.path.name, "column": self.column, "sha256": sha256(self.path)}

    def _table(self) -> Iterator[Row]:
        for line, smiles in column(self.path, self.column):
            yield Row(f"line {line}", smiles)

    def _lines(self) -> Iterator[Row]:
        for number, line in enumerate(lines(self.path), start=1):
            yield Row(f"line {number}", (line.split(maxsplit=1) or [""])[0])
