"""What all pictures share: a figure without global state, styles by name, a safe write."""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError, load_extra
from cwdfm.files import replacing

# One home of colours and markers: a solver or a training has its own in every picture. The colours
# of the three solvers and of the five trainings are apart for the colour-blind too; markers tell
# what is printed grey.
_SOLVERS = {
    "Euler": ("#333333", "o"),
    "Neighbor": ("#009988", "s"),
    "Entropy": ("#EE7733", "^"),
    "Neighbor-counted": ("#004488", "h"),
    "Entropy-counted": ("#CC3311", "<"),
    "Neighbor-share": ("#004488", "H"),
    "Entropy-inverse": ("#CC3311", "v"),
    "Confidence": ("#AA4499", "P"),
    "Margin": ("#AA4499", "d"),
    "Low-entropy": ("#AA4499", ">"),
    "Entropy-bound": ("#AA4499", "p"),
    "Ancestral": ("#777777", "o"),
    "First-hitting": ("#777777", "D"),
    "Left-to-right": ("#777777", ">"),
    "Analytic": ("#777777", "X"),
    "Score-euler": ("#777777", "8"),
    "Auto": ("#777777", "s"),
}
_TRAININGS = {
    "CE": ("#0077BB", "D"),
    "NELBO": ("#EE3377", "v"),
    "Bregman": ("#66CCEE", "P"),
    "SCE": ("#AA9900", "X"),
    "SCE, context path": ("#552200", "*"),
}
_OTHERS = [  # for names that are neither; with other markers than the three solvers of the paper
    ("#0077BB", "v"),
    ("#EE3377", "P"),
    ("#AA9900", "D"),
    ("#66CCEE", "X"),
    ("#552200", "d"),
    ("#AA4499", "*"),
    ("#777777", "p"),
]
# What else a name tells, such as settings: lines, markers' fillings, and bars' hatches.
_VARIANTS = [("-", "full", ""), ("--", "none", "///"), (":", "left", "..."), ("-.", "top", "xx")]
_DPI = 110
NUMBER = "{x:,.9g}"  # how axes write numbers: 0.5, 1,024, 1,000,000


@dataclass(frozen=True)
class Style:
    """How a line, or a bar, looks."""

    color: str
    marker: str
    line: str = "-"
    fill: str = "full"  # of the marker
    hatch: str = ""  # of a bar

    @property
    def drawn(self) -> dict[str, Any]:
        """As arguments of a line with error bars, which are thin so that many may overlap."""
        return {
            "color": self.color,
            "linestyle": self.line,
            "marker": self.marker,
            "markersize": 8 if self.marker == "*" else 5.5,
            "fillstyle": "full" if self.fill == "none" else self.fill,
            "markerfacecolor": "white" if self.fill == "none" else self.color,
            "markerfacecoloralt": "white",
            "linewidth": 1.4,
            "elinewidth": 0.8,
            "capsize": 2,
        }


def figure_of(width: float, height: float) -> Any:
    """A figure of its own, without pyplot: no window, no global state."""
    return load_extra("matplotlib.figure", "plot").Figure((width, height), layout="constrained")


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """A style for each line of a figure: colour and marker of its solver, or else of its training.

    Where a figure has several of one, what else their names tell makes lines broken and markers
    hollow: "SCE, Euler" beside "CE, Euler". Four are told apart; more, and names that are unknown,
    have other colours, of which there are seven.
    """
    several: dict[str, list[str]] = {}  # of a known name: what else is told, nothing first
    for known, rest in sorted(map(_parts, names), key=lambda parts: bool(parts[1])):
        several.setdefault(known, []).append(rest)
    others = cycle(_OTHERS)
    styles = {}
    for name in names:
        known, rest = _parts(name)
        place = several[known].index(rest)
        if known and place < len(_VARIANTS):
            styles[name] = Style(*(_SOLVERS | _TRAININGS)[known], *_VARIANTS[place])
        else:
            styles[name] = Style(*next(others))
    return styles


def _parts(name: str) -> tuple[str, str]:
    """The solver in a name, or else the training; and what is left of it."""
    for known in (*_longest_first(_SOLVERS), *_longest_first(_TRAININGS)):
        if found := re.search(rf"(?:^|, ){re.escape(known)}(?!\w)", name, re.IGNORECASE):
            return known, (name[: found.start()] + name[found.end() :]).strip(", ")
    return "", name


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=len, reverse=True)


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
