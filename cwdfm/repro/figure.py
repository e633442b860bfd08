"""Curves of results: one panel a measure, one line a solver; PNG and PDF from one description."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.errors import load_extra
from cwdfm.files import replacing
from cwdfm.metric.figure import figure_of, styles_of
from cwdfm.repro.table import Column, Value

Points = Sequence[tuple[float, tuple[Value, ...]]]  # of a line: x, and a value for each panel
_DPI = 160
_PANEL, _HEIGHT = 3.3, 3.7  # inches: small, so that letters are large enough in print
TICKS = 10  # labels below a panel, at most
DATA = "data"
WIDE = 3.0  # the ratio of values from which on a logarithmic scale is worth it
FAR = 16.0  # the ratio from which on the data's own value would squeeze the lines on such a scale


@dataclass(frozen=True)
class Curves:
    """Lines by name; a value that is missing leaves a gap."""

    title: str
    x: str
    columns: tuple[Column, ...]
    lines: Mapping[str, Points]
    level: tuple[Value, ...] = ()  # the data's own values, as a line across
    log: bool = False  # the scale of x
    note: str = ""  # below the panels

    @property
    def blank(self) -> bool:
        """Whether nothing is there to be shown."""
        return not any(self._known(panel) for panel in range(len(self.columns)))

    def _known(self, panel: int) -> list[float]:
        points = [values[panel].value for line in self.lines.values() for _, values in line]
        return [value for value in points if value is not None]

    def _logarithmic(self, panel: int) -> bool:
        """Whether values differ so much in size that differences of the small would not show."""
        known = self._known(panel)
        wide = bool(known) and min(known) > 0 and max(known) > WIDE * min(known)
        return wide and self.columns[panel].axis == "log"

    def _level(self, panel: int) -> float | None:
        """The data's own value, unless it is so far off that the lines would be squeezed."""
        level = self.level[panel].value if self.level else None
        known = self._known(panel)
        if level is None or not known:
            return None
        low, high = min(known), max(known)
        if self._logarithmic(panel):
            return level if low / FAR <= level <= FAR * high else None
        if self.columns[panel].axis == "zero":
            low = 0.0
        return level if low - (high - low) <= level <= high + (high - low) else None

    def draw(self, paths: Sequence[Path]) -> None:
        """Write the figure into files, in the formats of their names."""
        figure = self.figure()
        for path in paths:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=path.suffix[1:], dpi=_DPI)
            with replacing(path) as part:
                part.write_bytes(buffer.getvalue())

    def figure(self) -> Any:
        """The panels side by side, the lines' names above and the note below."""
        panels = len(self.columns)
        figure = figure_of(_PANEL * panels, _HEIGHT)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        for i, axis in enumerate(axes):
            self._lines(axis, i)
            self._scales(axis, i)
        self._heading(figure, axes)
        if self.note:
            note = textwrap.fill(self.note, 52 * panels)
            figure.supxlabel(note, fontsize="small", color="#555555")
        return figure

    def _heading(self, figure: Any, axes: Sequence[Any]) -> None:
        """The title, and where there are several lines their names, above the panels."""
        title = textwrap.fill(self.title, 28 * len(axes))
        # The data's line may lie outside the first panel and within another.
        named = {
            name: handle
            for axis in axes
            for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if len(named) < 2:
            figure.suptitle(title)
            return
        names = sorted(named, key=lambda name: name == DATA)
        legend = figure.legend(
            [named[name] for name in names],
            names,
            title=title,
            title_fontsize="large",
            fontsize="small" if len(names) > 2 * len(axes) else "medium",
            ncols=3 * len(axes),
            loc="outside upper center",
            frameon=False,
        )
        legend.get_title().set_multialignment("center")

    def _lines(self, axis: Any, panel: int) -> None:
        """The curves of one measure, with error bars where there are errors."""
        styles = styles_of(list(self.lines))
        for name, points in self.lines.items():
            found = [(x, values[panel]) for x, values in points if values[panel].value is not None]
            if not found:  # not done yet
                continue
            spreads = [math.nan if value.spread is None else value.spread for _, value in found]
            axis.errorbar(
                [x for x, _ in found],
                [value.value for _, value in found],
                yerr=None if all(map(math.isnan, spreads)) else spreads,
                label=name,
                **styles[name].drawn,
            )
        if (level := self._level(panel)) is not None:
            axis.axhline(level, color="#777777", linestyle=":", label=DATA)

    def _scales(self, axis: Any, panel: int) -> None:
        """Names, scales and ticks of a panel."""
        ticker, column = load_extra("matplotlib.ticker", "plot"), self.columns[panel]
        axis.set(ylabel=column.title, xscale="log" if self.log else "linear")
        axis.set_xlabel(textwrap.fill(self.x, 36))
        ticks = sorted({x for points in self.lines.values() for x, _ in points})
        ticks = ticks[:: max(1, math.ceil(len(ticks) / TICKS))]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        if self._logarithmic(panel):
            axis.set_yscale("log", subs=[])
            decades = math.log10(max(self._known(panel)) / min(self._known(panel)))
            subs = (1.0,) if decades > 3 else (1.0, 2.0, 5.0)
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
            axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        elif column.axis == "zero":
            axis.set_ylim(bottom=0)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
