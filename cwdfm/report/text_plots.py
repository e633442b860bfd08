"""The picture of a report on text: perplexity, entropy and MAUVE against steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from cwdfm.errors import load_extra
from cwdfm.report.evaluation import Picture, endings
from cwdfm.report.figure import NUMBER, Style, figure_of, save_figure, styles_of
from cwdfm.report.text_scores import TextScores
from cwdfm.report.text_table import ScoredText

Point = tuple[float, float | None]  # a value and its standard deviation
_DATA = "#888888"
_WIDE = 4.0  # below that ratio of largest to smallest, ticks at 1, 2, 5 would be too few


@dataclass(frozen=True)
class Panel:
    """One score against steps."""

    title: str
    value: Callable[[TextScores], Point | None]
    logarithmic: bool = False
    share: bool = False  # lies in [0, 1]


def _perplexity(scores: TextScores) -> Point | None:
    found = scores.perplexity and scores.perplexity.perplexity
    return (found.value, found.fold_std) if found else None


def _entropy(scores: TextScores) -> Point:
    return scores.statistics.entropy.value, scores.statistics.entropy.fold_std


def _mauve(scores: TextScores) -> Point | None:
    return None if scores.mauve is None else (scores.mauve.mauve, scores.mauve.std)


PANELS = (
    Panel("perplexity (lower is better)", _perplexity, logarithmic=True),
    Panel("entropy in bits (near the data's is better)", _entropy),
    Panel("MAUVE (higher is better)", _mauve, share=True),
)


def text_pictures(
    scored: Sequence[ScoredText], data: TextScores | None, out: Path
) -> tuple[Picture, ...]:
    """Curves for each model whose samples were drawn with different numbers of steps."""
    groups = [(name, list(rows)) for name, rows in groupby(scored, key=lambda s: s.samples.model)]
    drawn = []
    for (model, rows), ending in zip(groups, endings([name for name, _ in groups]), strict=True):
        if len({s.samples.steps for s in rows}) > 1:
            path = out / f"curves{ending}.png"
            text_curves(rows, path, data=data, title=model)
            line = "; the broken line is held-out text" if data else ""
            caption = (
                f"{model}: quality against the number of steps{line}. Bars are standard "
                f"deviations, over folds or, for MAUVE, bootstrap resamples."
            )
            drawn.append(Picture(path.name, caption, wide=True))
    return tuple(drawn)


def text_curves(
    rows: Sequence[ScoredText], path: Path, *, data: TextScores | None, title: str
) -> None:
    """Draw each score against steps, one line a solver; `data` are a broken line across."""
    panels = [p for p in PANELS if any(p.value(s.scores) is not None for s in rows)]
    figure = figure_of(4.4 * len(panels), 3.9)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    steps = sorted({s.samples.steps or 0 for s in rows})
    solvers = list(dict.fromkeys(s.samples.solver or "-" for s in rows))
    for axis, panel in zip(axes, panels, strict=True):
        for solver, style in styles_of(solvers).items():
            _line(axis, [s for s in rows if (s.samples.solver or "-") == solver], panel, style)
        if data is not None and (point := panel.value(data)) is not None:
            axis.axhline(point[0], color=_DATA, linestyle="--", label="held-out text")
        axis.set_xscale("log", base=2)
        axis.set_xticks(steps, [NUMBER.format(x=s) for s in steps])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set(xlabel="steps", title=panel.title)
        if panel.logarithmic:
            _logarithmic(axis)
        if panel.share:
            axis.set_ylim(0, min(1.05, axis.get_ylim()[1]))
    axes[0].legend(fontsize=8)
    figure.suptitle(title)
    save_figure(figure, path)


def _line(axis: Any, rows: Sequence[ScoredText], panel: Panel, style: Style) -> None:
    found = [(s.samples.steps, panel.value(s.scores)) for s in rows]
    points = [(steps, *point) for steps, point in found if point is not None]
    axis.errorbar(
        [steps for steps, _, _ in points],
        [value for _, value, _ in points],
        yerr=[std or 0.0 for _, _, std in points],
        label=rows[0].samples.solver,
        **style.drawn,
    )


def _logarithmic(axis: Any) -> None:
    """A logarithmic axis with plain numbers at its ticks."""
    ticker = load_extra("matplotlib.ticker", "plot")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    wide = high > _WIDE * low
    axis.yaxis.set_major_locator(
        ticker.LogLocator(subs=(1, 2, 5)) if wide else ticker.MaxNLocator(6)
    )
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter(NUMBER))
    axis.yaxis.set_minor_locator(ticker.NullLocator())
