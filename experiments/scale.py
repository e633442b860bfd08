"""How much of everything: minutes on a CPU, minutes a cell on a GPU, or the paper's own."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from experiments.recipe import Recipe
from experiments.tasks.base import Corpus
from experiments.tasks.sample import HeldOut

Scale = Literal["smoke", "small", "paper"]

JUDGE = {"smoke": "any", "small": "SmolLM2-135M", "paper": "gpt2-large"}
CORPORA: tuple[Corpus, ...] = ("text", "molecules")
NAMES: dict[Corpus, str] = {"text": "text", "molecules": "QM9"}  # as titles call them


@dataclass(frozen=True)
class Size:
    """Of the experiments on one corpus."""

    recipe: Recipe
    n: int  # samples a cell
    steps: int  # of the solver, where an experiment does not vary them
    curve: tuple[int, ...]  # steps of the solver, where it does
    rows: int  # held-out sequences for a likelihood
    fold_size: int = 1024  # molecules that are counted together
    top_p: float = 1.0  # the nucleus
    seeds: int = 1  # runs of the cells that decide a claim


@cache  # asked for every cell
def size(corpus: Corpus, scale: Scale) -> Size:
    """The sizes of one scale. Recipes name their corpus, and the machine knows where it lies."""
    sized = (_molecules if corpus == "molecules" else _text)(scale)
    return replace(sized, recipe=replace(sized.recipe, data=corpus, tokenizer=None))


def held_out(corpus: Corpus, scale: Scale, part: int) -> HeldOut:
    """As many held-out rows as a cell has samples."""
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
        return Size(tiny, n=24, steps=4, curve=(2, 4), rows=4)  # MAUVE wants twenty
    if scale == "small":
        recipe = replace(
            Recipe.named("text-small"),
            # Many small steps rather than few large ones: runs this short must learn early to
            # use the context at all.
            batch_size=32,
            steps=3500,
            warmup=350,
            learning_rate=1e-3,
            dropout=0.0,
            masked_only=True,  # flows say it themselves, others do not read it; part of their keys
            **_QUIET,
        )
        return Size(recipe, 256, 256, (64, 128, 256, 512, 1024), rows=256)
    curve = (64, 128, 256, 512, 1024, 2048)
    # In micro-batches: half a million tokens at once take more memory than one GPU has.
    recipe = replace(Recipe.named("owt-paper"), accumulation=8)
    return Size(recipe, 5000, 1024, curve, rows=5000, top_p=0.9)
