"""Columns: one value per sequence, read from a table or computed from the molecule."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.dataset import TokenData
from cwdfm.data.properties import PROPERTIES, map_molecules, properties_of
from cwdfm.data.readers import Progress, find_column
from cwdfm.errors import InputError, check_strings

MAX_CATEGORIES = 1000
_FEW_CATEGORIES = 20  # allowed even if every molecule has its own
_MISSING = ("", "na", "n/a", "#n/a", "nan", "none", "null")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_INEXACT = re.compile(r"[<>=~≤≥]*\s*[-+]?[\d.,]*\d[\d.,]*")  # >10, ~5, 1,234.5


def parse_column(name: str, cells: Sequence[str], locations: Sequence[str]) -> NDArray[np.generic]:
    """Parse a column into an array [n]: float64 if all values are numbers, else strings.

    Numbers may have decimal commas. Cells without a value become NaN, or "" in an array of strings.

    locations: where each cell is in its file, for error messages.
    """
    cells = ["" if cell.strip().lower() in _MISSING else cell.strip() for cell in cells]
    if not (known := {cell for cell in cells if cell}):
        message = f"column {name!r} has no value for any of the {len(cells):,} molecules"
        raise InputError(f"{message}; choose another column", fields=("condition",))
    comma = any("," in cell for cell in known) and not any("." in cell for cell in known)
    if comma and not all(_THOUSANDS.fullmatch(cell) for cell in known if "," in cell):
        decimal = {cell: cell.replace(",", ".") for cell in known}
    else:
        decimal = {cell: cell for cell in known}
    numbers = {cell: _number(text) for cell, text in decimal.items()}
    texts = [i for i, cell in enumerate(cells) if cell and numbers[cell] is None]
    if not texts:
        return np.array([math.nan if not cell else numbers[cell] for cell in cells], np.float64)
    example = f"such as {cells[texts[0]][:40]!r} ({locations[texts[0]]})"
    if 2 * sum(map(bool, map(_INEXACT.fullmatch, known))) > len(known):
        raise InputError(
            f"column {name!r} contains numbers, but {len(texts):,} of its {len(cells):,} values "
            f"are not, {example}; write them without units, signs such as '>' and separators of "
            f"thousands, and leave cells empty that have no exact value",
            fields=("condition",),
        )
    most = min(MAX_CATEGORIES, max(_FEW_CATEGORIES, len(cells) // 2))
    if len(known) > most:
        raise InputError(
            f"column {name!r} has {len(known):,} distinct values that are not all numbers, "
            f"{example}; at most {most:,} categories are supported for {len(cells):,} molecules; "
            f"choose another column, or correct the numbers",
            fields=("condition",),
        )
    return np.array(cells)


def is_missing(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which entries of a parsed column have no value."""
    missing: NDArray[np.bool_] = np.isnan(values) if values.dtype.kind == "f" else values == ""
    return missing


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def with_columns(
    data: TokenData,
    names: Sequence[str],
    *,
    workers: int = 1,
    progress: Progress = lambda *_: None,
) -> TokenData:
    """Add the named columns, computing those that are missing as properties of the molecules."""
    check_names(data.name, names, list(data.columns))
    missing = [name for name in names if find_column(list(data.columns), name) is None]
    if not missing:
        return data
    compute = partial(properties_of, [str(find_column(list(PROPERTIES), name)) for name in missing])
    texts = data.texts("train") + data.texts("valid")

    def report(done: int) -> None:
        progress("properties", done, len(texts))

    values = np.array(list(map_molecules(compute, texts, workers, report)), np.float64).T
    return replace(data, columns={**data.columns, **dict(zip(missing, values, strict=True))})


def check_names(data: str, names: Sequence[str], columns: list[str]) -> None:
    """Raise an error unless the names are distinct columns, or properties that can be computed."""
    if not names:
        return
    check_strings("condition", names, "names")
    for name in names:
        matches = [column for column in columns if column.lower() == name.lower()]
        if find_column(matches or list(PROPERTIES), name) is None:
            existing = f"its columns are {', '.join(columns)}" if columns else "it has none"
            raise InputError(
                f"{data} has no column {name!r}, {existing}; when preparing the data, name a "
                f"column of the table, or one of the molecular properties that can be computed: "
                f"{', '.join(map(str.lower, PROPERTIES))}",
                fields=("condition",),
            )
    if len({name.lower() for name in names}) < len(names):
        message = f"condition={' '.join(names)!r} names a column twice"
        raise InputError(message, fields=("condition",))
