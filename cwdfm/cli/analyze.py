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
from cwdfm.solver_config import POWER, SOLVERS, build_solver, option_names, solvers_with
from cwdfm.source import MaskSource
from cwdfm.trained import auto_batch_size, prompt_tokens
from cwdfm.weight.neighbor import Boundary

T = TypeVar("T", bound="Shared")
Named = Literal["euler", "neighbor", "entropy"]
# The solvers that use an option, of those that can be compared.
APPLIES_WITH = {
    name: tuple(each for each in get_args(Named) if each in solvers_with(name))
    for name in ("radius", "scale", "beta")
}
MAX_BINS = 10**4  # of neighbors or distances
MASK_NOTE = (
    "note: with a mask source each token is updated exactly once by any solver; use --corrector, "
    "or a model with a uniform source, for further updates"
)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options of both analyses."""

    # MODEL, the first argument: a bundled model (qm9-uniform-small, qm9-mask-small,
    # moses-uniform-small, novels-small), or the folder of a model, a run or a checkpoint.
    model: str
    out: Path  # output folder
    # The class of a network that is not of cwdfm, as package.module:Class. It runs that code.
    network: str | None = None
    seed: int = 0  # random seed
    batch_size: int = 0  # sequences per batch; 0 chooses by the free memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # write into a folder that is not empty


@dataclass(frozen=True, kw_only=True)
class Context(Shared):
    """Difficulty of masked tokens, by their revealed neighbors and the distance to the nearest.

    Writes context.json and context.png with the entropy of the prediction and the negative
    log-likelihood of the true token, in nats.
    """

    data: str  # a dataset, a corpus, files, or prepared data; its held-out part is used
    part: str | None = None  # for text: valid, test, or all; default: the held-out part
    rows: int = 256  # number of sequences, evenly spaced in the held-out data
    draws: int = 4  # corruptions per sequence
    radius: int = 8  # maximum distance of a neighbor
    farthest: int = 16  # last bin of the distance, which includes all larger ones
    boundary: Boundary = "circular"  # whether windows wrap around the ends or are cut there


@dataclass(frozen=True, kw_only=True)
class Updates(Shared):
    """Number of updates per token for several solvers, and the fraction that is undone later.

    Writes updates.json and updates.png.
    """

    solvers: tuple[Named, ...] = ("euler", "neighbor")  # solvers to compare
    n: int = 256  # samples per solver
    steps: int = 256  # steps of each solver
    radius: int = 1  # neighbor: maximum distance of a neighbor
    scale: float = 4.0  # neighbor: rate increase per revealed neighbor
    beta: float = 6.0  # entropy: rate decrease per nat of entropy
    corrector: float = 0.0  # scale of the corrector; 0 for none
    corrector_power: float = POWER  # a = b in the corrector strength, scale t^a (1 - t)^b
    temperature: float = 1.0  # of the predictions
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
    for each, options in (("context", Context), ("updates", Updates)):
        print(f"  {each:8} {(options.__doc__ or '').splitlines()[0]}")
    print("\nRun `cwdfm analyze ANALYSIS --help` for its options.")
    if not name:
        raise InputError(f"an analysis is required: {names}")


def read_options(kind: type[T], arguments: list[str], **limits: int) -> tuple[T, set[str]]:
    """The options of an analysis, and the names of those given; `limits` are of integers."""
    command = f"analyze {kind.__name__.lower()}"
    words = model_first(command, arguments)
    required = [name for name in ("model", "out", "data") if name in kind.__dataclass_fields__]
    options: T = parse(
        f"{command} MODEL", words, lambda missing: kind(**dict.fromkeys(required, missing))
    )
    load_extra("matplotlib", "plot")  # fail before the work: the figure comes last
    with by_flags(kind):
        check_folder(options.out, force=options.force)
        for name, most in limits.items():
            check_integer(name, getattr(options, name), most=most)
        check_integer("batch_size", options.batch_size, 0, MAX_SAMPLES)
        check_seed(options.seed)
    return options, fields_given(kind, words)


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
        spread = np.arange(count) * len(data.valid) // count
        analysis = context_analysis(
            trained.model,
            trained.source,
            trained.schedule,
            torch.from_numpy(data.valid[spread].astype(np.int64)),
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
        raise InputError("no solvers; give at least one after --solvers")
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
    """The solver with this name and the parameters given on the command line."""
    chosen = option_names(name) & {field.name for field in fields(Updates)}
    values = {option: getattr(options, option) for option in chosen}
    return build_solver(name, SOLVERS[name].config(**values))


def label(options: Updates, solver: Named) -> str:
    """The name of a solver with its parameters."""
    parameters = {
        "neighbor": f" (radius {options.radius}, scale {options.scale:g})",
        "entropy": f" (beta {options.beta:g})",
    }
    return solver.capitalize() + parameters.get(solver, "")


def write(options: Context | Updates, record: dict[str, Any], draw: Callable[[Path], None]) -> None:
    """Write context.json and context.png, or updates.json and updates.png."""
    name = type(options).__name__.lower()
    origin = {"provenance": provenance(), "options": asdict(options) | {"out": str(options.out)}}
    with write_errors(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        draw(options.out / f"{name}.png")
        write_json(options.out / f"{name}.json", origin | record)


ANALYSES: dict[str, Callable[[list[str]], None]] = {"context": context, "updates": updates}
