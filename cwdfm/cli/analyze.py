"""`cwdfm analyze context|updates MODEL --out DIR`: the paper's analyses of models and solvers."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch

from cwdfm.cli.options import (
    HELP,
    by_flags,
    check_applies,
    check_window,
    fields_given,
    model_first,
    parse,
)
from cwdfm.cli.progress import Progress
from cwdfm.distributed import process_group
from cwdfm.errors import MAX_SAMPLES, MAX_STEPS, InputError, check_integer, load_extra
from cwdfm.files import write_errors, write_json
from cwdfm.generation import generate
from cwdfm.likelihood.dataset import load_held_out
from cwdfm.metrics.analysis import context_analysis, update_statistics
from cwdfm.ops.random import check_seed
from cwdfm.pretrained.model import load_trained
from cwdfm.provenance import provenance
from cwdfm.report import check_folder, report_folder
from cwdfm.report.analysis import context_plot, context_table, updates_plot, updates_table
from cwdfm.solver_config import POWER, make_solver, option_names, solvers_with
from cwdfm.source import MaskSource
from cwdfm.trained import auto_batch_size, prompt_tokens
from cwdfm.weight.neighbor import Boundary

T = TypeVar("T", bound="Shared")
Named = Literal["euler", "neighbor", "entropy"]
# For each solver option, the comparable solvers that use it.
APPLIES_WITH = {
    name: tuple(solver for solver in get_args(Named) if solver in solvers_with(name))
    for name in ("radius", "scale", "beta")
}
MAX_BINS = 10**4  # largest --radius and --farthest
MASK_NOTE = (
    "note: with a mask source, every solver updates each token exactly once; to see further "
    "updates, use --corrector or a model with a uniform source"
)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options shared by both analyses."""

    # MODEL (first argument): a bundled model (qm9-uniform-small, qm9-mask-small,
    # moses-uniform-small, novels-small), the folder of a model, a run or a checkpoint, or
    # owner/name@revision on the Hugging Face hub.
    model: str
    out: Path  # output folder
    # Class of a custom network, as package.module:Class. Its code is executed.
    network: str | None = None
    seed: int = 0  # random seed
    batch_size: int = 0  # sequences per batch; 0: as many as fit in available memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # write into a folder that is not empty


@dataclass(frozen=True, kw_only=True)
class Context(Shared):
    """How hard masked tokens are to predict, by the number and distance of revealed neighbors.

    Writes context.json and context.png with the entropy of the prediction and the negative
    log-likelihood of the true token, in nats.
    """

    data: str  # dataset, corpus, file or prepared data; only its held-out part is used
    part: str | None = None  # part of a text corpus: valid, test or all; default: the held-out part
    rows: int = 256  # number of sequences, evenly spaced in the held-out data
    draws: int = 4  # corruptions per sequence
    radius: int = 8  # window radius: neighbors are at most this far away, in tokens
    farthest: int = 16  # last distance bin; it includes all larger distances
    # Windows wrap around the ends of the sequence, or are cut there.
    boundary: Boundary = "circular"


@dataclass(frozen=True, kw_only=True)
class Updates(Shared):
    """How often solvers update each token, and what fraction of the updates is undone later.

    Writes updates.json and updates.png.
    """

    solvers: tuple[Named, ...] = ("euler", "neighbor")  # solvers to compare
    n: int = 256  # samples per solver
    steps: int = 256  # steps of each solver
    radius: int = 1  # neighbor: window radius in tokens
    scale: float = 4.0  # neighbor: rate increase per revealed neighbor
    beta: float = 6.0  # entropy: rate decrease per nat of entropy
    corrector: float = 0.0  # scale of the corrector; 0 for none
    corrector_power: float = POWER  # a = b in the corrector strength, scale t^a (1 - t)^b
    temperature: float = 1.0  # temperature of the predictions
    top_p: float = 1.0  # nucleus sampling: keep the most likely tokens up to this probability


def main(arguments: list[str]) -> None:
    """Run one of the analyses."""
    name, *rest = arguments or [""]
    if name in ANALYSES:
        ANALYSES[name](rest)
        return
    names = ", ".join(ANALYSES)
    if name and name not in HELP:
        raise InputError(f"unknown analysis {name!r}; choose from {names}")
    print("usage: cwdfm analyze ANALYSIS MODEL --out DIR [options]\n\nanalyses:")
    for analysis, options in (("context", Context), ("updates", Updates)):
        print(f"  {analysis:8} {(options.__doc__ or '').splitlines()[0]}")
    print("\nRun `cwdfm analyze ANALYSIS --help` for its options.")
    if not name:
        raise InputError(f"an analysis is required: {names}")


def read_options(options_class: type[T], arguments: list[str], **limits: int) -> tuple[T, set[str]]:
    """Parse the options of an analysis. Also returns the names of the options that were given.

    `limits` maps integer options to their maxima.
    """
    command = f"analyze {options_class.__name__.lower()}"
    argv = model_first(command, arguments)
    required = [
        name for name in ("model", "out", "data") if name in options_class.__dataclass_fields__
    ]
    options: T = parse(
        f"{command} MODEL", argv, lambda missing: options_class(**dict.fromkeys(required, missing))
    )
    load_extra("matplotlib", "plot")  # fail now, not when the figure is drawn at the end
    with by_flags(options_class):
        check_folder(options.out, force=options.force)
        for name, maximum in limits.items():
            check_integer(name, getattr(options, name), most=maximum)
        check_integer("batch_size", options.batch_size, 0, MAX_SAMPLES)
        check_seed(options.seed)
    return options, fields_given(options_class, argv)


def context(arguments: list[str]) -> None:
    """`cwdfm analyze context`."""
    limits = {"rows": MAX_SAMPLES, "draws": MAX_STEPS, "radius": MAX_BINS, "farthest": MAX_BINS}
    options, _ = read_options(Context, arguments, **limits)
    with (
        process_group(options.device) as device,
        by_flags(Context),
        report_folder(options.out, force=options.force),
    ):
        trained = load_trained(options.model, device, network=options.network)
        data = load_held_out(trained, options.data, options.part)
        count = min(options.rows, len(data.valid))
        rows = np.arange(count) * len(data.valid) // count
        analysis = context_analysis(
            trained.model,
            trained.source,
            trained.schedule,
            torch.from_numpy(data.valid[rows].astype(np.int64)),
            radius=options.radius,
            farthest=options.farthest,
            boundary=options.boundary,
            fixed=prompt_tokens(trained)[1],
            draws=options.draws,
            seed=options.seed,
            batch_size=options.batch_size or auto_batch_size(trained),
        )
        record = {"data": data.source, "weights": trained.fingerprint(), **analysis.to_json()}
        title = f"{options.model} on {data.name}"
        write(options, record, lambda path: context_plot(analysis, path, title=title))
    print(context_table(f"neighbors within {options.radius}", analysis.neighbors).text())
    print(context_table("distance", analysis.distance).text())
    print(f"distance {options.farthest} includes larger distances and fully masked sequences")
    print(f"written: {options.out}")


def updates(arguments: list[str]) -> None:
    """`cwdfm analyze updates`."""
    options, given = read_options(Updates, arguments, n=MAX_SAMPLES, steps=MAX_STEPS)
    if not options.solvers:
        raise InputError("no solvers; specify at least one after --solvers")
    check_applies(options, given, "solvers", APPLIES_WITH)
    with by_flags(Updates):
        solvers = {label(options, name): named_solver(options, name) for name in options.solvers}
    results = {}
    with (
        process_group(options.device) as device,
        by_flags(Updates),
        report_folder(options.out, force=options.force),
    ):
        trained = load_trained(options.model, device, network=options.network)
        for solver in solvers.values():
            check_window(solver.weight, trained.length)
        _, fixed = prompt_tokens(trained)
        if isinstance(trained.source, MaskSource) and not options.corrector:
            print(MASK_NOTE)
        with Progress("sampling", len(solvers) * options.n * options.steps) as progress:
            for name, solver in solvers.items():
                samples = generate(
                    trained,
                    solver,
                    n=options.n,
                    steps=options.steps,
                    seed=options.seed,
                    batch_size=options.batch_size or None,
                    progress=progress.advance,
                )
                results[name] = update_statistics(samples, fixed)
        record: dict[str, Any] = {"weights": trained.fingerprint()}
        record["solvers"] = {name: result.to_json() for name, result in results.items()}
        title = f"{options.model}, {options.steps} steps"
        write(options, record, lambda path: updates_plot(results, path, title=title))
    print(updates_table(results).text())
    print(f"written: {options.out}")


def named_solver(options: Updates, name: Named) -> Any:
    """Build the named solver with the parameters from the command line."""
    names = option_names(name) & {field.name for field in fields(Updates)}
    values = {option: getattr(options, option) for option in names}
    return make_solver(name, **values)


def label(options: Updates, solver: Named) -> str:
    """The label of a solver in tables and figures, with its parameters."""
    parameters = {
        "neighbor": f" (radius {options.radius}, scale {options.scale:g})",
        "entropy": f" (beta {options.beta:g})",
    }
    return solver.capitalize() + parameters.get(solver, "")


def write(options: Context | Updates, record: dict[str, Any], draw: Callable[[Path], None]) -> None:
    """Write context.json and context.png, or updates.json and updates.png."""
    name = type(options).__name__.lower()
    header = {"provenance": provenance(), "options": asdict(options) | {"out": str(options.out)}}
    with write_errors(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        draw(options.out / f"{name}.png")
        write_json(options.out / f"{name}.json", header | record)


ANALYSES: dict[str, Callable[[list[str]], None]] = {"context": context, "updates": updates}
