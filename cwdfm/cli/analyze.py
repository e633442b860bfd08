"""`cwdfm analyze context|updates MODEL --out DIR`: what models and solvers do, as in the paper."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cwdfm.cli.options import by_flags, check_window, fields_given, model_first, parse
from cwdfm.cli.progress import Progress
from cwdfm.cli.unused_options import check_read_with
from cwdfm.distributed import process_group
from cwdfm.errors import MAX_SAMPLES, MAX_STEPS, InputError, check_integer, load_extra
from cwdfm.files import write_advice, write_json
from cwdfm.generation import fitting_batch, generate, given
from cwdfm.likelihood.dataset import load_held_out
from cwdfm.metrics.context import ContextCurve, context_analysis
from cwdfm.metrics.updates import update_statistics
from cwdfm.ops.random import check_seed
from cwdfm.pretrained import load
from cwdfm.provenance import provenance
from cwdfm.report import align, check_folder
from cwdfm.report.analysis_plots import context_plot, updates_plot, updates_table
from cwdfm.solver_config import POWER, READS, SolverChoice
from cwdfm.source import MaskSource
from cwdfm.weight.neighbor import Boundary

Named = Literal["euler", "neighbor", "entropy"]
# The settings that some of these solvers read, with those solvers.
READ_WITH = {
    name: {"solvers": tuple(solver for solver in get_args(Named) if name in READS[solver])}
    for name in ("radius", "scale", "beta")
}
MOST_BINS = 10**4  # of neighbours or distances; a curve has a number for each
ONCE = (
    "note: with a mask source every token changes exactly once, whatever the solver; give "
    "--corrector, or a model with a uniform source, to see more"
)


@dataclass(frozen=True)
class Context:
    """How hard masked tokens are to predict, by revealed neighbours and by distance to the nearest.

    Writes context.json and context.png: the entropy of the prediction and the negative
    log-likelihood of the true token, in nats.
    """

    # MODEL, the first word: qm9-uniform-small or qm9-mask-small, which are in the box, or a folder
    # with a model, a run or a checkpoint.
    model: str
    data: str  # a dataset, a corpus, files, or what was prepared from them; what is held out counts
    out: Path  # folder for the results
    part: str | None = None  # of text: valid, test, or all of one's own; default what is held out
    rows: int = 256  # sequences, evenly spread over the held-out ones
    draws: int = 4  # corruptions of each sequence
    radius: int = 8  # how far a neighbour may be
    farthest: int = 16  # distances of that and more are one bin
    boundary: Boundary = "circular"  # whether windows go round the ends or are cut there
    seed: int = 0  # of all randomness
    batch_size: int = 0  # sequences at once; 0 for as many as fit
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # write into a folder that is not empty


@dataclass(frozen=True)
class Updates:
    """How often solvers change a token on the way, and how often they change it back.

    Writes updates.json and updates.png.
    """

    # MODEL, the first word: qm9-uniform-small or qm9-mask-small, which are in the box, or a folder
    # with a model, a run or a checkpoint.
    model: str
    out: Path  # folder for the results
    solvers: tuple[Named, ...] = ("euler", "neighbor")  # to compare
    n: int = 256  # samples of each solver
    steps: int = 256  # of each solver
    seed: int = 0  # of all randomness
    radius: int = 1  # neighbor: how far a neighbour may be
    scale: float = 4.0  # neighbor: how much one revealed neighbour speeds a token up
    beta: float = 6.0  # entropy: how much one nat slows a token down
    corrector: float = 0.0  # scale of the corrector; 0 for none
    corrector_power: float = POWER  # a = b in its strength, scale t^a (1 - t)^b
    temperature: float = 1.0  # of the predictions
    top_p: float = 1.0  # nucleus: keep the likeliest tokens up to this probability
    batch_size: int = 0  # sequences at once; 0 for as many as fit
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # write into a folder that is not empty


def main(arguments: list[str]) -> None:
    """Find the analysis, parse, analyse, write."""
    name, *rest = arguments or [""]
    if name in ANALYSES:
        ANALYSES[name](rest)
        return
    told = ", ".join(ANALYSES)
    if name and name not in ("-h", "--help"):
        raise InputError(f"unknown analysis {name!r}; choose from {told}")
    print("usage: cwdfm analyze ANALYSIS MODEL --out DIR [options]\n\nanalyses:")
    for each, options in (("context", Context), ("updates", Updates)):
        print(f"  {each:8} {(options.__doc__ or '').splitlines()[0]}")
    print("\n`cwdfm analyze ANALYSIS --help` tells more about one.")
    if not name:
        raise InputError(f"name an analysis: {told}")


def context(arguments: list[str]) -> None:
    """`cwdfm analyze context`."""
    asked = model_first("analyze context", arguments)
    options = parse(
        "analyze context MODEL", asked, lambda missing: Context(missing, missing, missing)
    )
    check_folder(options.out, force=options.force)
    load_extra("matplotlib", "plot")  # for the picture, which comes last
    with by_flags(Context):
        check_integer("rows", options.rows)
        check_integer("draws", options.draws, most=MAX_STEPS)
        for name in ("radius", "farthest"):
            check_integer(name, getattr(options, name), most=MOST_BINS)
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
                fixed=given(trained)[1],
                draws=options.draws,
                seed=options.seed,
                batch_size=options.batch_size or fitting_batch(trained),
            )
        record = {"data": data.source, "weights": trained.fingerprint(), **analysis.to_json()}
    title = f"{options.model} on {data.name}"
    write(options, record, lambda path: context_plot(analysis, path, title=title))
    print("\n".join(curve_lines(f"neighbours within {options.radius}", analysis.neighbors)))
    print("\n".join(curve_lines("distance to the nearest", analysis.distance)))
    print(f"  {options.farthest}: that far or further, or nothing is revealed")
    print(f"written: {options.out}")


def spread_rows(rows: np.ndarray, count: int) -> Tensor:
    """At most `count` rows, evenly spread, as int64."""
    count = min(count, len(rows))
    index = np.arange(count) * len(rows) // count
    return torch.from_numpy(rows[index].astype(np.int64))


def curve_lines(name: str, curve: ContextCurve) -> list[str]:
    """A curve as a table for the terminal; behind ± is the standard error over sequences."""
    rows = [(name, "tokens", "entropy", "neg. log-likelihood")]
    for i, bin_ in enumerate(curve.bins):
        entropy = _spread(curve.entropy[i], curve.entropy_error[i])
        nll = _spread(curve.nll[i], curve.nll_error[i])
        rows.append((str(bin_), f"{curve.tokens[i]:,}", entropy, nll))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [align(row, widths) for row in rows]


def _spread(value: float | None, error: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def updates(arguments: list[str]) -> None:
    """`cwdfm analyze updates`."""
    asked = model_first("analyze updates", arguments)
    options = parse("analyze updates MODEL", asked, lambda missing: Updates(missing, missing))
    check_folder(options.out, force=options.force)
    load_extra("matplotlib", "plot")  # for the picture, which comes last
    with by_flags(Updates):
        check_integer("n", options.n, most=MAX_SAMPLES)
        check_integer("steps", options.steps, most=MAX_STEPS)
        check_integer("batch_size", options.batch_size, 0, MAX_SAMPLES)
        check_seed(options.seed)
    plans = [choice(options, solver) for solver in options.solvers]
    if not plans:
        raise InputError("no solvers; give at least one behind --solvers")
    check_read_with(options, fields_given(Updates, asked), READ_WITH)
    with by_flags(Updates):
        for plan in plans:
            plan.check()
    results = {}
    with process_group(options.device) as device:
        trained = load(options.model, device)
        with by_flags(Updates):
            for plan in plans:
                check_window(plan.build(trained.flow).weight, trained.length)
        _, fixed = given(trained)
        if isinstance(trained.source, MaskSource) and not options.corrector:
            print(ONCE)
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
    print(updates_table(results))
    print(f"written: {options.out}")


def choice(options: Updates, solver: Named) -> SolverChoice:
    """One of the solvers to compare."""
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
    """A solver's name with its parameters."""
    parameters = {
        "neighbor": f" (radius {plan.radius}, scale {plan.scale:g})",
        "entropy": f" (beta {plan.beta:g})",
    }
    return plan.solver.capitalize() + parameters.get(plan.solver, "")


def write(options: Context | Updates, record: dict[str, Any], draw: Callable[[Path], None]) -> None:
    """NAME.json and NAME.png, by the name of the analysis."""
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
