"""The options of `cwdfm sample`, and the objects built from them."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from cwdfm.cli.options import (
    by_flags,
    fields_given,
    flag,
    flags_given,
    model_first,
    parse,
    value_given,
)
from cwdfm.data.fragments import Fragment, find_fragment
from cwdfm.errors import MAX_LENGTH, MAX_SAMPLES, MAX_STEPS, InputError, check_integer
from cwdfm.files import check_output_file
from cwdfm.guidance import ClassifierFreeGuidance, Guidance
from cwdfm.method.base import Method
from cwdfm.ops.random import check_seed
from cwdfm.postprocess import Refine, Reject, Resample
from cwdfm.recommendation import recommend_for
from cwdfm.sample_file import POSTPROCESS_OPTIONS, PartialSamples, check_format
from cwdfm.schedule import Spacing
from cwdfm.solver_config import (
    SHARED_OPTIONS,
    SOLVERS,
    SPECIFIC_OPTIONS,
    EulerConfig,
    Name,
    SolverConfig,
    build_solver,
    option_names,
    solvers_with,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sample sequences from a model. For a given seed, samples do not depend on the batch size.

    euler is the standard solver; neighbor and entropy are the paper's. See docs/guide.md for how to
    choose one. This help shows the options of one solver; to see those of neighbor, run
    `cwdfm sample --solver neighbor --help`. Run the same command again to resume an interrupted
    job. Under torchrun, all processes share the work. To continue prompts with a language model
    from another project, see `cwdfm sample --prompts FILE --help`.
    """

    # MODEL (first argument): a bundled model (qm9-uniform-small, qm9-mask-small,
    # moses-uniform-small, novels-small), the folder of a model, a run or a checkpoint, or
    # owner/name@revision on the Hugging Face hub.
    model: str
    # Output file: jsonl (tokens, text, provenance) or csv; for molecules also smi, sdf or txt. - is
    # standard output: one molecule per line, or JSON lines for text.
    out: Path
    # Class of a custom network, as package.module:Class. Its code is executed.
    network: str | None = None
    n: int = 1024  # number of samples
    # Leave out invalid molecules, repeated samples, or both (--only valid unique). The file then
    # has fewer than n samples.
    only: tuple[Literal["valid", "unique"], ...] = ()
    # auto: euler for flows, ancestral for bd3lm, analytic for sedd, left-to-right for ar; or the
    # solver that --evaluations selects.
    solver: Name = "auto"
    solver_options: SolverConfig = field(default_factory=EulerConfig)
    stop: bool = False  # bd3lm: stop a sample at its end token
    # Number of steps; first-hitting, entropy-bound, threshold and klass need up to one per token.
    steps: int = 64
    # Budget of model evaluations per sample. Selects the solver, steps, grid and resampling.
    evaluations: int | None = None
    seed: int = 0  # random seed
    grid: Spacing = "t"  # space the steps equally in time t, in kappa_t, or in sqrt(1 - kappa_t)
    length: int | None = None  # tokens per sample; default: the length of the model or template
    precision: Literal["float32", "bfloat16"] = "float32"  # precision of matrix products
    prompt: str | None = None  # text that every sample starts with
    # Text with holes to fill: [12] in 'The [12] of' is a hole of twelve tokens. In a molecule such
    # as c1ccccc1***, each * is a hole of one token and *{2,8} a hole of two to eight.
    template: str | None = None
    # SMILES of a fragment that every molecule contains. Atoms are added at its marks, such as
    # the * of 'c1ccc(*)cc1'; without marks, at one to three random atoms.
    scaffold: str | None = None
    grow: str | None = None  # like --scaffold, but without marks atoms are added at a single atom
    # Two fragments to join by new atoms, at their marks * or anywhere.
    linker: tuple[str, str] | None = None
    # Values of the conditions that the model was trained on (cwdfm train --condition), for example
    # logp=2.5 kind=acid.
    property: tuple[str, ...] = ()
    # Strength of classifier-free guidance. 1 samples from the conditional model; larger values
    # follow the properties more closely but need twice as many evaluations.
    guidance: float = 1.0
    refine: int = 0  # rounds of noising some tokens and sampling them again; 0 for none
    refine_noise_fraction: float = Refine.noise_fraction  # fraction of tokens noised per round
    refine_steps: int = Refine.steps  # solver steps per round
    refine_temperature: float | None = None  # default: --temperature
    resample: int = 0  # maximum number of rounds of resampling low-confidence tokens; 0 for none
    # Noise fraction that the model is conditioned on when it scores tokens. Default: 0.5 with a
    # uniform source, and 0.125 with a mask source.
    resample_noise_fraction: float | None = None
    # Resample tokens whose probability is below this. Default: 0.8 with a uniform source, and 0.05
    # with a mask source.
    resample_threshold: float | None = None
    resample_temperature: float | None = None  # default: --temperature
    # Maximum number of tokens per round and sample.
    resample_tokens_per_round: int = Resample.tokens_per_round
    reject_below: float = 0.0  # redraw samples whose plausibility is below this; 0 for none
    # Tries per sample; if all fail, the most plausible one is kept.
    max_tries: int = Reject.max_tries
    # Noise fraction that the model is conditioned on when it scores samples. Default: 0.04 with a
    # uniform source, and 0.125 with a mask source.
    reject_noise_fraction: float | None = None
    # Also write a recording of the first 8 samples, FILE.recording.npz, for `cwdfm replay`.
    record: bool = False
    compile: bool = False  # use torch.compile, for speed on a GPU; no effect on ar and bd3lm
    batch_size: int = 0  # sequences per batch; 0: as many as fit in available memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # overwrite the output file

    def flag_names(self) -> AbstractContextManager[None]:
        """Make errors name flags instead of Python arguments."""
        return by_flags(
            Options, **{field.name: field.name for field in fields(self.solver_options)}
        )


def parse_options(arguments: list[str]) -> tuple[Options, set[str]]:
    """Parse the command line. Also returns the names of the options that were given."""
    argv = model_first("sample", arguments)
    config = solver_config(argv, EulerConfig())
    options = parse(
        "sample MODEL",
        argv,
        lambda missing: Options(model=missing, out=missing, solver_options=config),
    )
    return options, fields_given(Options, argv) | fields_given(type(config), argv)


def solver_config(argv: list[str], default: SolverConfig) -> SolverConfig:
    """The default options of the solver on the command line; `default` if it names none."""
    name = value_given("solver", argv) or "auto"
    check_solver_flags(name, argv)
    return SOLVERS[name].config() if name in SOLVERS else default


def check_solver_flags(solver: str, argv: list[str]) -> None:
    """Raise an error if a flag belongs to other solvers."""
    solver = "euler" if solver == "auto" else solver
    if solver in SOLVERS:  # otherwise the parser reports the unknown name
        for option in sorted(SPECIFIC_OPTIONS - option_names(solver)):
            if flag(option) in flags_given(argv):
                raise wrong_solver(option, solver)


def wrong_solver(option: str, solver: str) -> InputError:
    """The error for an option that the solver does not have."""
    return InputError(
        f"{flag(option)} is an option of --solver {', '.join(solvers_with(option))}, not of "
        f"{solver}; omit it, or choose one of these solvers"
    )


def check(options: Options, given: Collection[str] = ()) -> None:
    """Check options before a model is loaded."""
    if options.evaluations is not None:
        check_integer("evaluations", options.evaluations, most=MAX_STEPS)
        chosen = {"steps", "grid", *POSTPROCESS_OPTIONS["resample"], "resample"} & set(given)
        if chosen or options.solver != "auto":
            name = "--solver" if options.solver != "auto" else flag(min(chosen))
            raise InputError(f"--evaluations already chooses {name}; omit one of the two")
        for name in ("refine", "reject_below"):
            if getattr(options, name):
                raise InputError(
                    f"{flag(name)} would exceed the budget of --evaluations; omit one of the two"
                )
    check_integer("n", options.n, most=MAX_SAMPLES)
    check_integer("steps", options.steps, most=MAX_STEPS)
    check_format(options.out)
    if options.length is not None:
        check_integer("length", options.length, 3, MAX_LENGTH)
    check_integer("batch_size", options.batch_size, 0)
    partial = PartialSamples(options.out, {})
    partial.discard_if_written()
    check_output_file(options.out, force=options.force)
    fragment_of(options)  # raises an error if several are given
    guidance_of(options)  # raises an error for invalid properties
    if options.record:
        unfinished = partial.folder.is_dir()  # a command killed after it wrote the recording
        check_output_file(recording_file(options.out), force=options.force or unfinished)
        if options.reject_below:
            raise InputError("--record does not support --reject-below; omit one of the two")
    check_seed(options.seed)
    for name, minimum in (("refine", 0), ("refine_steps", 1), ("resample", 0), ("max_tries", 1)):
        check_integer(name, getattr(options, name), minimum, MAX_STEPS)
    for enabling, names in POSTPROCESS_OPTIONS.items():
        for name in names:
            if not getattr(options, enabling) and getattr(options, name) != getattr(Options, name):
                raise InputError(f"{flag(name)} requires {flag(enabling)}; set both, or neither")
    postprocessing(options)  # raises an error for invalid values, like `build_solver`
    if options.solver != "auto":
        build_solver(options.solver, options.solver_options)


def recommended(options: Options, method: Method, length: int, given: Collection[str]) -> Options:
    """Set the solver, steps, grid and resampling recommended for a budget of evaluations.

    Shared solver options in `given`, such as the temperature, keep their values.
    """
    assert options.evaluations is not None
    chosen = recommend_for(method, options.evaluations, length)
    kept = {name: getattr(options.solver_options, name) for name in SHARED_OPTIONS & set(given)}
    config = SOLVERS[chosen.name].config(**dict(chosen.settings) | kept)
    options = replace(
        options,
        solver=chosen.name,
        solver_options=config,
        steps=chosen.steps,
        grid=chosen.grid,
    )
    if chosen.resample is None:
        return options
    names = _option_names("resample", Resample)
    values = {o: getattr(chosen.resample, n) for n, o in names.items() if hasattr(options, o)}
    return replace(options, **values)


def fragment_of(options: Options) -> Fragment | None:
    """The fragment that every sample contains, if any."""
    names = ("scaffold", "grow", "linker", "template", "prompt")
    given = [flag(name) for name in names if getattr(options, name) is not None]
    if len(given) > 1 and given[0] not in ("--template", "--prompt"):
        raise InputError(f"{' and '.join(given)} cannot be combined; omit all but one")
    return find_fragment(options.scaffold, options.grow, options.linker)


def guidance_of(options: Options) -> tuple[Guidance, ...]:
    """The guidance by the requested properties, if any."""
    if not options.property:
        if options.guidance != Options.guidance:
            raise InputError("--guidance requires --property NAME=VALUE; set both, or neither")
        return ()
    values: dict[str, object] = {}
    for text in options.property:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"--property must be NAME=VALUE, such as logp=2.5, got {text!r}")
        if name.lower() in map(str.lower, values):
            raise InputError(f"--property sets {name} twice; specify one value")
        values[name] = value
    with by_flags(Options, strength="guidance"):
        return (ClassifierFreeGuidance(values, options.guidance),)


class Postprocessing(TypedDict, total=False):
    """Postprocessing steps, as arguments of `generate`."""

    refine: Refine
    resample: Resample
    reject: Reject


# Options that set a field of a postprocessing step but are not named STEP_FIELD.
_RENAMED = {
    "refine_rounds": "refine",
    "resample_rounds": "resample",
    "reject_threshold": "reject_below",
    "reject_max_tries": "max_tries",
}


def _option_names(step: str, cls: type) -> dict[str, str]:
    """Map the fields of a postprocessing step to the options that set them."""
    names = {field.name: f"{step}_{field.name}" for field in fields(cls)}
    return {name: _RENAMED.get(option, option) for name, option in names.items()}


def postprocessing(options: Options) -> Postprocessing:
    """Build the postprocessing steps."""
    steps: Postprocessing = {}
    classes: dict[str, type] = {"refine": Refine, "resample": Resample, "reject": Reject}
    for (step, cls), enabling in zip(classes.items(), POSTPROCESS_OPTIONS, strict=True):
        if getattr(options, enabling):
            names = _option_names(step, cls)
            values = {n: getattr(options, o) for n, o in names.items() if hasattr(options, o)}
            with by_flags(Options, **names):
                steps[step] = cls(**values)  # type: ignore[literal-required]
    return steps


def recording_file(out: Path) -> Path:
    """The path of the recording of a sample file."""
    return out.with_name(f"{out.stem}.recording.npz")


def settings(options: Options) -> dict[str, Any]:
    """The options that determine the samples, as a flat dictionary."""
    values = asdict(options)
    values |= values.pop("solver_options")
    excluded = {"out", "only", "network", "evaluations", "record", "batch_size", "device", "force"}
    # Older sample files do not have these options, so they are stored only if they are set.
    excluded |= {name for name in ("scaffold", "grow", "linker") if values[name] is None}
    excluded |= set() if options.property else {"property", "guidance"}
    values["property"] = list(values["property"])
    if values["linker"] is not None:
        values["linker"] = list(values["linker"])  # JSON reads it back as a list
    return {name: value for name, value in values.items() if name not in excluded}
