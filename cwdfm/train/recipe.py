"""A recipe: all that decides a training run, in one flat record that a command line can fill.

Recipes are functions that return one (`recipes.py`); `build` turns a recipe and a vocabulary into
the objects it names. A field's help text is the comment behind it.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cwdfm.config import added
from cwdfm.errors import (
    MAX_LENGTH,
    InputError,
    check_bool,
    check_choice,
    check_integer,
    check_positive,
)
from cwdfm.loss.scaled import RevealedWeight
from cwdfm.model.presets import preset
from cwdfm.ops.random import check_seed
from cwdfm.pretrained import Pretrained
from cwdfm.train.methods import METHODS, Task, settled
from cwdfm.train.parallel import Parallel

# The fields that say how a run is computed and watched. They change its weights by rounding, and by
# what dropout draws, as another number of processes does: it may go on with others.
MANNER = (
    *("accumulation", "compile", "parallel", "log_every", "checkpoint_every", "keep"),
    *("elbo_rows", "previews", "preview_steps"),
)

MOST_COUNT = 10**9  # of steps, sequences, samples: steps x batch_size are counted in 64 bits


@dataclass(frozen=True)
class Recipe:
    """One training run. Steps are optimiser steps; batch_size is global, over all processes."""

    data: str = "qm9"  # a dataset's name, files of one's own, or what was prepared from them
    column: str | None = None  # of a table of one's own; None for `smiles`, for text `text`
    tokenizer: str | None = None  # of text: gpt2, bytes, chars, a folder, a hub name; None: its own
    length: int = 32  # tokens a sequence

    init: str | None = None  # go on from this trained model: its network, source and vocabulary

    method: Literal["flow", "mdlm", "sedd", "bd3lm", "ar"] = "flow"  # what kind of model
    source: Literal["mask", "uniform"] = "uniform"  # flow, sedd: noise is masks, or any tokens
    power: float = 2.0  # of the schedule: kappa = t^power
    path: Literal["mixture", "context"] = "mixture"  # which path the corruption follows
    path_radius: int = 1  # the context path's Neighbor radius
    path_scale: float = 1.0  # the context path's Neighbor scale
    time: Literal["given", "zero"] = "given"  # zero: the network is not told the time
    noise: Literal["loglinear", "geometric"] = "loglinear"  # of sedd: its schedule
    block: int = 16  # of bd3lm: tokens a block
    clip_low: float = 0.0  # of bd3lm: least probability of a mask in training
    clip_high: float = 1.0  # of bd3lm: largest probability of a mask in training
    clip_search: bool = True  # of bd3lm: find the two of least variance at each validation
    fix_first: bool = False  # the first token is given: never noised, in training and sampling

    loss: Literal["ce", "nelbo", "bregman", "sce"] = "ce"  # what is minimised
    masked_only: bool = False  # ce, nelbo, bregman: loss on masked coordinates alone
    loss_radius: int = 3  # sce's Neighbor radius
    loss_scale: float = 0.5  # sce's Neighbor scale
    revealed: RevealedWeight = "one"  # sce's weight of revealed coordinates

    model: Literal["debug", "4m", "17m", "40m", "base"] = "4m"  # the transformer's size
    learned_positions: bool = False  # add a learned vector to each position
    dropout: float = 0.1  # share of a block's outputs left out in training

    steps: int = 25_000  # optimiser steps
    batch_size: int = 2048  # sequences a step, over all processes
    accumulation: int = 1  # micro-batches a step
    learning_rate: float = 3e-4  # the peak, after the warm-up
    min_learning_rate: float = 3e-6  # at the last step
    warmup: int = 1000  # steps up to the peak
    weight_decay: float = 0.01  # AdamW's
    beta1: float = 0.9  # AdamW's, of the mean
    beta2: float = 0.999  # AdamW's, of the square
    clip: float = 1.0  # the largest norm of a gradient; longer ones are shortened to it
    ema: float = 0.9999  # decay of the averaged weights, which evaluation uses
    precision: Literal["float32", "bfloat16"] = "bfloat16"  # of matrix products on a GPU
    compile: bool = False  # torch.compile the model
    parallel: Parallel = "ddp"  # under torchrun: copies of the model, or shares of it (fsdp)
    seed: int = 0  # of weights, order, times, noise and dropout

    log_every: int = 100  # steps between records of loss and speed
    validate_every: int = 1000  # steps between validations
    checkpoint_every: int = 1000  # steps between checkpoints; a better validation makes one too
    keep: int = 2  # checkpoints kept, beside the best
    validation_rows: int = 2048  # held-out sequences for the validation loss
    elbo_rows: int = 256  # held-out sequences for the likelihood bound; 0 for none
    previews: int = 64  # samples drawn at each validation; 0 for none
    preview_steps: int = 64  # steps of the previews, by the method's own solver

    train_rows: int = added(0)  # train on so many sequences of the data, drawn by the seed; 0: all

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulation", "log_every", "validate_every"):
            check_integer(name, getattr(self, name), most=MOST_COUNT)
        for name in ("checkpoint_every", "keep", "validation_rows", "preview_steps"):
            check_integer(name, getattr(self, name), most=MOST_COUNT)
        for name in ("elbo_rows", "previews", "warmup", "train_rows"):
            check_integer(name, getattr(self, name), 0, MOST_COUNT)
        check_integer("length", self.length, 3, MAX_LENGTH)
        check_integer("block", self.block, most=MAX_LENGTH)
        check_seed(self.seed)
        check_positive("learning_rate", self.learning_rate)
        check_positive("clip", self.clip)
        check_choice("method", self.method, tuple(METHODS))
        check_choice("source", self.source, ("mask", "uniform"))
        check_choice("loss", self.loss, ("ce", "nelbo", "bregman", "sce"))
        check_choice("path", self.path, ("mixture", "context"))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        check_choice("parallel", self.parallel, get_args(Parallel))
        for name in ("clip_search", "fix_first", "masked_only", "learned_positions", "compile"):
            check_bool(name, getattr(self, name))
        for name in ("ema", "beta1", "beta2", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("weight_decay", "min_learning_rate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a number >= 0, got {getattr(self, name)}")
        if self.batch_size % self.accumulation:
            raise InputError(
                f"batch_size {self.batch_size} must be a multiple of accumulation "
                f"{self.accumulation}"
            )


def build(recipe: Recipe, vocab_size: int, init: Pretrained | None = None) -> Task:
    """Make a recipe's objects for data of `vocab_size` tokens, around a trained network or not."""
    positions = recipe.length if recipe.learned_positions else 0
    size = preset(recipe.model, vocab_size, dropout=recipe.dropout, positions=positions)
    task = METHODS[recipe.method](recipe, vocab_size, size)
    if init is None:
        return task
    if init.method != task.method:
        raise InputError(
            f"the model to go on from has {init.method}, the recipe has {task.method}; see "
            f"`continued`"
        )
    return replace(task, model=replace(init.model.config, dropout=recipe.dropout))


def continued(recipe: Recipe, init: Pretrained) -> Recipe:
    """The recipe with all that a trained model settles taken from it."""
    return replace(
        recipe,
        **settled(init.method, init.model.config),
        length=init.length,
        fix_first=init.fix_first,
        learned_positions=init.model.config.positions > 0,
        masked_only=init.card.get("recipe", {}).get("masked_only", recipe.masked_only),
    )
