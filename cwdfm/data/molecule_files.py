"""Files of molecules: one SMILES per line, a column of a table, or structures (.sdf).

SMILES are returned unchanged. Structures are converted to SMILES with charges, isotopes
and stereochemistry, without explicit hydrogen atoms.
"""

from collections.abc import Iterator
from pathlib import Path

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
from cwdfm.data.text.files import parquet_columns, read_parquet
from cwdfm.errors import InputError, load_extra, reject_options

LINE_SUFFIXES = (".smi", ".smiles", ".txt")  # files with one SMILES per line
SDF = (".sdf", ".sd")
PARQUET = ".parquet"
SMILES_FIELD = "SMILES"  # of a record without atoms: the invalid string that it stands for


def check_molecule_file(path: Path, column: str | None) -> None:
    """Require a supported suffix, and a table if a column is named."""
    kind = file_type(path)
    if is_table(path) or kind == PARQUET:
        return
    if kind not in (*LINE_SUFFIXES, *SDF):
        raise InputError(
            f"cannot tell how to read {path}: supported are files with one SMILES per line "
            f"({', '.join(LINE_SUFFIXES)}), tables (.csv, .tsv, .parquet), structures (.sdf), also "
            f"compressed, and prepared .npz files; rename the file accordingly"
        )
    has = "structures" if kind in SDF else "one SMILES per line"
    reason = f"for tables (.csv, .tsv, .parquet), but {path.name} has {has}"
    reject_options(reason, column=column)


def read_molecules(path: Path, column: str | None) -> Iterator[tuple[str, str]]:
    """(place, SMILES) of every line, row or record; the SMILES may be blank or invalid."""
    kind = file_type(path)
    if kind in SDF:
        for number, smiles in enumerate(_read_structures(path), start=1):
            yield f"record {number}", smiles
    elif kind == PARQUET:
        for number, smiles in enumerate(read_parquet(path, _column(path, column)), start=1):
            yield f"row {number}", smiles
    elif is_table(path):
        for number, smiles in read_column(path, column):
            yield f"line {number}", smiles
    else:
        for number, line in enumerate(lines(path), start=1):
            yield f"line {number}", (line.split(maxsplit=1) or [""])[0]


def _read_structures(path: Path) -> Iterator[str]:
    """The SMILES of each record of a .sdf file; "unreadable" for damaged ones."""
    chem = load_extra("rdkit.Chem", "molecules")
    with opened(path) as file, chem.rdBase.BlockLogs():
        for molecule in chem.ForwardSDMolSupplier(file):
            if molecule is None:
                yield "unreadable"
            elif not molecule.GetNumAtoms() and molecule.HasProp(SMILES_FIELD):
                yield str(molecule.GetProp(SMILES_FIELD))
            else:
                yield str(chem.MolToSmiles(molecule))


def _column(path: Path, column: str | None) -> str:
    """The column of a parquet file, ignoring case."""
    names, wanted = parquet_columns(path), column or "smiles"
    if (found := find_column(names, wanted)) is None:
        raise missing_column(path, wanted, names)
    return found


def column_names(path: Path) -> list[str]:
    """The columns of a table; none for other files."""
    if file_type(path) == PARQUET:
        return parquet_columns(path)
    return table_columns(path) if is_table(path) else []


def read_values(path: Path, column: str) -> Iterator[str]:
    """The values of a column of a table, in the order of `read_molecules`."""
    if file_type(path) == PARQUET:
        return read_parquet(path, column, texts=False)
    return (value for _, value in read_column(path, column))


def has_molecules(path: Path) -> bool:
    """Whether a parquet file has a column `smiles`, ignoring case, and no column `text`."""
    names = parquet_columns(path)
    return "text" not in names and "smiles" in map(str.lower, names)
