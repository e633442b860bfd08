"""Curves of results: one panel a measure, one line a solver; PNG and PDF from one description."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.errors import load_extra
from cwdfm.files import replacing
from cwdfm.metric.figure import figure_of, solver_styles
from cwdfm.repro.table import Column, Value

Points = Sequence[tuple[float, tuple[Value, ...]]]  # of a line: x, and a value for each panel
_DPI = 130
TICKS = 20  # labels below a panel, at most
WIDE = 8.0  # the ratio of values from which on a scale is logarithmic


@dataclass(frozen=True)
class Curves:
    """Lines by name; a value that is missing leaves a gap."""

    title: str
    x: str
    columns: tuple[Column, ...]
    lines: Mapping[str, Points]
    level: tuple[Value, ...] = ()  # the data's own values, as a line across
    log: bool = False  # the scale of x

    @property
    def blank(self) -> bool:
        """Whether nothing is there to be shown."""
        return not any(self._known(panel) for panel in range(len(self.columns)))

    def _known(self, panel: int) -> list[float]:
        points = [values[panel].value for line in self.lines.values() for _, values in line]
        return [value for value in points if value is not None]

    def _wide(self, panel: int) -> bool:
        """Whether values differ so much in size that differences of the small would not show."""
        known = self._known(panel)
        return bool(known) and min(known) > 0 and max(known) > WIDE * min(known)

    def _level(self, panel: int) -> float | None:
        """The data's own value, unless it is so far off that the lines would be squeezed."""
        level = self.level[panel].value if self.level else None
        known = self._known(panel)
        if level is None or not known:
            return None
        low, high = min(known), max(known)
        if self.columns[panel].up is False and self._wide(panel):
            return level if low / WIDE <= level <= WIDE * high else None
        return level if low - (high - low) <= level <= high + (high - low) else None

    def draw(self, paths: Sequence[Path]) -> None:
        """Write the figure into files, in the formats of their names."""
        panels = len(self.columns)
        figure = figure_of(3.9 * panels, 3.6)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        for i, axis in enumerate(axes):
            self._lines(axis, i)
            self._scales(axis, i)
        if len(self.lines) > 1:
            # The data's line may lie outside the first panel and within another.
            named = {
                name: handle
                for axis in axes
                for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
            }
            axes[0].legend(named.values(), named.keys(), fontsize="small")
        figure.suptitle(self.title)
        for path in paths:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=path.suffix[1:], dpi=_DPI)
            with replacing(path) as part:
                part.write_bytes(buffer.getvalue())

    def _lines(self, axis: Any, panel: int) -> None:
        """The curves of one measure, with error bars where there are errors."""
        styles = solver_styles(list(self.lines))
        for name, points in self.lines.items():
            colour, marker = styles[name]
            found = [(x, values[panel]) for x, values in points if values[panel].value is not None]
            if not found:  # not done yet
                continue
            spreads = [math.nan if value.spread is None else value.spread for _, value in found]
            axis.errorbar(
                [x for x, _ in found],
                [value.value for _, value in found],
                yerr=None if all(map(math.isnan, spreads)) else spreads,
                color=colour,
                marker=marker,
                markersize=5,
                capsize=3,
                label=name,
            )
        if (level := self._level(panel)) is not None:
            axis.axhline(level, color="#777777", linestyle=":", label="data")

    def _scales(self, axis: Any, panel: int) -> None:
        """Names, scales and ticks of a panel."""
        ticker, column = load_extra("matplotlib.ticker", "plot"), self.columns[panel]
        axis.set(xlabel=self.x, ylabel=column.title, xscale="log" if self.log else "linear")
        ticks = sorted({x for points in self.lines.values() for x, _ in points})
        ticks = ticks[:: max(1, math.ceil(len(ticks) / TICKS))]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        if column.up is False and self._wide(panel):
            axis.set_yscale("log", subs=[])
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axis.minorticks_off()
        axis.grid(alpha=0.3)
