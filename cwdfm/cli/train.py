"""`cwdfm train RECIPE --out DIR`: train, or go on with a run that was interrupted."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from cwdfm.cli.options import parse
from cwdfm.data import load
from cwdfm.errors import InputError
from cwdfm.provenance import provenance
from cwdfm.train.finish import finish
from cwdfm.train.loop import fit
from cwdfm.train.recipe import Recipe
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run


@dataclass(frozen=True)
class Options:
    """Train a model. The same command again goes on where the last checkpoint stands."""

    out: Path  # folder for checkpoints, metrics and the finished model
    recipe: Recipe
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...


def main(arguments: list[str]) -> None:
    """Parse, load the data, train, write the model."""
    if not arguments or arguments[0] not in RECIPES:
        names = "\n".join(f"  {name:12} {make.__doc__}" for name, make in RECIPES.items())
        if arguments and not arguments[0].startswith("-"):
            raise InputError(f"unknown recipe {arguments[0]!r}; there are:\n{names}")
        print(f"usage: cwdfm train RECIPE --out DIR [options]\n\nrecipes:\n{names}")
        print("\n`cwdfm train RECIPE --help` shows all options with that recipe's values.")
        return
    name, make = arguments[0], RECIPES[arguments[0]]
    options = parse(f"train {name}", arguments[1:], lambda missing: Options(missing, make()))
    device = _join(options.device)
    try:
        tokens = load(options.recipe.data, length=options.recipe.length)
        train, valid = (torch.from_numpy(rows) for rows in (tokens.train, tokens.valid))
        size = tokens.tokenizer.vocab_size
        run = Run(options.recipe, size, train, valid, options.out, device)
        fit(run)
        if run.rank == 0 and run.step == options.recipe.steps:
            card = {"data": tokens.name, "training": provenance()}
            finish(run, tokens.tokenizer, card).save_pretrained(options.out / "model")
            print(f"written: {options.out / 'model'}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(device: str) -> torch.device:
    """The device to train on; under torchrun, join the other processes first."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        if device == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
    return torch.device(device)
