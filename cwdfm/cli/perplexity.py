"""`cwdfm perplexity MODEL --data NAME ...`: how well a model predicts data it has not seen."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cwdfm.cli.options import by_flags, check_window, fields_given, model_first, parse
from cwdfm.cli.unused_options import check_exact, check_read_with
from cwdfm.data import TokenData
from cwdfm.distributed import process_group
from cwdfm.errors import MAX_SAMPLES, MAX_STEPS, InputError, check_integer
from cwdfm.files import check_output_file, write_advice, write_json
from cwdfm.likelihood.dataset import DatasetLikelihood, held_out_likelihood, load_held_out
from cwdfm.ops.random import check_seed
from cwdfm.pretrained import Pretrained, load
from cwdfm.provenance import provenance
from cwdfm.report import Row, Table
from cwdfm.report.text_table import spread
from cwdfm.weight import Neighbor, Weight

READ_WITH = {"radius": {"weight": ("neighbor",)}, "scale": {"weight": ("neighbor",)}}
COLUMNS = ("data", "perplexity", "bits a token", "nats a token", "sequences", "tokens")


@dataclass(frozen=True)
class Options:
    """Test perplexity, with its standard error: an upper bound, by the ELBO, or exact.

    The result does not depend on the batch size. (The perplexity of samples under a judge is
    another thing: see `cwdfm eval`.)
    """

    # MODEL, the first word: qm9-uniform-small or qm9-mask-small, which are in the box, or a folder
    # with a model, a run or a checkpoint.
    model: str
    data: tuple[str, ...]  # datasets, corpora, files, or what was prepared from them
    part: str | None = None  # of text: valid, test, or all of one's own; default what is held out
    rows: int = 1024  # sequences that stand for all, evenly spread over them; 0 for all
    draws: int = 16  # times at which each sequence is looked at
    seed: int = 0  # of all randomness
    weight: Literal["none", "neighbor"] = "none"  # neighbor: of sampling with Neighbor weights
    radius: int = 1  # neighbor: how far a neighbour may be
    scale: float = 1.0  # neighbor: how much one revealed neighbour speeds a token up
    batch_size: int = 0  # sequences at once; 0 for as many as fit
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    out: Path | None = None  # a .json file for every number
    force: bool = False  # overwrite that file


def main(arguments: list[str]) -> None:
    """Parse, bound, print the table."""
    asked = model_first("perplexity", arguments)
    options = parse("perplexity MODEL", asked, lambda missing: Options(missing, missing))
    given = fields_given(Options, asked)
    with by_flags(Options):
        check(options)
    check_read_with(options, given, READ_WITH)
    with process_group(options.device) as device:
        trained = load(options.model, device)
        check_exact(given, options.model, trained.flow if weight_of(options) else trained.method)
        with by_flags(Options):
            check_window(weight_of(options), trained.length)
            found = [(name, load_held_out(trained, name, options.part)) for name in options.data]
        bounds = []
        for name, data in found:
            rows = min(len(data.valid), options.rows or len(data.valid))
            print(f"{name}: {rows:,} of {len(data.valid):,} sequences", flush=True)
            bounds.append(
                held_out_likelihood(
                    trained,
                    data,
                    weight=weight_of(options),
                    limit=options.rows or None,
                    draws=options.draws,
                    seed=options.seed,
                    batch_size=options.batch_size or None,
                )
            )
    if options.out is not None:
        write(options, trained, list(zip(found, bounds, strict=True)))
    print("\n".join(table(options, bounds).lines()))
    if options.out is not None:
        print(f"written: {options.out}")


def check(options: Options) -> None:
    """Refuse what is wrong before any model is loaded."""
    check_integer("rows", options.rows, 0)
    check_integer("draws", options.draws, 2, MAX_STEPS)
    check_integer("batch_size", options.batch_size, 0, MAX_SAMPLES)
    check_seed(options.seed)
    if not options.data:
        raise InputError("no data; give at least one name or path behind --data")
    weight_of(options)
    if options.force and options.out is None:
        raise InputError("--force is read with --out alone; leave it out, or give --out too")
    if options.out is not None:
        if options.out.suffix != ".json":
            raise InputError(f"--out must end in .json, got {str(options.out)!r}")
        check_output_file(options.out, force=options.force)


def weight_of(options: Options) -> Weight | None:
    """The weight of the chain whose likelihood is bounded."""
    return Neighbor(options.radius, options.scale) if options.weight == "neighbor" else None


def table(options: Options, bounds: list[DatasetLikelihood]) -> Table:
    """A row for each dataset; behind ± is the standard error."""
    rows = []
    for name, found in zip(options.data, bounds, strict=True):
        numbers = (
            ("" if found.exact else "<= ") + _spread(found.perplexity, found.perplexity_error),
            f"{found.bits_per_token:.4f}",
            _spread(found.nats_per_token, found.standard_error),
            f"{found.sequences:,} of {found.of:,}",
            f"{found.tokens:,}",
        )
        rows.append(Row(options.model, (name, *numbers)))
    return Table(COLUMNS, tuple(rows))


def _spread(value: float, error: float | None) -> str:
    plain = f"{value:.5g}" if value < 1e5 else f"{value:,.0f}"
    return plain if error is None else spread(value, error)


def write(
    options: Options,
    trained: Pretrained,
    found: list[tuple[tuple[str, TokenData], DatasetLikelihood]],
) -> None:
    """Every number, with where it comes from."""
    assert options.out is not None
    results: list[dict[str, Any]] = [
        {"data": name, "source": data.source, **bound.to_json()} for (name, data), bound in found
    ]
    record = {
        "provenance": provenance(),
        "options": asdict(options) | {"out": str(options.out)},
        "weights": trained.fingerprint(),
        "fix_first": trained.fix_first,
        "results": results,
    }
    try:
        write_json(options.out, record)
    except OSError as error:
        raise InputError(
            f"cannot write {options.out}: {error.strerror or error}; {write_advice(error)}"
        ) from error
