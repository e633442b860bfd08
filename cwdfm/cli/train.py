"""`cwdfm train RECIPE --out DIR`: train a model, or resume an interrupted run."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch

from cwdfm.cli.options import HELP, by_flags, fields_given, flag, parse, value_given
from cwdfm.cli.progress import Progress
from cwdfm.config import check_applies, choice_names
from cwdfm.data import load as load_tokens
from cwdfm.data.loader import is_tokenizer_of, open_if_prepared
from cwdfm.distributed import barrier, exclusive, process_group, rank, world_size
from cwdfm.errors import InputError, load_extra
from cwdfm.files import LOCK, check_output_folder, write_json
from cwdfm.pretrained.model import Pretrained, load_trained
from cwdfm.provenance import provenance
from cwdfm.train.config import TrainConfig, settings_of
from cwdfm.train.loggers import Logger, TensorBoard, WeightsAndBiases
from cwdfm.train.loop import fit
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run


@dataclass(frozen=True)
class Options:
    """Train a model. Run the same command again to resume from the last checkpoint.

    Each training method, path and loss has its own options. Add --method, --path or --loss before
    --help to see the options of that choice.
    """

    out: Path  # folder for checkpoints, metrics, previews and the trained model
    config: TrainConfig
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    tensorboard: bool = True  # write TensorBoard event files, if TensorBoard is installed
    wandb: str | None = None  # Weights & Biases project to send metrics to


def main(arguments: list[str], *, keeps: bool = True) -> None:
    """Parse the command line, load the data, train, and save the model.

    keeps: whether the output folder survives an interruption; only affects the final message.
    """
    if not arguments or arguments[0] not in RECIPES:
        usage(arguments)
    name, arguments = arguments[0], arguments[1:]
    with by_flags(TrainConfig):
        options, init = read_options(name, arguments)
        options.config.build(2)  # reject settings that do not fit together before reading data
    if options.wandb is not None:
        load_extra("wandb", "wandb")  # before anything is written
    check_output_folder(options.out)
    created = [path for path in (options.out, *options.out.parents) if not path.exists()]
    options.out.mkdir(parents=True, exist_ok=True)  # fail now rather than after loading the data
    with (
        process_group(options.device) as device,
        exclusive(options.out / LOCK, f"another run is training in {options.out}"),
        by_flags(TrainConfig),
    ):
        with removed_on_error(options.out, created):
            run = make_run(options, init, device)
        say(f"{name}: {describe(run)}")
        if run.dropout_reveals_positions:
            say(
                "warning: with a mask source and only rotary positions, dropout reveals token "
                "positions during training that the model cannot see when sampling; use "
                "--dropout 0 or --learned-positions (docs/method.md, dropout and positions)"
            )
        if run.resume():
            finished = run.step == run.config.optimizer.steps
            say("all steps are done" if finished else f"resuming from step {run.step}")
        if rank() == 0:
            write_json(options.out / "recipe.json", {**run.settings(), **run.card})
        stopped = fit(run, loggers(options, run) if rank() == 0 else ())
        finished = run.step == run.config.optimizer.steps
        if finished:
            model = run.averaged()
            if rank() == 0:
                model.save_pretrained(options.out / "model")
                say(f"saved: {options.out / 'model'}")
        else:
            then = "resumes from there" if keeps else "starts again"
            say(f"interrupted at step {run.step}; the same command {then}")
    if not finished:  # exit after leaving the process group
        sys.exit(128 + stopped)  # the exit code of a process killed by this signal


def read_options(name: str, arguments: list[str]) -> tuple[Options, Pretrained | None]:
    """Parse the options, and load the model to continue from, if any.

    The method, path and loss determine which flags exist, so their values are read first.
    """
    config, init = RECIPES[name](), None
    init_path = value_given("init", arguments) or config.model.init
    show_help = not set(HELP).isdisjoint(arguments)
    if init_path is not None and not show_help:
        init = load_trained(init_path)
        config = config.continued_from(init).updated(init=init_path)
    elif not show_help:
        config = config_for_prepared(config, value_given("data", arguments))
    choices = {name: value_given(name, arguments) for name in choice_names(TrainConfig)}
    chosen = {name: value for name, value in choices.items() if value is not None}
    if init is not None:
        check_against_model(chosen, init)
    config = config.from_flat(**config.flat() | chosen)
    given = fields_given(TrainConfig, arguments)
    for field in sorted(given):
        check_applies(config, field, settled=() if init is None else ("method",))
    options = parse(f"train {name}", arguments, lambda missing: Options(missing, config))
    if init is not None:
        flat = options.config.flat()
        check_against_model({name: flat[name] for name in given}, init)
    return options, init


def config_for_prepared(config: TrainConfig, path: str | None) -> TrainConfig:
    """Take the length and the tokenizer from the data if it is already prepared."""
    data = open_if_prepared(config.data.data if path is None else path)
    if data is None:
        return config
    tokenizer = config.data.tokenizer
    with suppress(InputError):  # the recipe's tokenizer is not available
        if is_tokenizer_of(data, tokenizer):
            return config.updated(length=data.length)
    return config.updated(length=data.length, tokenizer=None)


def check_against_model(given: Mapping[str, Any], init: Pretrained) -> None:
    """Reject flags that contradict the model to continue from."""
    problem = ""
    for name in ("model", "tokenizer"):
        if name in given:
            problem = f"{flag(name)} cannot be combined with --init, which fixes it"
    fixed = settings_of(init)
    conflicting = [name for name in fixed if name in given and given[name] != fixed[name]]
    if conflicting and not problem:
        differences = ", ".join(f"{flag(n)} {fixed[n]} (given: {given[n]})" for n in conflicting)
        problem = f"the model to continue from has {differences}"
    if problem:
        raise InputError(f"{problem}; remove the flag, or train from scratch")


def usage(arguments: list[str]) -> NoReturn:
    """Print the recipes, or raise an error if the first argument is not one of them."""
    names = "\n".join(f"  {name:12} {make.__doc__}" for name, make in RECIPES.items())
    if arguments and not arguments[0].startswith("-"):
        raise InputError(f"unknown recipe {arguments[0]!r}; choose one of:\n{names}")
    if arguments and set(HELP).isdisjoint(arguments):
        recipe = next((argument for argument in arguments if argument in RECIPES), "RECIPE")
        raise InputError(
            f"the recipe must be the first argument, got {arguments[0]}; write "
            f"`cwdfm train {recipe} --out DIR ...`; `cwdfm train --help` lists the recipes"
        )
    print(f"usage: cwdfm train RECIPE --out DIR [options]\n\nrecipes:\n{names}")
    print("\n`cwdfm train RECIPE --help` shows the options and their defaults in that recipe.")
    sys.exit(0 if arguments else 2)


def make_run(options: Options, init: Pretrained | None, device: torch.device) -> Run:
    """Load the data and set up the run."""
    config, data = options.config, options.config.data
    if init is not None:
        first = ", first token fixed" if data.fix_first else ""
        kept = f"its network and vocabulary, {init.method}, length {data.length}{first}"
        say(f"continuing from {config.model.init}: {kept}")
    if rank():
        barrier()  # wait until the first process has prepared the data, then read its cache
    tokenizer = data.tokenizer if init is None else init.tokenizer
    tokens = load_tokens(
        data.data,
        length=data.length,
        column=data.column,
        tokenizer=tokenizer,
        documents=data.documents,
        representation=None if data.representation == "smiles" else data.representation,
        condition=data.condition,
    )
    if not rank():
        barrier()
    say(tokens.summary())
    return Run(config, tokens, options.out, device, init=init, card={"training": provenance()})


@contextmanager
def removed_on_error(out: Path, created: list[Path]) -> Iterator[None]:
    """Remove the folders that were created for `out` if the setup fails."""
    try:
        yield
    except (InputError, OSError):
        with suppress(OSError):  # a folder is not empty
            if rank() == 0 and created:
                (out / LOCK).unlink()
                for folder in created:
                    folder.rmdir()
        raise


def describe(run: Run) -> str:
    """A summary of the run: parameters, method, steps, epochs and objective."""
    optimizer, count = run.config.optimizer, sum(p.numel() for p in run.model.parameters())
    epochs = optimizer.steps * optimizer.batch_size / len(run.train_rows)
    return (
        f"{count:,} parameters, {run.config.method.method}, {optimizer.steps:,} steps of "
        f"{optimizer.batch_size:,} sequences ({epochs:.3g} epochs), on {world_size()} x "
        f"{run.device}\n  {run.objective}"
    )


def loggers(options: Options, run: Run) -> list[Logger]:
    """The loggers of a run besides metrics.jsonl, which is always written."""
    result: list[Logger] = [Terminal(run)]
    if options.tensorboard and find_spec("tensorboard") is not None:
        result.append(TensorBoard(options.out / "tensorboard", run.step))
    if options.wandb is not None:
        result.append(WeightsAndBiases(options.wandb, options.out, asdict(run.config)))
    return result


class Terminal(Logger):
    """Shows a progress bar and prints a line for each log record."""

    def __init__(self, run: Run) -> None:
        self.progress = Progress("training", run.config.optimizer.steps, done=run.step)
        self.progress.__enter__()

    def step(self, step: int) -> None:
        self.progress.advance()

    def record(self, record: Mapping[str, Any]) -> None:
        notes = ""  # next to the progress bar: loss, speed and utilization
        if "loss" in record:
            notes = f"loss {record['loss']:.4f}, {record['tokens_per_second']:,.0f} tokens/s"
        if "flop_utilization" in record:
            notes += f", {record['flop_utilization']:.0%} of peak"
        self.progress.advance(0, notes=notes)
        self.progress.say("  ".join(f"{key} {value:.5g}" for key, value in record.items()))

    def close(self) -> None:
        self.progress.__exit__()


def say(text: str) -> None:
    """Print on the first process only."""
    if rank() == 0:
        print(text, flush=True)
