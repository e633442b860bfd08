"""Tables and figures of the analyses: prediction difficulty by context, updates per token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError, check_instance
from cwdfm.metrics.analysis import ContextAnalysis, ContextCurve, UpdateStatistics
from cwdfm.report.figure import check_png, figure_of, save_figure, styles_of
from cwdfm.report.table import Table, format_estimate

_LABELS = {"entropy": "entropy, nats", "nll": "negative log-likelihood, nats"}


def context_table(name: str, curve: ContextCurve) -> Table:
    """One row per bin; ± is the standard error over sequences."""
    rows = [
        (
            str(bin_),
            f"{curve.tokens[i]:,}",
            format_estimate(curve.entropy[i], curve.entropy_error[i]),
            format_estimate(curve.nll[i], curve.nll_error[i]),
        )
        for i, bin_ in enumerate(curve.bins)
    ]
    return Table((name, "tokens", *_LABELS.values()), tuple(rows))


def context_plot(analysis: ContextAnalysis, path: Path, *, title: str | None = None) -> None:
    """Draw entropy and negative log-likelihood against revealed neighbors and distance.

    Error bars are one standard error; bins with fewer than two sequences have none.
    """
    check_instance("analysis", analysis, ContextAnalysis, "the result of context_analysis")
    check_png(path)
    figure = figure_of(9.6, 7.2)
    axes = figure.subplots(2, 2, sharey="col")
    rows: list[tuple[ContextCurve, str]] = [
        (analysis.neighbors, f"revealed neighbors within {analysis.radius}"),
        (analysis.distance, f"distance to the nearest revealed token (up to {analysis.farthest}+)"),
    ]
    for line, (curve, label) in zip(axes, rows, strict=True):
        for axis, measure in zip(line, _LABELS, strict=True):
            _draw_curve(axis, curve, measure)
            axis.set(xlabel=label, ylabel=_LABELS[measure])
    figure.supxlabel("Bars: one standard error.", fontsize="small", color="#555555")
    if title is not None:
        figure.suptitle(title)
    save_figure(figure, path)


def _draw_curve(axis: Any, curve: ContextCurve, measure: str) -> None:
    means, errors = getattr(curve, measure), getattr(curve, f"{measure}_error")
    points = [
        (b, m, e or 0.0) for b, m, e in zip(curve.bins, means, errors, strict=True) if m is not None
    ]
    (style,) = styles_of(["model"]).values()  # not the color of a solver
    bins, values, error_bars = zip(*points, strict=True)
    axis.errorbar(bins, values, yerr=error_bars, **style.drawn)
    axis.grid(alpha=0.3)


def updates_table(results: Mapping[str, UpdateStatistics]) -> Table:
    """One row per solver; ± is the standard error over sequences."""
    check_results(results)
    rows = [
        (
            name,
            format_estimate(r.updates_per_token, r.standard_error),
            f"{r.loop_share:.3%}",
            f"{sum(r.histogram[2:]) / r.tokens:.2%}",
            f"{r.tokens:,}",
        )
        for name, r in results.items()
    ]
    columns = ("solver", "updates per token", "loops", "updated more than once", "tokens")
    return Table(columns, tuple(rows))


def updates_plot(
    results: Mapping[str, UpdateStatistics], path: Path, *, title: str | None = None
) -> None:
    """Draw the share of tokens by their number of updates, one bar per solver."""
    check_results(results)
    check_png(path)
    figure = figure_of(7.2, 4.2)
    axis = figure.subplots()
    width = 0.8 / len(results)
    for k, (name, style) in enumerate(styles_of(list(results)).items()):
        result = results[name]
        shares = [n / result.tokens for n in result.histogram]
        centers = [u + (k - (len(results) - 1) / 2) * width for u in range(len(shares))]
        label = f"{name}: {result.updates_per_token:.3f} updates, {result.loop_share:.2%} loops"
        look = {"color": style.color, "hatch": style.hatch, "edgecolor": "white"}
        axis.bar(centers, shares, width, label=label, linewidth=0, **look)
    axis.set_xticks(range(max(len(r.histogram) for r in results.values())))
    axis.set_yscale("log")  # shares of one in a thousand matter
    axis.set(xlabel="updates of a token", ylabel="share of tokens")
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)
    axis.legend(fontsize=8)
    if title is not None:
        figure.suptitle(title)
    save_figure(figure, path)


def check_results(results: Mapping[str, UpdateStatistics]) -> None:
    """Require a non-empty mapping from solver names to update statistics."""
    if not isinstance(results, Mapping) or not results:
        raise InputError(
            f"results must map at least one solver's name to its update_statistics, got {results!r}"
        )
    for name, result in results.items():
        check_instance(f"results[{name!r}]", result, UpdateStatistics, "update_statistics(samples)")
