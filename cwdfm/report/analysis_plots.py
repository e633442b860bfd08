"""Pictures of the analyses, as PNG files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError, check_instance
from cwdfm.metrics.context import ContextAnalysis, ContextCurve
from cwdfm.metrics.updates import UpdateStatistics
from cwdfm.report.figure import check_png, figure_of, save_figure, styles_of

_NAMES = {"entropy": "entropy, nats", "nll": "negative log-likelihood, nats"}


def context_plot(analysis: ContextAnalysis, path: Path, *, title: str | None = None) -> None:
    """Draw entropy and negative log-likelihood against neighbours and distance.

    Bars are one standard error, as in the tables; bins with fewer than two sequences have none.
    """
    check_instance("analysis", analysis, ContextAnalysis, "what context_analysis returns")
    check_png(path)
    figure = figure_of(9.6, 7.2)
    axes = figure.subplots(2, 2, sharey="col")
    last = f"distance to the nearest revealed token ({analysis.farthest}: or more)"
    rows: list[tuple[ContextCurve, str]] = [
        (analysis.neighbors, f"revealed neighbours within {analysis.radius}"),
        (analysis.distance, last),
    ]
    for line, (curve, label) in zip(axes, rows, strict=True):
        for axis, measure in zip(line, _NAMES, strict=True):
            _draw(axis, curve, measure)
            axis.set(xlabel=label, ylabel=_NAMES[measure])
    figure.supxlabel("Bars: one standard error.", fontsize="small", color="#555555")
    if title is not None:
        figure.suptitle(title)
    save_figure(figure, path)


def _draw(axis: Any, curve: ContextCurve, measure: str) -> None:
    means, errors = getattr(curve, measure), getattr(curve, f"{measure}_error")
    points = [
        (b, m, e or 0.0) for b, m, e in zip(curve.bins, means, errors, strict=True) if m is not None
    ]
    (style,) = styles_of(["model"]).values()  # no solver's: orange is that of Entropy weights
    axis.errorbar(
        [b for b, _, _ in points],
        [m for _, m, _ in points],
        yerr=[e for _, _, e in points],
        **style.drawn,
    )
    axis.grid(alpha=0.3)


def updates_plot(
    results: Mapping[str, UpdateStatistics], path: Path, *, title: str | None = None
) -> None:
    """Draw the share of tokens by their number of updates, one bar a solver."""
    check_results(results)
    check_png(path)
    figure = figure_of(7.2, 4.2)
    axis = figure.subplots()
    width = 0.8 / len(results)
    for k, (name, style) in enumerate(styles_of(list(results)).items()):
        result = results[name]
        shares = [n / result.tokens for n in result.histogram]
        places = [u + (k - (len(results) - 1) / 2) * width for u in range(len(shares))]
        label = f"{name}: {result.updates_per_token:.3f} updates, {result.loop_share:.2%} loops"
        look = {"color": style.color, "hatch": style.hatch, "edgecolor": "white"}
        axis.bar(places, shares, width, label=label, linewidth=0, **look)
    axis.set_xticks(range(max(len(r.histogram) for r in results.values())))
    # A share of one in a thousand matters here, and would be no pixel high on a linear axis.
    axis.set_yscale("log")
    axis.set(xlabel="updates of a token", ylabel="share of tokens")
    axis.grid(alpha=0.3, axis="y")
    axis.set_axisbelow(True)
    axis.legend(fontsize=8)
    if title is not None:
        figure.suptitle(title)
    save_figure(figure, path)


def updates_table(results: Mapping[str, UpdateStatistics]) -> str:
    """A Markdown table with one row per solver."""
    check_results(results)
    lines = [
        "| solver | updates per token | loops | updated more than once | tokens |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, r in results.items():
        error = "" if r.standard_error is None else f" ± {r.standard_error:.4f}"
        again = sum(r.histogram[2:]) / r.tokens
        lines.append(
            f"| {name} | {r.updates_per_token:.4f}{error} | {r.loop_share:.3%} | {again:.2%} | "
            f"{r.tokens:,} |"
        )
    return "\n".join(lines)


def check_results(results: Mapping[str, UpdateStatistics]) -> None:
    """Require a non-empty mapping from solver names to update statistics."""
    if not isinstance(results, Mapping) or not results:
        raise InputError(
            f"results must map at least one solver's name to its update_statistics, got {results!r}"
        )
    for name, result in results.items():
        check_instance(f"results[{name!r}]", result, UpdateStatistics, "update_statistics(samples)")
