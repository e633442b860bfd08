"""What all pictures share: a figure without global state, colours by solver, a safe write."""

import io
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError, load_extra
from cwdfm.files import replacing

# A solver keeps its colour and marker in every picture, whatever follows its name.
_STYLES = {"Euler": ("#333333", "o"), "Neighbor": ("#009988", "s"), "Entropy": ("#EE7733", "^")}
_MORE = [("#0077BB", "D"), ("#CC3377", "v"), ("#33BBEE", "P"), ("#AA9900", "X"), ("#997755", "*")]
_DPI = 110


def figure_of(width: float, height: float) -> Any:
    """A figure of its own, without pyplot: no window, no global state."""
    return load_extra("matplotlib.figure", "plot").Figure((width, height), layout="constrained")


def solver_styles(solvers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and marker for each solver: by its first word if that is known and still free.

    Eight are told apart before one comes again.
    """
    left, styles = dict(_STYLES), {}
    for solver in solvers:
        known = next((name for name in left if solver.lower().startswith(name.lower())), None)
        if known:
            styles[solver] = left.pop(known)
    more = cycle([*_MORE, *left.values()])
    return {solver: styles.get(solver) or next(more) for solver in solvers}


def check_png(path: Path) -> None:
    """Refuse a path of another format, before anything is drawn."""
    if path.suffix.lower() != ".png":
        raise InputError(f"path must end in .png, got {str(path)!r}; pictures are PNG files")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    write_png(path, buffer.getvalue())


def write_png(path: Path, png: bytes) -> None:
    """Write a picture so that the file is either the old one or the whole new one."""
    with replacing(path) as part:
        part.write_bytes(png)
