"""Columns: one value per sequence, read from a table or computed from the molecule."""

import math
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
_MISSING = ("", "na", "n/a", "nan", "none", "null", "inf", "-inf")


def parse_column(name: str, cells: Sequence[str], locations: Sequence[str]) -> NDArray[np.generic]:
    """Parse a column into an array [n]: float64 if all cells are numbers, else strings.

    locations: where each cell is in its file, for error messages.
    """
    cells = [cell.strip() for cell in cells]
    if missing := [i for i, cell in enumerate(cells) if cell.lower() in _MISSING]:
        raise InputError(
            f"column {name!r} has no value for {len(missing):,} of {len(cells):,} molecules, the "
            f"first at {locations[missing[0]]}; fill in the values, or remove these rows"
        )
    numbers = [_number(cell) for cell in cells]
    texts = [i for i, number in enumerate(numbers) if number is None]
    if not texts:
        return np.array(numbers, np.float64)
    if len(set(cells)) > MAX_CATEGORIES:
        raise InputError(
            f"column {name!r} has {len(set(cells)):,} distinct values that are not all numbers, "
            f"such as {cells[texts[0]][:40]!r} ({locations[texts[0]]}); at most {MAX_CATEGORIES:,} "
            f"categories are supported; choose another column, or correct the numbers"
        )
    return np.array(cells)


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
        if find_column([*columns, *PROPERTIES], name) is None:
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
