"""Figures: consistent styles, curves of scores over the number of steps, and PNG files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from cwdfm.errors import load_extra
from cwdfm.files import replacing
from cwdfm.report.sample_set import Scored

# {color: {name: marker}}. A solver or training objective has the same style in all figures. The
# colors of the paper's three solvers and of the five objectives are colorblind-safe, and their
# markers differ in grayscale.
_SOLVER_COLORS = {
    "#333333": {"Euler": "o"},
    "#009988": {"Neighbor": "s"},
    "#EE7733": {"Entropy": "^"},
    "#004488": {"Neighbor-counted": "h", "Neighbor-share": "H"},
    "#CC3311": {"Entropy-counted": "<", "Entropy-inverse": "v"},
    "#AA4499": {"Confidence": "P", "Margin": "d", "Low-entropy": ">", "Entropy-bound": "p"}
    | {"Threshold": "*", "Klass": "X"},
    "#117733": {
        "Path-planning": "D",
        "Remask": "v",
        "Gibbs": "P",
        "Edit": "^",
        "Entropy-pace": "h",
    },
    "#777777": {"Ancestral": "o", "First-hitting": "D", "Left-to-right": ">", "Analytic": "X"}
    | {"Score-euler": "8", "Auto": "s", "Theta-trapezoidal": "^", "Theta-rk2": "v"}
    | {"Random-order": "p"},
}
_SOLVERS = {name: (c, m) for c, names in _SOLVER_COLORS.items() for name, m in names.items()}
_TRAININGS = {
    "CE": ("#0077BB", "D"),
    "NELBO": ("#EE3377", "v"),
    "Bregman": ("#66CCEE", "P"),
    "SCE": ("#AA9900", "X"),
    "SCE, context path": ("#552200", "*"),
}
# For all other names. The markers differ from those of the paper's solvers.
_OTHERS = [("#0077BB", "v"), ("#EE3377", "P"), ("#AA9900", "D"), ("#66CCEE", "X")]
_OTHERS += [("#552200", "d"), ("#AA4499", "8"), ("#777777", "p")]
# Line style, marker fill and bar hatch of the variants of one solver or objective.
_VARIANTS = [("-", "full", ""), ("--", "none", "///"), (":", "left", "..."), ("-.", "top", "xx")]
_DPI = 110
NUMBER = "{x:,.9g}"  # format of tick labels: 0.5, 1,024, 1,000,000
_PANEL_WIDTH, _PANEL_HEIGHT = 4.2, 3.9
_LOG_RANGE = 4.0  # minimum ratio of the y limits for ticks at 1, 2, 5; else there are too few
Point = tuple[int, float, float | None]  # steps, value, error


@dataclass(frozen=True)
class Style:
    """The style of a line or a bar."""

    color: str
    marker: str
    line: str = "-"
    fill: str = "full"  # fill of the marker
    hatch: str = ""  # hatch of a bar

    @property
    def drawn(self) -> dict[str, Any]:
        """Arguments for `Axes.errorbar`. Error bars are thin, since many may overlap."""
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
    """Create a matplotlib figure without pyplot, which has windows and global state."""
    return load_extra("matplotlib.figure", "plot").Figure((width, height), layout="constrained")


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """Choose a style per name: color and marker of its solver, or else of its training objective.

    Up to four names with the same solver or objective, such as "SCE, Euler" and "CE, Euler", get
    different line styles and marker fills. Further and unknown names use seven other colors.
    """
    variants: dict[str, list[str]] = {}  # what remains of the names with this solver or objective
    for known, rest in sorted(map(_parts, names), key=lambda parts: bool(parts[1])):
        variants.setdefault(known, []).append(rest)
    others, styles = cycle(_OTHERS), {}
    for name in names:
        known, rest = _parts(name)
        index = variants[known].index(rest)
        if known and index < len(_VARIANTS):
            styles[name] = Style(*(_SOLVERS | _TRAININGS)[known], *_VARIANTS[index])
        else:
            styles[name] = Style(*next(others))
    return styles


def _parts(name: str) -> tuple[str, str]:
    """Split a name into its solver, or else training objective, and the rest."""
    longest_first = (sorted(names, key=len, reverse=True) for names in (_SOLVERS, _TRAININGS))
    for known in chain(*longest_first):
        if match := re.search(rf"(?:^|, ){re.escape(known)}(?!\w)", name, re.IGNORECASE):
            return known, (name[: match.start()] + name[match.end() :]).strip(", ")
    return "", name


def step_curves(
    scored: Sequence[Scored],
    path: Path,
    titles: Mapping[str, str],
    *,
    levels: Mapping[str, float] | None = None,
    ylabel: str | None = None,
) -> None:
    """Draw the scores of one model over the number of steps, with one line per solver.

    There is one panel for each score in `titles` that was computed. `levels`, the scores of
    held-out text, are drawn as dashed lines. With a `ylabel`, the panels share a y axis from 0.
    """
    scored = [s for s in scored if s.samples.steps]
    names = [name for name in titles if any(name in s.estimates() for s in scored)]
    figure = figure_of(_PANEL_WIDTH * len(names), _PANEL_HEIGHT)
    axes = figure.subplots(1, len(names), sharey=ylabel is not None, squeeze=False)[0]
    ticks = sorted({s.samples.steps or 0 for s in scored})
    for axis, name in zip(axes, names, strict=True):
        lines: dict[str, list[Point]] = {}
        for s in sorted(scored, key=lambda s: s.samples.steps or 0):
            if estimate := s.estimates().get(name):
                point = (s.samples.steps or 0, *estimate)
                lines.setdefault(s.samples.solver or "-", []).append(point)
        for solver, style in styles_of(list(lines)).items():
            errorbar(axis, lines[solver], style, label=solver)
        if levels and name in levels:
            axis.axhline(levels[name], color="#888888", linestyle="--", label="held-out text")
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [NUMBER.format(x=steps) for steps in ticks])
        axis.minorticks_off()
        axis.set(xlabel="steps", title=titles[name])
        if name == "perplexity":
            _log_axis(axis)
        if name == "MAUVE":
            axis.set_ylim(0, min(1.05, axis.get_ylim()[1]))
    if ylabel is not None:
        axes[0].set(ylabel=ylabel)
        axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    figure.suptitle(scored[0].samples.model)
    save_figure(figure, path)


def errorbar(axis: Any, points: Sequence[Point], style: Style, **options: Any) -> None:
    """Draw a line with error bars, where points have errors."""
    x, y, errors = zip(*points, strict=True)
    axis.errorbar(x, y, yerr=[error or 0.0 for error in errors], **style.drawn, **options)
    axis.grid(alpha=0.3)


def _log_axis(axis: Any) -> None:
    """Make the y axis logarithmic, with plain numbers at its ticks."""
    ticker = load_extra("matplotlib.ticker", "plot")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    is_wide = high > _LOG_RANGE * low
    locator = ticker.LogLocator(subs=(1, 2, 5)) if is_wide else ticker.MaxNLocator(6)
    axis.yaxis.set_major_locator(locator)
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter(NUMBER))
    axis.yaxis.set_minor_locator(ticker.NullLocator())


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a PNG file, atomically."""
    for text in figure.findobj(load_extra("matplotlib.text", "plot").Text):
        shown = text.get_text()
        if "$" in shown and "\\mathdefault" not in shown:  # a name, not a tick of a log axis
            text.set_parse_math(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI)
