"""Draw the figures of docs/concepts.md: the hazard, the weights and the context-weighted path.

    python examples/concepts.py --out docs/figures

The library computes all of them without a network.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

import cwdfm

GRAY = "#808890"  # readable on a light and on a dark page
COLORS = ("#4c78d8", "#e07b39", "#3a9e6e")
SCHEDULES = {"t": cwdfm.Linear(), "t^2": cwdfm.Polynomial(2.0), "1 - cos": cwdfm.Cosine()}
LABELS = {"t": "linear, t", "t^2": "polynomial, $t^2$", "1 - cos": r"cosine, $1 - \cos(\pi t / 2)$"}


def hazard(plt: Any) -> Any:
    """Plot kappa_t and lambda_t of the three schedules."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
    t = torch.linspace(0, 0.98, 200)
    for color, (name, schedule) in zip(COLORS, SCHEDULES.items(), strict=True):
        left.plot(t, schedule.kappa(t), color=color, label=LABELS[name])
        right.plot(t, schedule.hazard(t), color=color)
    left.set(title=r"share of revealed tokens, $\kappa_t$", xlabel="time t")
    right.set(
        title=r"hazard $\lambda_t = \kappa'_t / (1 - \kappa_t)$", xlabel="time t", ylim=(0, 12)
    )
    left.legend(frameon=False, labelcolor=GRAY)
    return figure


def weights(plt: Any) -> Any:
    """Plot the weights of one state with 24 positions, seven of them revealed."""
    revealed = torch.zeros(1, 24, dtype=torch.bool)
    revealed[0, [4, 5, 7, 13, 14, 15, 20]] = True
    rows = {
        "no weight (Euler)": (~revealed).double(),
        "Neighbor(radius=1, scale=1)": cwdfm.Neighbor(1, 1.0)(revealed),
        "Neighbor(radius=3, scale=0.5)": cwdfm.Neighbor(3, 0.5)(revealed),
        "Distance(scale=0.5)": cwdfm.Distance(0.5, 8)(revealed),
    }
    panels = {"sharex": True, "sharey": True, "layout": "constrained"}
    figure, axes = plt.subplots(len(rows), 1, figsize=(8, 4.4), **panels)
    for axis, (name, alpha) in zip(axes, rows.items(), strict=True):
        axis.bar(range(24), alpha[0].tolist(), color=COLORS[0], width=0.8)
        axis.bar(range(24), (revealed[0] * 0.16).tolist(), color=COLORS[1], width=0.8)
        axis.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
        axis.set_ylabel(r"$\alpha^i$", rotation=0, labelpad=12)
        axis.set_title(name, loc="left", fontsize=9)
    axes[-1].set_xlabel("position i (orange: revealed)")
    return figure


def context_path(plt: Any) -> Any:
    """Plot revealed tokens of the mixture path and the context-weighted path at the same times."""
    source, schedule, length = cwdfm.MaskSource(2), cwdfm.Linear(), 96
    paths = {
        "mixture path: every token independently": cwdfm.MixturePath(source, schedule),
        "context-weighted path: as many on average, next to each other": cwdfm.ContextPath(
            source, schedule, cwdfm.Neighbor(1, 3.0)
        ),
    }
    t = torch.linspace(0.1, 0.9, 9)
    figure, axes = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
    for axis, (name, path) in zip(axes, paths.items(), strict=True):
        batch = path.sample(torch.zeros(len(t), length, dtype=torch.int64), t, seed=3)
        step, position = batch.revealed.nonzero(as_tuple=True)
        axis.scatter(
            position.tolist(), t[step].tolist(), marker="s", s=13, color=COLORS[1], linewidths=0
        )
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_ylabel("time t")
    axes[-1].set_xlabel("position i (a square is a revealed token)")
    return figure


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="output folder for the figures")
    out = parser.parse_args().out
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {f"axes.spines.{side}": False for side in ("top", "right")}
    style |= dict.fromkeys(names, GRAY) | {"axes.titlesize": 10}
    style["svg.hashsalt"] = "cwdfm"  # makes the file reproducible
    out.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(style):
        for draw in (hazard, weights, context_path):
            path = out / f"concept-{draw.__name__.replace('_', '-')}.svg"
            draw(plt).savefig(path, transparent=True, metadata={"Date": None})
            print(f"written: {path}")


if __name__ == "__main__":
    main()
