"""Curves of results: one panel per score, one line per solver or training."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cwdfm.errors import load_extra
from cwdfm.report.figure import NUMBER, figure_of, styles_of
from experiments.labels import End, add_labels, ends_of
from experiments.table import Column, Value

Points = Sequence[tuple[float, tuple[Value, ...]]]  # x, and a value per panel
_DPI = 160
_PANEL, _HEIGHT = 3.3, 3.6  # inches; small, so that text is readable in print
_TITLE, _ABOUT, _GAP = 0.21, 0.15, 0.08  # inches of a line of text above the panels, and of gaps
_BESIDE = 2.5  # position of the paper's values relative to the last x
_MARGIN = 0.2  # relative to the width: room for labels at the ends of lines
_GREY = "#555555"
TICKS = 10  # maximal number of tick labels
_WIDTH, _LETTER, _APART = 2.35, 0.085, 0.06  # inches: x axis, letter, gap between labels
DATA, PAPER = "data", "paper"
WIDE = 3.0  # ratio of values above which the scale is logarithmic
HALF = 2.0  # ratio of counts above which their axis starts at zero
NEAR = 0.1  # fraction of the height; if the value of the data is farther away, it is not drawn


@dataclass(frozen=True)
class Curves:
    """The content of a figure: lines by name. Missing values leave gaps."""

    title: str
    x: str
    columns: tuple[Column, ...]
    lines: Mapping[str, Points]
    level: tuple[Value, ...] = ()  # the values of the data, as horizontal lines
    log: bool = False  # logarithmic x axis
    note: str = ""  # text below the panels
    about: str = ""  # model and training, below the title
    # The paper's values of lines; requires `log`.
    paper: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    approximate: Sequence[str] = ()  # lines for which the paper's values are approximate
    last: str = ""  # label of the last x, if it includes larger values
    measured: bool = False  # x is a measured score: put ticks at round numbers, not at the points
    # Labels of the points of a line; only the labels of its ends are shown.
    point_labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def blank(self) -> bool:
        return not any(self._known(panel) for panel in range(len(self.columns)))

    def _known(self, panel: int) -> list[float]:
        points = [values[panel].value for line in self.lines.values() for _, values in line]
        return [value for value in points if value is not None]

    def _logarithmic(self, panel: int) -> bool:
        """Whether the y axis is logarithmic."""
        known = self._known(panel)
        wide = bool(known) and min(known) > 0 and max(known) > WIDE * min(known)
        return wide and self.columns[panel].axis == "log"

    def _span(self, panel: int) -> tuple[float, float]:
        """The range of lines and the paper's values, from zero if that is close."""
        shown = [*self._known(panel), *(v.value or 0.0 for v in self._reported(panel).values())]
        low, high = min(shown), max(shown)
        near = self.columns[panel].axis == "zero" and high >= HALF * low
        return (0.0 if near else low), high

    def _beyond(self, panel: int) -> str:
        """The side on which the data's value lies, if drawing it would compress the lines; else
        empty."""
        level = self.level[panel].value if self.level else None
        if level is None or not self._known(panel):
            return ""
        low, high = self._span(panel)
        if low == high == 0:
            return ""
        room = NEAR * (high - low)
        below, above = low - room, high + room
        if self._logarithmic(panel):
            below, above = low * (low / high) ** NEAR, high * (high / low) ** NEAR
        return "below" if level < below else "above" if level > above else ""

    @property
    def _last(self) -> float:
        return max(x for points in self.lines.values() for x, _ in points)

    def _reported(self, panel: int) -> dict[str, Value]:
        return {
            name: values[panel]
            for name, values in self.paper.items()
            if values[panel].value is not None
            and any(ours[panel].value is not None for _, ours in self.lines[name])
        }

    def render(self, formats: Sequence[str]) -> dict[str, bytes]:
        """The figure in each format, such as "png"."""
        figure, found = self.figure(), {}
        for name in formats:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=name, dpi=_DPI)
            figure.set_layout_engine("none")  # the first format determines the layout
            found[name] = buffer.getvalue()
        return found

    def figure(self) -> Any:
        """The Matplotlib figure: title, legend, panels, note."""
        panels = len(self.columns)
        title = textwrap.wrap(self.title, 28 * panels)
        about = textwrap.wrap(self.about, 46 * panels)
        note = textwrap.wrap(self.note, 52 * panels)
        high = _TITLE * len(title) + _ABOUT * len(about) + _GAP
        low = _HEIGHT + _ABOUT * len(note)
        figure = figure_of(_PANEL * panels, low + high)
        head, body = figure.subfigures(2, 1, height_ratios=[high, low])
        middle: dict[str, Any] = {"ha": "center", "va": "top"}
        head.text(0.5, 1 - _GAP / high, "\n".join(title), fontsize="large", **middle)
        top = 1 - (_TITLE * len(title) + _GAP) / high
        head.text(0.5, top, "\n".join(about), fontsize="small", color=_GREY, **middle)
        axes = body.subplots(1, panels, squeeze=False)[0]
        for i, axis in enumerate(axes):
            self._lines(axis, i)
            self._scales(axis, i)
        self._names(body, axes)
        if note:
            body.supxlabel("\n".join(note), fontsize="small", color=_GREY)
        if self.point_labels:
            figure.draw_without_rendering()  # fixes the positions of the panels
            for i, axis in enumerate(axes):
                add_labels(axis, self._ends(i))
        return figure

    def _names(self, body: Any, axes: Sequence[Any]) -> None:
        """A legend above the panels if there are several lines."""
        # The data may be drawn in some panels only.
        named = {
            name: handle
            for axis in axes
            for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if len(named) < 2:
            return
        names = sorted(named, key=lambda name: name == DATA)
        wide = sum(len(name) + 6 for name in names) > 42 * len(axes)
        body.legend(
            [named[name] for name in names],
            names,
            fontsize="small" if len(names) > 2 * len(axes) else "medium",
            ncols=math.ceil(len(names) / (2 if wide else 1)),
            loc="outside upper center",
            frameon=False,
        )

    def _lines(self, axis: Any, panel: int) -> None:
        styles = styles_of(list(self.lines))
        for name, points in self.lines.items():
            found = [
                (x, value) for x, values in points if (value := values[panel]).value is not None
            ]
            if not found:
                continue
            spreads = [math.nan if value.spread is None else value.spread for _, value in found]
            axis.errorbar(
                [x for x, _ in found],
                [value.value for _, value in found],
                yerr=None if all(map(math.isnan, spreads)) else spreads,
                label=name,
                **styles[name].drawn,
            )
        reported = self._reported(panel)
        for i, (name, value) in enumerate(reported.items()):
            x = _BESIDE * self._last * 1.15 ** (i - (len(reported) - 1) / 2)
            drawn = styles[name].drawn | {"linestyle": "none"}
            axis.errorbar([x], [value.value], yerr=value.spread, **drawn)
            if name in self.approximate:
                place: dict[str, Any] = {"ha": "right", "va": "center", "color": drawn["color"]}
                axis.annotate("≈", (x, value.value), (-5, 0), textcoords="offset points", **place)
        if self.level and (level := self.level[panel]).value is not None and self._known(panel):
            if where := self._beyond(panel):
                text = f"{DATA}: {level.text()} ({where})"
                axis.set_title(text, loc="right", fontsize="small", color=_GREY)
            else:
                axis.axhline(level.value, color="#777777", linestyle=":", label=DATA)

    def _ends(self, panel: int) -> list[End]:
        """The ends of labeled lines."""
        styles, ends = styles_of(list(self.lines)), list[End]()
        for name, labels in self.point_labels.items():
            points = [
                (label, (x, value))
                for label, (x, values) in zip(labels, self.lines[name], strict=True)
                if (value := values[panel].value) is not None
            ]
            shown = [label for label, _ in points]
            ends += ends_of(shown, [at for _, at in points], styles[name].color)
        return ends

    def _scales(self, axis: Any, panel: int) -> None:
        ticker, column = load_extra("matplotlib.ticker", "plot"), self.columns[panel]
        axis.set(ylabel=column.title, xscale="log" if self.log else "linear")
        axis.set_xlabel(textwrap.fill(self.x, 36))
        named = self._ticks()
        if self._reported(panel):
            named[_BESIDE * self._last] = PAPER
            axis.axvline(_BESIDE**0.5 * self._last, color="#bbbbbb", linewidth=0.8)
        if self.measured:
            axis.xaxis.set_major_locator(ticker.MaxNLocator(4))
            if self.point_labels:
                axis.margins(x=_MARGIN)
        else:
            axis.set_xticks(list(named), list(named.values()))
        if self._logarithmic(panel):
            axis.set_yscale("log", subs=[])
            decades = math.log10(max(self._known(panel)) / min(self._known(panel)))
            subs = (1, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
            axis.yaxis.set_major_formatter(ticker.StrMethodFormatter(NUMBER))
        else:
            axis.ticklabel_format(axis="y", useOffset=False)
            if max(self._known(panel), default=0.0) >= 1000:
                axis.yaxis.set_major_formatter(ticker.StrMethodFormatter(NUMBER))
            if column.axis == "zero" and self._known(panel) and self._span(panel)[0] == 0:
                axis.set_ylim(bottom=0)
        axis.minorticks_off()
        axis.grid(alpha=0.3)

    def _ticks(self) -> dict[float, str]:
        """Tick labels: the last, and as many others as fit."""
        ticks = sorted({x for points in self.lines.values() for x, _ in points})
        thinned = ticks[:: max(1, math.ceil(len(ticks) / TICKS))]
        ticks = sorted({*thinned, ticks[-1]}) if self.last else thinned
        at = [math.log(x) if self.log else x for x in ticks]
        kept: dict[float, str] = {}
        last, free = "", math.inf  # the label to the right, and its position in inches
        for x, place in zip(reversed(ticks), reversed(at), strict=True):
            name = self.last if self.last and x == ticks[-1] else NUMBER.format(x=x)
            inches = _WIDTH * (place - at[0]) / ((at[-1] - at[0]) or 1.0)
            if free - inches >= _LETTER * (len(name) + len(last)) / 2 + _APART:
                kept[x], last, free = name, name, inches
        return dict(reversed(kept.items()))
