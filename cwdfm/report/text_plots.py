"""A figure of token frequencies and sample entropies, which needs no evaluator LM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.metrics.text import sample_entropies
from cwdfm.report.figure import figure_of, save_figure, styles_of


def token_plot(
    sets: Mapping[str, NDArray[Any]],
    path: Path,
    *,
    title: str,
    held_out: NDArray[Any] | None = None,
) -> None:
    """Draw token frequency over rank, and the distribution of entropies, for sets of ids [B, N]."""
    line_styles = {
        name: {"color": style.color, "linestyle": style.line, "linewidth": 1.4}
        for name, style in styles_of(list(sets)).items()
    }
    shown = dict(sets)
    if held_out is not None:
        name = "held-out text"
        shown[name], line_styles[name] = held_out, {"color": "#888888", "linestyle": "--"}
    figure = figure_of(9.6, 4.2)
    ranks, entropies = figure.subplots(1, 2)
    for name, tokens in shown.items():
        counts = np.sort(np.unique(tokens, return_counts=True)[1])[::-1]
        ranks.plot(
            np.arange(1, len(counts) + 1), counts / counts.sum(), label=name, **line_styles[name]
        )
        entropies.ecdf(sample_entropies(tokens), **line_styles[name])
    ranks.set(xscale="log", yscale="log", xlabel="rank of a token", ylabel="share of all tokens")
    entropies.set(xlabel="entropy, bits", ylabel="share of samples with at most this entropy")
    for axis in (ranks, entropies):
        axis.grid(alpha=0.3)
    ranks.legend(fontsize=8)
    figure.suptitle(title)
    save_figure(figure, path)
