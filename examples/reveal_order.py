"""Draw the README's picture: where tokens are revealed, without and with context weights.

    python examples/reveal_order.py --out docs/figures/reveal_order.png

Both panels sample one sequence of 64 tokens with a mask source in 64 steps. Neighbor weights depend
on the reveal mask only, so the picture does not depend on the network, and random logits will do.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

import cwdfm

LENGTH, STEPS, RADIUS = 64, 64, 2
PANELS = {
    "Euler": cwdfm.Euler(),
    "Neighbor-weighted": cwdfm.Euler(weight=cwdfm.Neighbor(radius=RADIUS, scale=3.0)),
}


def reveal_masks(solver: cwdfm.Solver, seed: int) -> Tensor:
    """Reveal masks [STEPS + 1, LENGTH] of one sampled sequence, from all masked to all revealed."""
    source = cwdfm.MaskSource(vocab_size=8)
    masks = [torch.zeros(LENGTH, dtype=torch.bool)]

    def model(x_t: Tensor, t: Tensor) -> Tensor:
        return torch.zeros(*x_t.shape, source.num_tokens)

    def record(state: cwdfm.State, info: cwdfm.Info) -> None:
        masks.append(state.tokens[0] != source.mask_id)

    cwdfm.sample(
        model,
        source,
        cwdfm.Linear(),
        solver,
        shape=(1, LENGTH),
        steps=STEPS,
        seed=seed,
        callback=record,
    )
    return torch.stack(masks)


def neighbors_at_reveal(masks: Tensor) -> Tensor:
    """How many of the 2 RADIUS neighbors were revealed before each token was, [LENGTH]."""
    counts = torch.zeros(LENGTH, dtype=torch.long)
    for before, after in pairwise(masks):
        near = sum(before.roll(shift).long() for shift in (-2, -1, 1, 2))
        counts = torch.where(after & ~before, near, counts)
    return counts


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="PNG file to write")
    parser.add_argument("--seed", type=int, default=1, help="seed of both samples")
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (name, solver) in zip(axes, PANELS.items(), strict=True):
        masks = reveal_masks(solver, options.seed)
        counts = neighbors_at_reveal(masks)
        shown = torch.where(masks, counts.float(), torch.nan)
        image = axis.imshow(
            shown, cmap="viridis", vmin=0, vmax=2 * RADIUS, aspect="auto", interpolation="nearest"
        )
        alone = int((counts == 0).sum())
        axis.set_title(f"{name}: {alone} of {LENGTH} tokens revealed without context", fontsize=10)
        axis.set_xlabel("position")
    axes[0].set_ylabel("step")
    bar = figure.colorbar(image, ax=axes, ticks=range(2 * RADIUS + 1), shrink=0.9)
    bar.set_label("revealed neighbors at reveal")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=130)
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
