"""`cwdfm perplexity MODEL --data NAME ...`: the likelihood of held-out data under a model."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cwdfm.cli.options import (
    by_flags,
    check_applies,
    check_window,
    fields_given,
    flag,
    model_first,
    parse,
)
from cwdfm.cli.streams import STREAM, standard_input, standard_output
from cwdfm.distributed import output_file, process_group
from cwdfm.errors import MAX_SAMPLES, MAX_STEPS, InputError, check_integer
from cwdfm.files import check_output_file, write_errors, write_json
from cwdfm.likelihood.dataset import DatasetLikelihood, held_out_likelihood, load_held_out
from cwdfm.ops.random import check_seed
from cwdfm.pretrained.model import Pretrained, load_trained
from cwdfm.provenance import provenance
from cwdfm.report.table import Table, format_estimate
from cwdfm.weight import Neighbor, Weight

COLUMNS = ("data", "perplexity", "bits per token", "nats per token", "sequences", "tokens")


@dataclass(frozen=True)
class Options:
    """Perplexity on held-out data with its standard error: exact, or an upper bound (ELBO).

    The result does not depend on the batch size. For the perplexity of samples under an evaluator
    LM, see `cwdfm eval`.
    """

    # MODEL (first argument): a bundled model (qm9-uniform-small, qm9-mask-small,
    # moses-uniform-small, novels-small), the folder of a model, a run or a checkpoint, or
    # owner/name@revision on the Hugging Face hub.
    model: str
    # Datasets, corpora, files or prepared data, one or several; - is standard input.
    data: tuple[str, ...]
    # Class of a custom network, as package.module:Class. Its code is executed.
    network: str | None = None
    # Part of a text corpus: valid, test, or all (for your own text); default: the held-out part.
    part: str | None = None
    rows: int = 1024  # number of sequences, evenly spaced in the data; 0 for all
    draws: int = 16  # Monte Carlo draws of the time and noise per sequence
    seed: int = 0  # random seed of the times and the noise
    weight: Literal["none", "neighbor"] = "none"  # context weight of the sampling chain to evaluate
    radius: int = 1  # neighbor: window radius in tokens
    scale: float = 1.0  # neighbor: rate increase per revealed neighbor
    batch_size: int = 0  # sequences per batch; 0: as many as fit in available memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    out: Path | None = None  # also write the results to this .json file; - is standard output
    force: bool = False  # overwrite the output file


def main(arguments: list[str]) -> None:
    """Parse the options, evaluate the likelihoods, and print a table."""
    arguments = model_first("perplexity", arguments)
    options = parse("perplexity MODEL", arguments, lambda missing: Options(missing, missing))
    given = fields_given(Options, arguments)
    if options.out is None:
        run(options, given)
        return
    with standard_output(options.out, "likelihood.json") as out:
        run(replace(options, out=out), given)
    if str(options.out) != STREAM:
        print(f"written: {options.out}")


def run(options: Options, given: set[str]) -> None:
    """Evaluate the likelihoods, print a table, and write the output file if there is one."""
    with by_flags(Options):
        check(options)
    check_applies(options, given, "weight", {"radius": ("neighbor",), "scale": ("neighbor",)})
    weight = context_weight(options)
    with (
        by_flags(Options),
        process_group(options.device) as device,
        output(options),
        standard_input(options.data, ".txt") as names,
    ):
        trained = load_trained(options.model, device, network=options.network)
        method = trained.method if weight is None else trained.flow
        if method.exact and (random := sorted({"draws", "seed"} & given)):
            raise InputError(
                f"{flag(random[0])} applies only to likelihood bounds, but the likelihood of "
                f"{options.model} ({type(method).__name__}) is exact; omit it"
            )
        check_window(weight, trained.length)
        datasets = [load_held_out(trained, name, options.part) for name in names]
        results = []
        for name, data in zip(options.data, datasets, strict=True):
            count = min(len(data.valid), options.rows or len(data.valid))
            share = f"{count:,} of {len(data.valid):,} sequences ({count / len(data.valid):.1%})"
            print(f"{name}: {share}", flush=True)
            result = held_out_likelihood(
                trained,
                data,
                weight=weight,
                limit=options.rows or None,
                draws=options.draws,
                seed=options.seed,
                batch_size=options.batch_size or None,
            )
            results.append(result)
        print(table(options, results).text())
        if options.out is not None:
            sources = [data.source for data in datasets]
            write(options.out, options, trained, sources, results)


def output(options: Options) -> AbstractContextManager[None]:
    """Hold the lock of the output file, if there is one."""
    if options.out is None:
        return nullcontext()
    return output_file(options.out, force=options.force)


def check(options: Options) -> None:
    """Check the options before loading a model."""
    check_integer("rows", options.rows, 0)
    check_integer("draws", options.draws, 2, MAX_STEPS)
    check_integer("batch_size", options.batch_size, 0, MAX_SAMPLES)
    check_seed(options.seed)
    if not options.data:
        raise InputError("no data; specify at least one name or path after --data")
    context_weight(options)  # checks radius and scale
    if options.force and options.out is None:
        raise InputError("--force applies only with --out; omit it, or add --out")
    if options.out is not None:
        if options.out.suffix != ".json":
            raise InputError(f"--out must end in .json, got {str(options.out)!r}")
        check_output_file(options.out, force=options.force)


def context_weight(options: Options) -> Weight | None:
    """The weight of the sampling chain whose likelihood is evaluated."""
    return Neighbor(options.radius, options.scale) if options.weight == "neighbor" else None


def table(options: Options, results: list[DatasetLikelihood]) -> Table:
    """A table with one row per dataset; standard errors follow ±."""
    rows = tuple(
        (
            name,
            ("" if result.exact else "<= ")
            + format_estimate(result.perplexity, result.perplexity_error),
            f"{result.bits_per_token:.4f}",
            format_estimate(result.nats_per_token, result.standard_error),
            f"{result.sequences:,} of {result.of:,} ({result.sequences / result.of:.1%})",
            f"{result.tokens:,}",
        )
        for name, result in zip(options.data, results, strict=True)
    )
    return Table(COLUMNS, rows, (options.model,) * len(rows))


def write(
    path: Path,
    options: Options,
    trained: Pretrained,
    sources: list[dict[str, Any]],
    results: list[DatasetLikelihood],
) -> None:
    """Write the results and their provenance to a JSON file."""
    record = {
        "provenance": provenance(),
        "options": asdict(options) | {"out": str(path)},
        "weights": trained.fingerprint(),
        "fix_first": trained.fix_first,
        "results": [
            {"data": name, "source": source, **result.to_json()}
            for name, source, result in zip(options.data, sources, results, strict=True)
        ],
    }
    with write_errors(path):
        write_json(path, record)
