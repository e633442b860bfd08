"""The three scales: minutes on a CPU, minutes per cell on a GPU, or the paper's own sizes."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from experiments.recipe import Recipe
from experiments.tasks.base import Corpus
from experiments.tasks.sample import HeldOut

Scale = Literal["smoke", "small", "paper"]

EVALUATORS = {"smoke": "any", "small": "SmolLM2-135M", "paper": "gpt2-large"}
CORPORA: tuple[Corpus, ...] = ("text", "molecules")
NAMES: dict[Corpus, str] = {"text": "text", "molecules": "QM9"}  # in titles


@dataclass(frozen=True)
class Size:
    """The sizes of the experiments on one corpus."""

    recipe: Recipe
    n: int  # samples per cell
    steps: int  # solver steps, unless an experiment varies them
    curve: tuple[int, ...]  # solver steps of experiments that vary them
    rows: int  # held-out sequences for likelihoods
    fold_size: int = 1024  # molecules per fold
    top_p: float = 1.0  # nucleus
    seeds: int = 1  # runs of cells that a claim rests on


@cache  # called for every cell
def size(corpus: Corpus, scale: Scale) -> Size:
    """The sizes of one scale. A recipe names its corpus; `Resources` maps the name to a path."""
    sized = (_molecules if corpus == "molecules" else _text)(scale)
    return replace(sized, recipe=replace(sized.recipe, data=corpus, tokenizer=None))


def held_out(corpus: Corpus, scale: Scale, part: int) -> HeldOut:
    """The task for as many held-out sequences as a cell has samples."""
    sizes = size(corpus, scale)
    return HeldOut(corpus, sizes.recipe.length, sizes.n, part)


_QUIET: dict[str, Any] = {"previews": 0, "elbo_rows": 0}


def _molecules(scale: Scale) -> Size:
    if scale == "smoke":
        tiny = replace(
            Recipe.named("qm9-debug"), steps=6, batch_size=16, validation_rows=4, **_QUIET
        )
        return Size(tiny, n=8, steps=4, curve=(2, 4), rows=4, fold_size=8)
    if scale == "small":
        recipe = replace(
            Recipe.named("qm9-small"),
            model="17m",
            steps=2000,
            warmup=200,
            ema=0.999,
            validate_every=1000,
            checkpoint_every=2000,
            **_QUIET,
        )
        return Size(recipe, 1024, 128, (16, 32, 64, 128, 256, 512), rows=1024, seeds=3)
    return Size(Recipe.named("qm9-paper"), 5120, 512, (16, 32, 64, 128, 256, 512, 1024), rows=4096)


def _text(scale: Scale) -> Size:
    if scale == "smoke":
        tiny = replace(
            Recipe.named("text-debug"),
            length=64,
            steps=4,
            batch_size=8,
            validation_rows=4,
            **_QUIET,
        )
        return Size(tiny, n=24, steps=4, curve=(2, 4), rows=4)  # MAUVE needs at least 20
    if scale == "small":
        recipe = replace(
            Recipe.named("text-small"),
            # Many small steps instead of few large ones, so that such short runs learn to use the
            # context.
            batch_size=32,
            steps=3500,
            warmup=350,
            learning_rate=1e-3,
            dropout=0.0,
            masked_only=True,  # overridden by flows, unused by others; part of their keys
            **_QUIET,
        )
        return Size(recipe, 256, 256, (64, 128, 256, 512, 1024), rows=256)
    curve = (64, 128, 256, 512, 1024, 2048)
    # Micro-batches, since half a million tokens do not fit on one GPU at once.
    recipe = replace(Recipe.named("owt-paper"), accumulation=8)
    return Size(recipe, 5000, 1024, curve, rows=5000, top_p=0.9)
