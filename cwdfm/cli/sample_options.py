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
from cwdfm.solver_config import (
    SHARED_OPTIONS,
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
    torchrun all processes share the work. Language models of other projects continue the prompts of
    a file: see `cwdfm sample --prompts FILE --help`.
    """

    # MODEL, the first argument: a bundled model (qm9-uniform-small, qm9-mask-small,
    # moses-uniform-small, novels-small), or the folder of a model, a run or a checkpoint.
    model: str
    # .jsonl (tokens, text, provenance) or .csv; for molecules also .smi or .txt. - is standard
    # output: one molecule per line, or JSON lines for text.
    out: Path
    # The class of a network that is not of cwdfm, as package.module:Class. It runs that code.
    network: str | None = None
    n: int = 1024  # number of samples
    # Leave out invalid molecules, repeated samples, or both, as in --only valid unique. Fewer than
    # --n remain.
    only: tuple[Literal["valid", "unique"], ...] = ()
    # auto: euler; bd3lm ancestral, sedd analytic, ar left-to-right; or what --evaluations chooses
    solver: Name = "auto"
    solver_options: SolverConfig = field(default_factory=EulerConfig)
    stop: bool = False  # bd3lm: end a sample after its end token
    # Number of steps; first-hitting, entropy-bound, threshold and klass need up to one per token.
    steps: int = 64
    # Budget of model evaluations per sample: choose solver, steps, grid and resampling for it.
    evaluations: int | None = None
    seed: int = 0  # random seed
    grid: Literal["t", "kappa"] = "t"  # the quantity in which steps are equally spaced
    length: int | None = None  # tokens per sample; the default is the model's or the template's
    precision: Literal["float32", "bfloat16"] = "float32"  # precision of matrix products
    prompt: str | None = None  # text that every sample begins with
    # A sample with holes: [12] is twelve tokens, as in 'The [12] of'. In molecules * is one token,
    # and *{2,8} two to eight, as in 'c1ccccc1***'.
    template: str | None = None
    # A fragment that every molecule contains, as SMILES, extended at its marks *, as in
    # 'c1ccc(*)cc1'; without marks, at one to three atoms chosen at random.
    scaffold: str | None = None
    grow: str | None = None  # the same, extended at one atom
    linker: tuple[str, str] | None = None  # two fragments to link, at their marks * or anywhere
    # Values of conditions that the model was trained with (cwdfm train --condition), as in
    # --property logp=2.5 kind=acid.
    property: tuple[str, ...] = ()
    # Strength of classifier-free guidance: 1 samples with the properties as given, larger values
    # follow them more closely, at twice the evaluations.
    guidance: float = 1.0
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
    # Also write a recording of the first 8 samples, FILE.recording.npz, for `cwdfm replay`.
    record: bool = False
    compile: bool = False  # torch.compile the model, for a GPU; not used by ar and bd3lm
    batch_size: int = 0  # sequences per batch; 0 for as many as fit into memory
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    force: bool = False  # overwrite the output file

    def flag_names(self) -> AbstractContextManager[None]:
        """Let errors name the flags of the command line instead of the fields."""
        return by_flags(Options, **{each.name: each.name for each in fields(self.solver_options)})


def parse_options(arguments: list[str]) -> tuple[Options, set[str]]:
    """Parse the command line. Returns the options and the names of those given explicitly."""
    words = model_first("sample", arguments)
    config = solver_config(words, EulerConfig())
    options = parse(
        "sample MODEL",
        words,
        lambda missing: Options(model=missing, out=missing, solver_options=config),
    )
    return options, fields_given(Options, words) | fields_given(type(config), words)


def solver_config(words: list[str], default: SolverConfig) -> SolverConfig:
    """The options of the solver that a command line names; `default` for none."""
    name = value_given("solver", words) or "auto"
    check_solver_flags(name, words)
    return SOLVERS[name].config() if name in SOLVERS else default


def check_solver_flags(solver: str, words: list[str]) -> None:
    """Raise an error for flags that belong to other solvers."""
    solver = "euler" if solver == "auto" else solver
    if solver in SOLVERS:  # otherwise the parser reports the unknown name
        for option in sorted(SPECIFIC_OPTIONS - option_names(solver)):
            if flag(option) in flags_given(words):
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
            raise InputError(f"--evaluations chooses {name} itself; omit one of the two")
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
    fragment_of(options)  # at most one
    guidance_of(options)
    if options.record:
        unfinished = partial.folder.is_dir()  # a killed command had written its recording
        check_output_file(recording_file(options.out), force=options.force or unfinished)
        if options.reject_below:
            raise InputError("--record does not support --reject-below; omit one of the two")
    check_seed(options.seed)
    for name, least in (("refine", 0), ("refine_steps", 1), ("resample", 0), ("max_tries", 1)):
        check_integer(name, getattr(options, name), least, MAX_STEPS)
    for enabling, names in POSTPROCESS_OPTIONS.items():
        for name in names:
            if not getattr(options, enabling) and getattr(options, name) != getattr(Options, name):
                raise InputError(f"{flag(name)} requires {flag(enabling)}; give both, or neither")


def recommended(options: Options, method: Method, length: int, given: Collection[str]) -> Options:
    """The options with the solver, steps, grid and resampling of a budget of evaluations.

    Options of the draws that are `given` on the command line stay as they are.
    """
    assert options.evaluations is not None
    chosen = recommend_for(method, options.evaluations, length)
    own = {name: getattr(options.solver_options, name) for name in SHARED_OPTIONS & set(given)}
    config = SOLVERS[chosen.name].config(**dict(chosen.settings) | own)
    options = replace(
        options,
        solver=chosen.name,
        solver_options=config,
        steps=chosen.steps,
        grid=chosen.grid,
    )
    if chosen.resample is None:
        return options
    names = {each.name: f"resample_{each.name}" for each in fields(Resample)}
    names = {name: _OPTIONS.get(option, option) for name, option in names.items()}
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
    """The guidance by the properties that are given, if any."""
    if not options.property:
        if options.guidance != Options.guidance:
            raise InputError("--guidance requires --property NAME=VALUE; give both, or neither")
        return ()
    values: dict[str, object] = {}
    for text in options.property:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"--property must be NAME=VALUE, such as logp=2.5, got {text!r}")
        if name.lower() in map(str.lower, values):
            raise InputError(f"--property gives {name} twice; give one value")
        values[name] = value
    with by_flags(Options, strength="guidance"):
        return (ClassifierFreeGuidance(values, options.guidance),)


class Postprocessing(TypedDict, total=False):
    """The postprocessing steps to apply: arguments of `generate`."""

    refine: Refine
    resample: Resample
    reject: Reject


# The options that set a field of a postprocessing step, where they are not called STEP_FIELD.
_OPTIONS = {
    "refine_rounds": "refine",
    "resample_rounds": "resample",
    "reject_threshold": "reject_below",
    "reject_max_tries": "max_tries",
}


def postprocessing(options: Options) -> Postprocessing:
    """Build the postprocessing steps."""
    steps: Postprocessing = {}
    kinds: dict[str, type] = {"refine": Refine, "resample": Resample, "reject": Reject}
    for (step, kind), enabling in zip(kinds.items(), POSTPROCESS_OPTIONS, strict=True):
        if getattr(options, enabling):
            names = {each.name: f"{step}_{each.name}" for each in fields(kind)}
            names = {name: _OPTIONS.get(option, option) for name, option in names.items()}
            values = {n: getattr(options, o) for n, o in names.items() if hasattr(options, o)}
            with by_flags(Options, **names):
                steps[step] = kind(**values)  # type: ignore[literal-required]
    return steps


def recording_file(out: Path) -> Path:
    """The file of the recording that belongs to a sample file."""
    return out.with_name(f"{out.stem}.recording.npz")


def settings(options: Options) -> dict[str, Any]:
    """All options that the samples depend on, as one flat dictionary."""
    values = asdict(options)
    values |= values.pop("solver_options")
    idle = {"out", "only", "network", "evaluations", "record", "batch_size", "device", "force"}
    # Options that are newer than some sample files, which have them only if they are given.
    idle |= {name for name in ("scaffold", "grow", "linker") if values[name] is None}
    idle |= set() if options.property else {"property", "guidance"}
    values["property"] = list(values["property"])
    if values["linker"] is not None:
        values["linker"] = list(values["linker"])  # as it is read back from JSON
    return {name: value for name, value in values.items() if name not in idle}
