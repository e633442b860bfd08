"""Tables and figures for the analyses in `cwdfm.metrics.analysis`."""

from collections.abc import Mapping
from pathlib import Path

from cwdfm.metrics.analysis import ContextAnalysis, ContextCurve, UpdateStatistics
from cwdfm.report.figure import errorbar, figure_of, save_figure, styles_of
from cwdfm.report.table import Table, format_estimate

_LABELS = {"entropy": "entropy, nats", "nll": "negative log-likelihood, nats"}


def context_table(name: str, curve: ContextCurve) -> Table:
    """One row per bin; ± is the standard error over sequences."""
    total = max(1, sum(curve.tokens))
    shares = [f"{n:,} ({n / total:.1%})" for n in curve.tokens]
    columns: list[list[str]] = [list(map(str, curve.bins)), shares]
    for means, errors in ((curve.entropy, curve.entropy_error), (curve.nll, curve.nll_error)):
        columns.append([format_estimate(m, e) for m, e in zip(means, errors, strict=True)])
    return Table((name, "tokens", *_LABELS.values()), tuple(zip(*columns, strict=True)))


def context_plot(analysis: ContextAnalysis, path: Path, *, title: str) -> None:
    """Draw entropy and negative log-likelihood against revealed neighbors and distance.

    Error bars are one standard error; bins with fewer than two sequences have none.
    """
    figure = figure_of(9.6, 7.2)
    axes = figure.subplots(2, 2, sharey="col")
    (style,) = styles_of(["model"]).values()  # a color that no solver has
    rows = {
        f"revealed neighbors within {analysis.radius}": analysis.neighbors,
        f"distance to the nearest revealed token (up to {analysis.farthest}+)": analysis.distance,
    }
    for line, (xlabel, curve) in zip(axes, rows.items(), strict=True):
        for axis, (measure, ylabel) in zip(line, _LABELS.items(), strict=True):
            means, errors = getattr(curve, measure), getattr(curve, f"{measure}_error")
            points = zip(curve.bins, means, errors, strict=True)
            errorbar(axis, [point for point in points if point[1] is not None], style)
            axis.set(xlabel=xlabel, ylabel=ylabel)
    figure.supxlabel("Bars: one standard error.", fontsize="small", color="#555555")
    figure.suptitle(title)
    save_figure(figure, path)


def updates_table(results: Mapping[str, UpdateStatistics]) -> Table:
    """One row per solver; ± is the standard error over sequences."""
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


def updates_plot(results: Mapping[str, UpdateStatistics], path: Path, *, title: str) -> None:
    """Draw the share of tokens for each number of updates, with one bar per solver."""
    figure = figure_of(7.2, 4.2)
    axis = figure.subplots()
    width = 0.8 / len(results)
    for k, (name, style) in enumerate(styles_of(list(results)).items()):
        result = results[name]
        shares = [n / result.tokens for n in result.histogram]
        centers = [u + (k - (len(results) - 1) / 2) * width for u in range(len(shares))]
        label = f"{name}: {result.updates_per_token:.3f} updates, {result.loop_share:.2%} loops"
        bar_style = {"color": style.color, "hatch": style.hatch, "edgecolor": "white"}
        axis.bar(centers, shares, width, label=label, linewidth=0, **bar_style)
    axis.set_xticks(range(max(len(r.histogram) for r in results.values())))
    axis.set_yscale("log")  # shares of 0.1% must be visible
    axis.set(xlabel="updates of a token", ylabel="share of tokens", axisbelow=True)
    axis.grid(alpha=0.3, axis="y")
    axis.legend(fontsize=8)
    figure.suptitle(title)
    save_figure(figure, path)
