"""`cwdfm analyze context|updates MODEL --out DIR`: the paper's analyses of models and solvers."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cwdfm.cli.options import HELP, by_flags, check_window, fields_given, model_first, parse
from cwdfm.cli.progress import Progress
from cwdfm.cli.unused_options import check_applies
from cwdfm.distributed import process_group
from cwdfm.errors import MAX_SAMPLES, MAX_STEPS, InputError, check_integer, load_extra
from cwdfm.files import write_advice, write_json
from cwdfm.generation import auto_batch_size, generate, prompt_tokens
from cwdfm.likelihood.dataset import load_held_out
from cwdfm.metrics.analysis import context_analysis, update_statistics
from cwdfm.ops.random import check_seed
from cwdfm.pretrained import load
from cwdfm.provenance import provenance
from cwdfm.report import check_folder
from cwdfm.report.analysis import context_plot, context_table, updates_plot, updates_table
from cwdfm.solver_config import POWER, SolverChoice, solvers_with
from cwdfm.source import MaskSource
from cwdfm.weight.neighbor import Boundary

Named = Literal["euler", "neighbor", "entropy"]
# Options that only some of these solvers use.
APPLIES_WITH = {
    name: {"solvers": tuple(each for each in get_args(Named) if each in solvers_with(name))}
    for name in ("radius", "scale", "beta")
}
MAX_BINS = 10**4  # of neighbors or distances
MASK_NOTE = (
    "note: with a mask source each token is updated exactly once by any solver; use --corrector, "
    "or a model with a uniform source, for further updates"
)


@dataclass(frozen=True)
class Context:
    """Difficulty of masked tokens, by their revealed neighbors and the distance to the nearest.

    Writes context.json and context.png with the entropy of the prediction and the negative
    log-likelihood of the true token, in nats.
    """

    # MODEL, positional: a bundled model (qm9-uniform-small, qm9-mask-small), or a folder with a
    # model, a run or a checkpoint.
    model: str
    data: str  # a dataset, a corpus, files, or prepared data; its held-out part is used
    out: Path  # output folder
    part: str | None = None  # for text: valid, test, or all; default: the held-out part
    rows: int = 256  # number of sequences, evenly spaced in the held-out data
    draws: int = 4  # corruptions per sequence
    radius: int = 8  # maximum distance of a neighbor
    farthest: int = 16  # last bin of the distance, which includes all larger ones
    boundary: Boundary = "circular"  # whether windows wrap around the ends or are cut there
    seed: int = 0  # random seed
    batch_size: int = 0  # sequences per batch; 0 chooses by the free memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # write into a folder that is not empty


@dataclass(frozen=True)
class Updates:
    """Number of updates per token for several solvers, and the fraction that is undone later.

    Writes updates.json and updates.png.
    """

    # MODEL, positional: a bundled model (qm9-uniform-small, qm9-mask-small), or a folder with a
    # model, a run or a checkpoint.
    model: str
    out: Path  # output folder
    solvers: tuple[Named, ...] = ("euler", "neighbor")  # solvers to compare
    n: int = 256  # samples per solver
    steps: int = 256  # steps of each solver
    seed: int = 0  # random seed
    radius: int = 1  # neighbor: maximum distance of a neighbor
    scale: float = 4.0  # neighbor: rate increase per revealed neighbor
    beta: float = 6.0  # entropy: rate decrease per nat of entropy
    corrector: float = 0.0  # scale of the corrector; 0 for none
    corrector_power: float = POWER  # a = b in the corrector strength, scale t^a (1 - t)^b
    temperature: float = 1.0  # of the predictions
    top_p: float = 1.0  # nucleus sampling: keep the most likely tokens up to this probability
    batch_size: int = 0  # sequences per batch; 0 chooses by the free memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # write into a folder that is not empty


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


def context(arguments: list[str]) -> None:
    """`cwdfm analyze context`."""
    asked = model_first("analyze context", arguments)
    options = parse(
        "analyze context MODEL", asked, lambda missing: Context(missing, missing, missing)
    )
    load_extra("matplotlib", "plot")  # fail before the work: the figure comes last
    with by_flags(Context):
        check_folder(options.out, force=options.force)
        check_integer("rows", options.rows)
        check_integer("draws", options.draws, most=MAX_STEPS)
        for name in ("radius", "farthest"):
            check_integer(name, getattr(options, name), most=MAX_BINS)
        check_integer("batch_size", options.batch_size, 0, MAX_SAMPLES)
        check_seed(options.seed)
    with process_group(options.device) as device:
        trained = load(options.model, device)
        with by_flags(Context):
            data = load_held_out(trained, options.data, options.part)
            analysis = context_analysis(
                trained.model,
                trained.source,
                trained.schedule,
                spread_rows(data.valid, options.rows),
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


def spread_rows(rows: np.ndarray, count: int) -> Tensor:
    """At most `count` evenly spaced rows, as int64."""
    count = min(count, len(rows))
    index = np.arange(count) * len(rows) // count
    return torch.from_numpy(rows[index].astype(np.int64))


def updates(arguments: list[str]) -> None:
    """`cwdfm analyze updates`."""
    asked = model_first("analyze updates", arguments)
    options = parse("analyze updates MODEL", asked, lambda missing: Updates(missing, missing))
    load_extra("matplotlib", "plot")  # fail before the work: the figure comes last
    with by_flags(Updates):
        check_folder(options.out, force=options.force)
        check_integer("n", options.n, most=MAX_SAMPLES)
        check_integer("steps", options.steps, most=MAX_STEPS)
        check_integer("batch_size", options.batch_size, 0, MAX_SAMPLES)
        check_seed(options.seed)
    plans = [choice(options, solver) for solver in options.solvers]
    if not plans:
        raise InputError("no solvers; give at least one after --solvers")
    check_applies(options, fields_given(Updates, asked), APPLIES_WITH)
    with by_flags(Updates):
        for plan in plans:
            plan.config().build()
    results = {}
    with process_group(options.device) as device:
        trained = load(options.model, device)
        with by_flags(Updates):
            for plan in plans:
                check_window(plan.build(trained.flow).weight, trained.length)
        _, fixed = prompt_tokens(trained)
        if isinstance(trained.source, MaskSource) and not options.corrector:
            print(MASK_NOTE)
        with Progress("sampling", len(plans) * options.n * options.steps) as progress:
            for plan in plans:
                samples = generate(
                    trained,
                    plan.build(trained.flow),
                    n=options.n,
                    steps=options.steps,
                    seed=options.seed,
                    batch_size=options.batch_size or None,
                    progress=progress.advance,
                )
                results[label(plan)] = update_statistics(samples, fixed)
        record: dict[str, Any] = {"weights": trained.fingerprint()}
    record["solvers"] = {name: result.to_json() for name, result in results.items()}
    title = f"{options.model}, {options.steps} steps"
    write(options, record, lambda path: updates_plot(results, path, title=title))
    print(updates_table(results).text())
    print(f"written: {options.out}")


def choice(options: Updates, solver: Named) -> SolverChoice:
    """The configuration of one solver."""
    return SolverChoice(
        solver=solver,
        radius=options.radius,
        scale=options.scale,
        beta=options.beta,
        corrector=options.corrector,
        corrector_power=options.corrector_power,
        temperature=options.temperature,
        top_p=options.top_p,
    )


def label(plan: SolverChoice) -> str:
    """The name of a solver with its parameters."""
    parameters = {
        "neighbor": f" (radius {plan.radius}, scale {plan.scale:g})",
        "entropy": f" (beta {plan.beta:g})",
    }
    return plan.solver.capitalize() + parameters.get(plan.solver, "")


def write(options: Context | Updates, record: dict[str, Any], draw: Callable[[Path], None]) -> None:
    """Write context.json and context.png, or updates.json and updates.png."""
    name = type(options).__name__.lower()
    origin = {"provenance": provenance(), "options": asdict(options) | {"out": str(options.out)}}
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        draw(options.out / f"{name}.png")
        write_json(options.out / f"{name}.json", origin | record)
    except OSError as error:
        raise InputError(
            f"cannot write into {options.out}: {error.strerror or error}; {write_advice(error)}"
        ) from error


ANALYSES: dict[str, Callable[[list[str]], None]] = {"context": context, "updates": updates}
