"""The options of `cwdfm sample`, and the objects built from them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cwdfm.cli.options import by_flags, fields_given, flag, model_first, parse
from cwdfm.errors import MAX_LENGTH, MAX_SAMPLES, MAX_STEPS, InputError, check_integer
from cwdfm.files import check_output_file
from cwdfm.ops.random import check_seed
from cwdfm.postprocess import Postprocess, Refine, Reject, Resample
from cwdfm.sample_file import POSTPROCESS_OPTIONS, check_format
from cwdfm.solver_config import (
    SOLVERS,
    SPECIFIC_OPTIONS,
    EulerConfig,
    Name,
    SolverConfig,
    option_names,
    solvers_with,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sample sequences from a model. Sample i of a seed does not depend on the batch size.

    euler is the plain solver; neighbor and entropy are the paper's. See docs/guide.md for how to
    choose. The help shows the options of the solver given by --solver: for the options of neighbor
    use `cwdfm sample --solver neighbor --help`. The same command resumes an interrupted job. Under
    torchrun all processes share the work.
    """

    # MODEL, the first argument: the bundled qm9-uniform-small or qm9-mask-small, or the folder of a
    # model, a run or a checkpoint.
    model: str
    out: Path  # .jsonl (tokens, text, provenance) or .csv; for molecules also .smi or .txt
    n: int = 1024  # number of samples
    solver: Name = "auto"  # auto: euler; bd3lm ancestral, sedd analytic, ar left-to-right
    solver_options: SolverConfig = field(default_factory=EulerConfig)
    stop: bool = False  # bd3lm: end a sample after its end token
    steps: int = 64  # number of steps; first-hitting and entropy-bound need one per token
    seed: int = 0  # random seed
    grid: Literal["t", "kappa"] = "t"  # the quantity in which steps are equally spaced
    length: int | None = None  # tokens per sample; the default is the model's or the template's
    precision: Literal["float32", "bfloat16"] = "float32"  # precision of matrix products
    prompt: str | None = None  # text that every sample begins with
    # A sample with holes: * is one token of a molecule, [12] is twelve tokens of text, as in
    # 'c1ccccc1***' and 'The [12] of'.
    template: str | None = None
    refine: int = 0  # number of rounds that noise some tokens and sample them again; 0 for none
    refine_noise_fraction: float = Refine.noise_fraction  # fraction of tokens noised per round
    refine_steps: int = Refine.steps  # solver steps per round
    refine_temperature: float | None = None  # the default is --temperature
    resample: int = 0  # maximum number of rounds that draw low-confidence tokens again; 0 for none
    # Fraction of noise that the model is conditioned on. The default is 0.5 with a uniform source,
    # 0.125 with a mask source.
    resample_noise_fraction: float | None = None
    # Tokens with a lower probability are drawn again. The default is 0.8 with a uniform source,
    # 0.05 with a mask source.
    resample_threshold: float | None = None
    resample_temperature: float | None = None  # the default is --temperature
    resample_tokens_per_round: int = Resample.tokens_per_round  # maximum per sample
    reject_below: float = 0.0  # draw samples with a lower plausibility again; 0 for none
    max_tries: int = Reject.max_tries  # tries per sample; then the most plausible one is kept
    # Fraction of noise that the model is conditioned on. The default is 0.04 with a uniform source,
    # 0.125 with a mask source.
    reject_noise_fraction: float | None = None
    compile: bool = False  # torch.compile the model, for a GPU; not used by ar and bd3lm
    batch_size: int = 0  # sequences per batch; 0 for as many as fit into memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # overwrite the output file

    @property
    def flag_names(self) -> AbstractContextManager[None]:
        """Let errors name the flags of the command line instead of the fields."""
        own = {each.name: each.name for each in fields(self.solver_options)}
        return by_flags(Options, **own)


@dataclass(frozen=True)
class Postprocessing:
    """The postprocessing steps to apply, None for those that are not."""

    refine: Refine | None
    resample: Resample | None
    reject: Reject | None

    @property
    def steps(self) -> list[Postprocess]:
        """The steps that improve samples."""
        return [step for step in (self.refine, self.resample) if step is not None]


def parse_options(arguments: list[str]) -> tuple[Options, set[str]]:
    """Parse the command line. Returns the options and the names of those given explicitly."""
    words = model_first("sample", arguments)
    name = solver_name(words)
    check_solver_flags(name, words)
    config = SOLVERS.get(name, EulerConfig)()
    options = parse(
        "sample MODEL",
        words,
        lambda missing: Options(model=missing, out=missing, solver_options=config),
    )
    return options, fields_given(Options, words) | fields_given(type(config), words)


def solver_name(words: Sequence[str]) -> str:
    """The value of --solver, the last one if there are several."""
    found = "auto"
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, given, value = word.partition("=")
        if name == "--solver":
            found = value if given else following
    return found


def check_solver_flags(solver: str, words: list[str]) -> None:
    """Raise an error for flags that belong to other solvers."""
    if solver != "auto" and solver not in SOLVERS:
        return  # the parser reports the unknown name
    allowed = option_names("euler" if solver == "auto" else solver)
    given = {word.partition("=")[0].replace("_", "-") for word in words}
    for option in sorted(SPECIFIC_OPTIONS - allowed):
        if flag(option) in given:
            raise wrong_solver(option, "euler" if solver == "auto" else solver)


def wrong_solver(option: str, solver: str) -> InputError:
    """The error for an option that the solver does not have."""
    return InputError(
        f"{flag(option)} is an option of --solver {', '.join(solvers_with(option))}, not of "
        f"{solver}; omit it, or choose one of these solvers"
    )


def check(options: Options) -> None:
    """Check options before a model is loaded."""
    check_integer("n", options.n, most=MAX_SAMPLES)
    check_integer("steps", options.steps, most=MAX_STEPS)
    check_format(options.out)
    if options.length is not None:
        check_integer("length", options.length, 3, MAX_LENGTH)
    if options.batch_size:
        check_integer("batch_size", options.batch_size)
    check_output_file(options.out, force=options.force)
    check_seed(options.seed)
    for enabling, names in POSTPROCESS_OPTIONS.items():
        for name in names:
            if not getattr(options, enabling) and getattr(options, name) != getattr(Options, name):
                raise InputError(f"{flag(name)} requires {flag(enabling)}; give both, or neither")


def postprocessing(options: Options) -> Postprocessing:
    """Build the postprocessing steps."""
    check_integer("refine", options.refine, 0, MAX_STEPS)
    check_integer("refine_steps", options.refine_steps, most=MAX_STEPS)
    check_integer("resample", options.resample, 0, MAX_STEPS)
    check_integer("max_tries", options.max_tries, most=MAX_STEPS)
    refine = resample = reject = None
    if options.refine:
        with _flags(Refine, "refine", rounds="refine"):
            refine = Refine(
                options.refine,
                options.refine_noise_fraction,
                options.refine_steps,
                options.refine_temperature,
            )
    if options.resample:
        with _flags(Resample, "resample", rounds="resample"):
            resample = Resample(
                options.resample,
                options.resample_noise_fraction,
                options.resample_threshold,
                options.resample_temperature,
                tokens_per_round=options.resample_tokens_per_round,
            )
    if options.reject_below:
        with _flags(Reject, "reject", threshold="reject_below", max_tries="max_tries"):
            reject = Reject(options.reject_below, options.max_tries, options.reject_noise_fraction)
    return Postprocessing(refine, resample, reject)


def _flags(config: type, prefix: str, **others: str) -> AbstractContextManager[None]:
    """Let errors name flags: --PREFIX-FIELD for each field of a config, except for `others`."""
    names = {each.name: f"{prefix}_{each.name}" for each in fields(config)}
    return by_flags(Options, **names | others)


def settings(options: Options) -> dict[str, Any]:
    """All options that the samples depend on, as one flat dictionary."""
    values = asdict(options)
    values |= values.pop("solver_options")
    excluded = ("out", "batch_size", "device", "force")
    return {name: value for name, value in values.items() if name not in excluded}
