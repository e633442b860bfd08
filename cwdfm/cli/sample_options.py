"""What a command line of `cwdfm sample` says: the options, and what they ask to be done."""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from cwdfm.cli.options import by_flags, flag
from cwdfm.errors import MAX_LENGTH, MAX_SAMPLES, MAX_STEPS, InputError, check_integer
from cwdfm.files import check_output_file
from cwdfm.ops.random import check_seed
from cwdfm.postprocess.base import Rework
from cwdfm.postprocess.refine import Refine
from cwdfm.postprocess.reject import Accept
from cwdfm.postprocess.resample import Mend
from cwdfm.sample_file import check_format
from cwdfm.solver_config import SolverChoice


@dataclass(frozen=True, kw_only=True)
class Options(SolverChoice):
    """Draw sequences. Sample number i of a seed is the same whatever the batch size.

    Of the solvers euler is the plain one, and neighbor and entropy are the paper's; docs/guide.md
    tells how to choose. Interrupted and started again with the same options, it goes on with what
    is missing; under torchrun the processes share the work.
    """

    # MODEL, the first word: qm9-uniform-small or qm9-mask-small, which are in the box, or a folder
    # with a model, a run or a checkpoint.
    model: str
    out: Path  # .jsonl (tokens, text, provenance), .csv; of molecules also .smi, .txt (one a line)
    n: int = 1024  # how many samples
    steps: int = 64  # of the solver; first-hitting and entropy-bound want one a token, ar has it
    seed: int = 0  # of all randomness
    grid: Literal["t", "kappa"] = "t"  # what the steps are even in
    length: int | None = None  # tokens a sample; None for the model's own, or a text template's
    precision: Literal["float32", "bfloat16"] = "float32"  # of the model's matrix products
    prompt: str | None = None  # how every sample begins
    # A sample with holes: * is one token of a molecule, [12] are twelve tokens of text, as in
    # 'c1ccccc1***' and 'The [12] of'.
    template: str | None = None
    refine: int = 0  # rounds in which a share of the tokens is noised and sampled again; 0 for none
    refine_share: float = 0.1  # which share of them
    refine_steps: int = 6  # of the solver in each round
    refine_temperature: float | None = None  # of the draws there; None for --temperature
    mend: int = 0  # rounds, at most, in which doubted tokens are drawn again; 0 for none
    # Of tokens that the network takes for noise; None: 0.5 with a uniform source, 0.125 with a
    # mask source.
    mend_share: float | None = None
    # The least chance of a token that is left alone; None: 0.8 with a uniform source, 0.05 with a
    # mask source.
    mend_trust: float | None = None
    mend_temperature: float | None = None  # of the draws there; None for --temperature
    mend_at_once: int = 1  # tokens of a sequence that are drawn again in a round, at most
    accept: float = 0.0  # the least plausibility of a sample that is not drawn again; 0 for any
    accept_tries: int = 8  # of a sample, at most; then it is the most plausible of them
    # Of tokens that the network takes for noise; None: 0.04 with a uniform source, 0.125 with a
    # mask source.
    accept_share: float | None = None
    compile: bool = False  # torch.compile the model, for a GPU; of no use to ar and bd3lm
    batch_size: int = 0  # sequences at once; 0 for as many as fit
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # overwrite the output file


def check(options: Options) -> None:
    """Refuse what is wrong before any model is loaded."""
    check_integer("n", options.n, most=MAX_SAMPLES)
    check_integer("steps", options.steps, most=MAX_STEPS)
    check_format(options.out)
    if options.length is not None:
        check_integer("length", options.length, 3, MAX_LENGTH)
    if options.batch_size:
        check_integer("batch_size", options.batch_size)
    check_output_file(options.out, force=options.force)
    check_seed(options.seed)
    options.check()
    check_left_out(options)
    rework(options)
    acceptance(options)


def check_left_out(options: Options) -> None:
    """Refuse settings, by their names, of what is not done at all."""
    for field in fields(Options):
        what = field.name.partition("_")[0]
        settles = what in ("refine", "mend", "accept") and not getattr(options, what)
        if settles and getattr(options, field.name) != field.default:
            raise InputError(
                f"{flag(field.name)} is read with --{what} alone; leave it out, or give --{what} "
                f"too"
            )


def settings(options: Options) -> dict[str, Any]:
    """What the samples depend on, apart from the model's weights."""
    other = ("out", "batch_size", "device", "force")
    return {name: value for name, value in asdict(options).items() if name not in other}


def refinement(options: Options) -> Refine | None:
    """Whether and how samples are refined."""
    check_integer("refine", options.refine, 0, MAX_STEPS)
    check_integer("refine_steps", options.refine_steps, most=MAX_STEPS)
    rounds, temperature = max(1, options.refine), options.refine_temperature
    with as_flags_of("refine", Refine):
        found = Refine(rounds, options.refine_share, options.refine_steps, temperature)
    return found if options.refine else None


def mending(options: Options) -> Mend | None:
    """Whether and how samples are mended."""
    check_integer("mend", options.mend, 0, MAX_STEPS)
    with as_flags_of("mend", Mend):
        found = Mend(
            max(1, options.mend),
            options.mend_share,
            options.mend_trust,
            options.mend_temperature,
            at_once=options.mend_at_once,
        )
    return found if options.mend else None


def acceptance(options: Options) -> Accept | None:
    """Whether samples are drawn again, and which."""
    check_integer("accept_tries", options.accept_tries, most=MAX_STEPS)
    with as_flags_of("accept", Accept, least="accept"):
        found = Accept(options.accept, options.accept_tries, options.accept_share)
    return found if options.accept else None


def as_flags_of(prefix: str, kind: type, **others: str) -> AbstractContextManager[None]:
    """Errors about fields of `kind` name the flags that set them, --PREFIX-FIELD but for others."""
    named = {field.name: f"{prefix}_{field.name}" for field in fields(kind)}
    return by_flags(Options, **named | others)


def rework(options: Options) -> list[Rework]:
    """What is done to the samples afterwards."""
    return [found for found in (refinement(options), mending(options)) if found is not None]
