"""Read files of molecules: one SMILES per line, a column of a table, or structures (.sdf).

SMILES are returned unchanged. Structures are converted to SMILES that keep charges, isotopes and
stereochemistry but not explicit hydrogen atoms.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cwdfm.data.readers import (
    file_type,
    find_column,
    is_table,
    lines,
    missing_column,
    opened,
    read_column,
    table_columns,
)
from cwdfm.data.smiles import rdkit, to_smiles
from cwdfm.data.text.files import parquet_columns, read_parquet
from cwdfm.errors import InputError, reject_options

LINE_SUFFIXES = (".smi", ".smiles", ".txt")  # files with one SMILES per line
SDF = (".sdf", ".sd")
PARQUET = ".parquet"
SMILES_FIELD = "SMILES"  # property of an .sdf record without atoms: its invalid SMILES


def check_molecule_file(path: Path, column: str | None) -> None:
    """Raise an error for an unsupported suffix, or for a column name without a table."""
    kind = file_type(path)
    if is_table(path) or kind == PARQUET:
        return
    if kind not in (*LINE_SUFFIXES, *SDF):
        raise InputError(
            f"cannot tell how to read {path}; supported: files with one SMILES per line "
            f"({', '.join(LINE_SUFFIXES)}), tables (.csv, .tsv, .parquet), structures (.sdf), also "
            f"compressed, and prepared .npz files; rename the file accordingly"
        )
    content = "structures" if kind in SDF else "one SMILES per line"
    reason = f"for tables (.csv, .tsv, .parquet), but {path.name} has {content}"
    reject_options(reason, column=column)


def read_molecules(path: Path, column: str | None) -> Iterator[tuple[str, str]]:
    """Yield (location, SMILES) of every line, row or record; a SMILES may be blank or invalid."""
    kind = file_type(path)
    if kind in SDF:
        for number, smiles in enumerate(_read_structures(path), start=1):
            yield f"record {number}", smiles
    elif kind == PARQUET:
        for number, smiles in enumerate(read_parquet(path, _parquet_column(path, column)), start=1):
            yield f"row {number}", smiles
    elif is_table(path):
        for number, smiles in read_column(path, column):
            yield f"line {number}", smiles
    else:
        for number, line in enumerate(lines(path), start=1):
            yield f"line {number}", (line.split(maxsplit=1) or [""])[0]


def _read_structures(path: Path) -> Iterator[str]:
    """Yield the SMILES of each record of an .sdf file; "unreadable" for a damaged record."""
    for molecule in _records(path):
        if molecule is None:
            yield "unreadable"
        elif not molecule.GetNumAtoms() and molecule.HasProp(SMILES_FIELD):
            yield str(molecule.GetProp(SMILES_FIELD))
        else:
            yield to_smiles(molecule)


def _records(path: Path, *, sanitize: bool = True) -> Iterator[Any]:
    """Yield the molecules of an .sdf file; None for damaged records."""
    chem = rdkit()
    with opened(path) as file, chem.rdBase.BlockLogs():
        yield from chem.ForwardSDMolSupplier(file, sanitize=sanitize)


def _parquet_column(path: Path, column: str | None) -> str:
    """The name of a column in a parquet file, ignoring case; by default `smiles`."""
    names, requested = parquet_columns(path), column or "smiles"
    if (name := find_column(names, requested)) is None:
        raise missing_column(path, requested, names)
    return name


def column_names(path: Path) -> list[str]:
    """The column names of a table, or the fields of an .sdf file; empty for other files."""
    if file_type(path) == PARQUET:
        return parquet_columns(path)
    if file_type(path) in SDF:
        records = filter(None, _records(path, sanitize=False))
        return list(dict.fromkeys(name for record in records for name in record.GetPropNames()))
    return table_columns(path) if is_table(path) else []


def read_values(path: Path, column: str) -> Iterator[str]:
    """Yield the values of a column in the order of `read_molecules`."""
    if file_type(path) == PARQUET:
        yield from read_parquet(path, column, texts=False)
    elif file_type(path) in SDF:
        for record in _records(path, sanitize=False):
            yield record.GetProp(column) if record and record.HasProp(column) else ""
    else:
        yield from (value for _, value in read_column(path, column))


def has_molecules(path: Path) -> bool:
    """Whether a parquet file has a column `smiles`, ignoring case, and no column `text`."""
    names = parquet_columns(path)
    return "text" not in names and "smiles" in map(str.lower, names)
