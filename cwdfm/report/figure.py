"""Figures: consistent styles, quality against the number of steps, and atomic PNG files."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError, load_extra
from cwdfm.files import replacing

# Each solver and each training objective has the same color and marker in all figures. The colors
# of the paper's three solvers, and of the five objectives, are distinguishable with color
# blindness. Markers distinguish them in grayscale.
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
_OTHERS = [  # for all other names; markers differ from those of the paper's solvers
    ("#0077BB", "v"),
    ("#EE3377", "P"),
    ("#AA9900", "D"),
    ("#66CCEE", "X"),
    ("#552200", "d"),
    ("#AA4499", "*"),
    ("#777777", "p"),
]
# Line style, marker fill and bar hatch of the variants of one solver or objective.
_VARIANTS = [("-", "full", ""), ("--", "none", "///"), (":", "left", "..."), ("-.", "top", "xx")]
_DPI = 110
NUMBER = "{x:,.9g}"  # format of tick labels: 0.5, 1,024, 1,000,000
_PANEL_WIDTH, _PANEL_HEIGHT = 4.2, 3.9
_LOG_RANGE = 4.0  # below this ratio of largest to smallest, ticks at 1, 2, 5 would be too few
Point = tuple[int, float, float | None]  # steps, value, standard deviation


@dataclass(frozen=True)
class Style:
    """The look of a line or a bar."""

    color: str
    marker: str
    line: str = "-"
    fill: str = "full"  # of the marker
    hatch: str = ""  # of a bar

    @property
    def drawn(self) -> dict[str, Any]:
        """Arguments for `Axes.errorbar`; thin error bars, since many may overlap."""
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
    """A matplotlib figure without pyplot: no window and no global state."""
    return load_extra("matplotlib.figure", "plot").Figure((width, height), layout="constrained")


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """The style of each line: color and marker of its solver, or else of its training objective.

    Names with the same solver or objective, such as "SCE, Euler" and "CE, Euler", get different
    line styles and marker fills, up to four. Further and unknown names use seven other colors.
    """
    variants: dict[str, list[str]] = {}  # the rest of the names with one known part
    for known, rest in sorted(map(_parts, names), key=lambda parts: bool(parts[1])):
        variants.setdefault(known, []).append(rest)
    others = cycle(_OTHERS)
    styles = {}
    for name in names:
        known, rest = _parts(name)
        index = variants[known].index(rest)
        if known and index < len(_VARIANTS):
            styles[name] = Style(*(_SOLVERS | _TRAININGS)[known], *_VARIANTS[index])
        else:
            styles[name] = Style(*next(others))
    return styles


def _parts(name: str) -> tuple[str, str]:
    """The solver in a name, or else the training objective, and the rest of the name."""
    for known in (*_longest_first(_SOLVERS), *_longest_first(_TRAININGS)):
        if found := re.search(rf"(?:^|, ){re.escape(known)}(?!\w)", name, re.IGNORECASE):
            return known, (name[: found.start()] + name[found.end() :]).strip(", ")
    return "", name


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=len, reverse=True)


@dataclass(frozen=True)
class Panel:
    """One score against the number of steps, with one curve per solver."""

    title: str
    curves: Mapping[str, Sequence[Point]]
    level: float | None = None  # dashed line: the score of held-out data
    log: bool = False
    share: bool = False  # the score lies in [0, 1]


def step_curves(
    panels: Sequence[Panel], path: Path, *, title: str | None = None, ylabel: str | None = None
) -> None:
    """Draw panels side by side; with a `ylabel` they share a y axis that begins at 0."""
    check_png(path)
    figure = figure_of(_PANEL_WIDTH * len(panels), _PANEL_HEIGHT)
    axes = figure.subplots(1, len(panels), sharey=ylabel is not None, squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for solver, style in styles_of(list(panel.curves)).items():
            steps, values, errors = zip(
                *sorted(panel.curves[solver], key=lambda point: point[0]), strict=True
            )
            error_bars = [error or 0.0 for error in errors]
            axis.errorbar(steps, values, yerr=error_bars, label=solver, **style.drawn)
        if panel.level is not None:
            axis.axhline(panel.level, color="#888888", linestyle="--", label="held-out text")
        ticks = sorted({steps for curve in panel.curves.values() for steps, _, _ in curve})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [NUMBER.format(x=steps) for steps in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set(xlabel="steps", title=panel.title)
        if panel.log:
            _log_axis(axis)
        if panel.share:
            axis.set_ylim(0, min(1.05, axis.get_ylim()[1]))
    if ylabel is not None:
        axes[0].set(ylabel=ylabel)
        axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    if title is not None:
        figure.suptitle(title)
    save_figure(figure, path)


def _log_axis(axis: Any) -> None:
    """Make the y axis logarithmic, with plain numbers at its ticks."""
    ticker = load_extra("matplotlib.ticker", "plot")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    wide = high > _LOG_RANGE * low
    axis.yaxis.set_major_locator(
        ticker.LogLocator(subs=(1, 2, 5)) if wide else ticker.MaxNLocator(6)
    )
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter(NUMBER))
    axis.yaxis.set_minor_locator(ticker.NullLocator())


def check_png(path: Path) -> None:
    """Require a path that ends in .png."""
    if path.suffix.lower() != ".png":
        raise InputError(f"path must end in .png, got {str(path)!r}; figures are PNG files")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    write_png(path, buffer.getvalue())


def write_png(path: Path, png: bytes) -> None:
    """Write a PNG file atomically."""
    with replacing(path) as part:
        part.write_bytes(png)
