"""`cwdfm train RECIPE --out DIR`: train, or go on with a run that was interrupted."""

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch

from cwdfm.cli.options import HELP, by_flags, fields_given, flag, parse
from cwdfm.cli.progress import Progress
from cwdfm.cli.unused_options import check_of_the_model, check_unread
from cwdfm.data import TokenData
from cwdfm.data import load as load_tokens
from cwdfm.distributed import barrier, exclusive, process_group, rank, world_size
from cwdfm.errors import InputError, load_extra
from cwdfm.files import LOCK, check_output_folder, write_json
from cwdfm.pretrained import Pretrained, load
from cwdfm.provenance import provenance
from cwdfm.train.loggers import Listener, TensorBoard, WeightsAndBiases
from cwdfm.train.loop import fit
from cwdfm.train.recipe import Recipe, build, continued
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run


@dataclass(frozen=True)
class Options:
    """Train a model. The same command again goes on where the last checkpoint stands."""

    out: Path  # folder for checkpoints, metrics, previews and the finished model
    recipe: Recipe
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    tensorboard: bool = True  # event files beside metrics.jsonl, if TensorBoard is installed
    wandb: str | None = None  # a project of Weights & Biases to send metrics to


def main(arguments: list[str], *, keeps: bool = True) -> None:
    """Parse, load the data, train, write the model.

    keeps: whether the folder outlives an interruption, which is said then.
    """
    if not arguments or arguments[0] not in RECIPES:
        without_recipe(arguments)
    name, make = arguments[0], RECIPES[arguments[0]]
    options = parse(f"train {name}", arguments[1:], lambda missing: Options(missing, make()))
    given = fields_given(Recipe, arguments[1:])
    if options.recipe.init is None:
        check_unread(options.recipe, given)
    else:
        check_of_the_model(given)
    if options.wandb is not None:
        load_extra("wandb", "wandb")  # before anything is written
    check_output_folder(options.out)
    made = [path for path in (options.out, *options.out.parents) if not path.exists()]
    options.out.mkdir(parents=True, exist_ok=True)  # before anything long begins
    other = f"another run goes on in {options.out}"  # they would write each other's files
    with process_group(options.device) as device, exclusive(options.out, other):
        with taken_back(options.out, made), by_flags(Recipe):
            run = prepare(name, options, device, given)
        say(f"{name}: {describe(run)}")
        if run.resume():
            done = run.step == run.recipe.steps
            say("all steps are done" if done else f"going on from step {run.step}")
        if rank() == 0:
            write_json(options.out / "recipe.json", {**run.told(), **run.card})
        stopped = fit(run, listeners(options, run) if rank() == 0 else ())
        unfinished = run.step < run.recipe.steps
        if unfinished:
            then = "goes on from there" if keeps else "begins anew"
            say(f"interrupted at step {run.step}; the same command {then}")
        else:
            model = run.averaged()
            if rank() == 0:
                model.save_pretrained(options.out / "model")
                say(f"written: {options.out / 'model'}")
    if unfinished:  # out of the group, which all leave together
        sys.exit(128 + stopped)  # as shells say it: what would use the model is not begun


@contextmanager
def taken_back(out: Path, made: list[Path]) -> Iterator[None]:
    """Leave none of the folders behind that were made for `out`, if what follows is refused."""
    try:
        yield
    except (InputError, OSError):
        if rank() == 0 and made:
            with suppress(OSError):  # they hold something after all
                (out / LOCK).unlink()
                for folder in made:
                    folder.rmdir()
        raise


def without_recipe(arguments: list[str]) -> NoReturn:
    """Help, or what is wrong where the first word is no recipe."""
    names = "\n".join(f"  {name:12} {make.__doc__}" for name, make in RECIPES.items())
    if arguments and not arguments[0].startswith("-"):
        raise InputError(f"unknown recipe {arguments[0]!r}; there are:\n{names}")
    if arguments and not any(word in HELP for word in arguments):
        named = next((word for word in arguments if word in RECIPES), "RECIPE")
        raise InputError(
            f"the recipe comes first, and the first word is {arguments[0]}; write "
            f"`cwdfm train {named} --out DIR ...`; `cwdfm train --help` lists the recipes"
        )
    print(f"usage: cwdfm train RECIPE --out DIR [options]\n\nrecipes:\n{names}")
    print("\n`cwdfm train RECIPE --help` shows all options with that recipe's values.")
    sys.exit(0 if arguments else 2)


def check_settled(asked: Recipe, default: Recipe, settled: Recipe) -> None:
    """Refuse what was asked for and what the model to go on from settles otherwise."""
    wrong = []
    for field in fields(Recipe):
        given, usual, has = (getattr(recipe, field.name) for recipe in (asked, default, settled))
        if given not in (usual, has):
            wrong.append(f"{flag(field.name)} {has}, asked for is {given}")
    if wrong:
        raise InputError(
            f"the model to go on from has {', and '.join(wrong)}; leave that out, or train from "
            f"the beginning"
        )


def prepare(name: str, options: Options, device: torch.device, given: Collection[str]) -> Run:
    """The run of a named recipe, its data read; `given` are the fields that the command sets."""
    recipe, init = options.recipe, None
    if recipe.init is not None:
        init = load(recipe.init)
        check_settled(recipe, RECIPES[name](), continued(recipe, init))
        recipe = continued(recipe, init)
        check_unread(recipe, given)
        say(
            f"from {recipe.init}: its network and vocabulary, {init.method}, length "
            f"{recipe.length}{', the first token given' if recipe.fix_first else ''}"
        )
    build(recipe, 2)  # what does not fit together is refused before any data are read
    tokens = read(recipe, init)
    say(tokens.summary())
    return Run(recipe, tokens, options.out, device, init=init, card={"training": provenance()})


def read(recipe: Recipe, init: Pretrained | None) -> TokenData:
    """The recipe's data; the first process prepares them, the others find them in the cache."""
    if rank():
        barrier()
    tokens = load_tokens(
        recipe.data,
        length=recipe.length,
        column=recipe.column,
        tokenizer=recipe.tokenizer if init is None else init.tokenizer,
    )
    if not rank():
        barrier()
    return tokens


def describe(run: Run) -> str:
    """What is to come: how much of it, and the objective."""
    recipe, count = run.recipe, sum(p.numel() for p in run.model.parameters())
    epochs = recipe.steps * recipe.batch_size / len(run.train_rows)
    return (
        f"{count:,} parameters, {recipe.method}, {recipe.steps:,} steps of "
        f"{recipe.batch_size:,} sequences ({epochs:.3g} epochs), on {world_size()} x {run.device}\n"
        f"  {run.objective}"
    )


def listeners(options: Options, run: Run) -> list[Listener]:
    """All that shall hear of the run beside metrics.jsonl."""
    hear: list[Listener] = [Terminal(run)]
    if options.tensorboard and find_spec("tensorboard") is not None:
        hear.append(TensorBoard(options.out / "tensorboard", run.step))
    if options.wandb is not None:
        hear.append(WeightsAndBiases(options.wandb, options.out, asdict(run.recipe)))
    return hear


class Terminal:
    """A bar that moves with the steps, and a line for each record."""

    def __init__(self, run: Run) -> None:
        self.progress = Progress("training", run.recipe.steps, done=run.step)
        self.progress.__enter__()

    def step(self, step: int) -> None:
        self.progress.advance()

    def record(self, record: Mapping[str, Any]) -> None:
        self.progress.advance(0, notes=_brief(record))
        self.progress.say("  ".join(f"{key} {value:.5g}" for key, value in record.items()))

    def close(self) -> None:
        self.progress.__exit__(None, None, None)


def _brief(record: Mapping[str, Any]) -> str:
    """Loss, speed and utilisation, for beside the bar."""
    if "loss" not in record:
        return ""
    notes = f"loss {record['loss']:.4f}, {record['tokens_per_second']:,.0f} tokens/s"
    share = record.get("flop_utilisation")
    return notes if share is None else f"{notes}, {share:.0%} of peak"


def say(text: str) -> None:
    """Print, on the first process alone."""
    if rank() == 0:
        print(text, flush=True)
