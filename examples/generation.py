"""Draw the README's figure: an animation of Euler and Neighbor side by side.

    python examples/generation.py --out docs/figures/generation.svg

Both panels are recordings of the bundled text model with the same seed and number of steps. The
sample is one of twelve, selected for its text. Each token appears in the step that revealed it. Its
color shows whether one of its two neighbors was already revealed.
"""

import argparse
from html import escape
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import cwdfm

PROMPT = "It was a dark night, and"
LENGTH, STEPS, SAMPLE = 72, 64, 8
WEIGHT = cwdfm.Neighbor(radius=1, scale=3.0)
SOLVERS = {
    "Euler": cwdfm.Euler(temperature=0.8, top_p=0.9),
    "Neighbor": cwdfm.Euler(weight=WEIGHT, counted=True, temperature=0.8, top_p=0.9),
}
COLUMNS, CHARACTER, LINE = 47, 8.1, 24  # characters per line; pixels per character and line
WIDTH, TOP, GAP = 860, 58, 20
SECONDS, LAST = 12.0, 0.7  # duration of a loop; fraction of it until all tokens appear
STYLE = """
text { font: 13.5px ui-monospace, Menlo, Consolas, monospace; fill: #24292f; white-space: pre }
.title { font: 600 15px system-ui, sans-serif } .note { font: 12.5px system-ui, sans-serif }
.page { fill: #fff; stroke: #d0d7de } .mask { fill: #d0d7de; opacity: 0 }
.alone { fill: #ffd8a8 } .near { fill: #cfe2ff } .bar { fill: #4c78d8 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #161b22; stroke: #30363d } .mask { fill: #30363d }
.alone { fill: #7a4a12 } .near { fill: #1f3f74 } }
.bar { transform-origin: 0 0; animation: bar %gs linear infinite }
@keyframes bar { 0%% { transform: scaleX(0) } %g%%, 100%% { transform: scaleX(1) } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important } }
"""


def places(texts: list[str]) -> list[tuple[float, float]]:
    """The (column, line) of each token, with line breaks before words that do not fit."""
    found: list[tuple[float, float]] = []
    column, line = 0, 0
    for i, text in enumerate(texts):
        word = len(text)
        for following in texts[i + 1 :]:  # the rest of the word
            if following.startswith(" "):
                break
            word += len(following)
        if column and text.startswith(" ") and column + word > COLUMNS:
            column, line = -1, line + 1  # the leading space is outside the margin
        found.append((column * CHARACTER, line * LINE))
        column += len(text)
    return found


def alone(order_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The mask [N] of tokens revealed before any neighbor; step -1 is the prompt."""
    padded = np.concatenate([[STEPS], order_N, [STEPS]])
    found: NDArray[np.bool_] = np.minimum(padded[:-2], padded[2:]) >= order_N
    return found & (order_N >= 0)


def panel(name: str, solver: cwdfm.Solver, x: float) -> tuple[list[str], float]:
    """The SVG elements of one solver's panel, and the height of its text."""
    trained = cwdfm.load("novels-small")
    given = {"length": LENGTH, "prompt": PROMPT, "index": torch.tensor([SAMPLE])}
    recording = trained.generate(solver, n=1, steps=STEPS, record=1, **given).recording
    assert recording is not None
    order = np.full(LENGTH, -1)
    order[recording.move_position] = recording.move_step
    tokens = recording.tokens[0].tolist()
    texts = [trained.tokenizer.decode([token]).replace("\n", " ") for token in tokens]
    isolated = alone(order)
    place = places(texts)
    share = f"{isolated.sum()} of {(order >= 0).sum()} tokens appear without a known neighbor"
    parts = [
        f'<text class="title" x="{x + 16:g}" y="24">{name}</text>',
        f'<text class="note" x="{x + 16:g}" y="42">{share}</text>',
    ]
    for text, step, without, (dx, dy) in zip(texts, order.tolist(), isolated, place, strict=True):
        left, width = x + 16 + dx, len(text) * CHARACTER
        if text.startswith(" "):  # the box starts at the word
            left, width, text = left + CHARACTER, width - CHARACTER, text[1:]
        if not text:
            continue
        box = f'x="{left:.1f}" y="{TOP + dy:g}" width="{width - 1:.1f}" height="19" rx="3"'
        word = f'x="{left:.1f}" y="{TOP + dy + 14:g}" textLength="{width - 1:.1f}"'
        word = f'<text {word} lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        if step < 0:
            parts.append(word)
            continue
        kind = "alone" if without else "near"
        parts.append(f'<rect class="mask h{step}" {box}/>')
        parts.append(f'<g class="s{step}"><rect class="{kind}" {box}/>{word}</g>')
    return parts, TOP + place[-1][1] + LINE


def animation() -> str:
    """The CSS keyframes of all steps, which show a token and hide its mask."""
    rules = []
    for step in range(STEPS):
        at = 100 * LAST * (step + 1) / STEPS
        for kind, before, after in (("s", 0, 1), ("h", 1, 0)):
            frames = (
                f"0%,{at - 0.01:.2f}%{{opacity:{before}}}{at:.2f}%,99%{{opacity:{after}}}"
                f"100%{{opacity:{before}}}"
            )
            rules.append(f"@keyframes {kind}{step}{{{frames}}}")
            rules.append(f".{kind}{step}{{animation:{kind}{step} {SECONDS:g}s infinite}}")
    return "\n".join(rules)


def draw() -> str:
    """Draw the figure as SVG."""
    width, lefts = (WIDTH - GAP) / 2 - 1, (0.5, (WIDTH + GAP) / 2)
    panels = [panel(*item, x) for item, x in zip(SOLVERS.items(), lefts, strict=True)]
    bottom = max(height for _, height in panels) + 8
    pages = [
        f'<rect class="page" x="{x}" y="0.5" width="{width}" height="{bottom:g}" rx="8"/>'
        for x in lefts
    ]
    words = [part for parts, _ in panels for part in parts]
    bar = f'<rect class="bar" y="{bottom + 9:g}" width="{WIDTH}" height="4" rx="2"/>'
    label = f"Two generations of {LENGTH} tokens in {STEPS} steps: {' and '.join(SOLVERS)}"
    style = STYLE % (SECONDS, 100 * LAST) + animation()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 14:g}" role="img" '
        f'aria-label="{label}"><title>{label}</title><style>{style}</style>'
        f"{''.join([*pages, *words, bar])}</svg>\n"
    )


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="SVG file to write")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(draw(), encoding="utf-8")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
