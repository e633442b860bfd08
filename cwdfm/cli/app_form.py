"""Turn the app's form into a command line, the equivalent Python code, and samples."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cwdfm.cli.options import arguments_of
from cwdfm.cli.sample import Job, file_header, make_job
from cwdfm.cli.sample_options import check, parse_options
from cwdfm.config import field_comments
from cwdfm.errors import InputError, check_integer
from cwdfm.method.flow import Flow
from cwdfm.pretrained.model import load_trained
from cwdfm.report.replay import replay_page
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.solver.recording import Recording
from cwdfm.solver.sample import sample
from cwdfm.solver_config import SOLVERS
from cwdfm.trained import prompt_tokens

MAX_SAMPLES, MAX_STEPS = 256, 4096  # limits of the app; `cwdfm sample` allows more
PILOT = 16  # samples used to estimate the number of evaluations


@dataclass(frozen=True)
class Form:
    """The values entered in the app, for one solver."""

    model: str
    solver: str = "auto"
    settings: tuple[tuple[str, Any], ...] = ()  # solver options that differ from their defaults
    steps: int = 64
    evaluations: bool = False  # interpret `steps` as a number of evaluations
    n: int = 8
    seed: int = 0
    prompt: str = ""
    template: str = ""
    scaffold: str = ""

    def arguments(self, out: str) -> list[str]:
        """The arguments of the equivalent `cwdfm sample` command."""
        values: dict[str, Any] = {"out": out, "n": self.n, "steps": self.steps, "seed": self.seed}
        values |= {"solver": self.solver} | dict(self.settings) | self._constraints
        return [str(self.model), *arguments_of(values), "--record"]

    def code(self) -> str:
        """The equivalent Python code, for a `model` that is loaded."""
        solver = "" if self.solver == "auto" else f"{self.solver!r}, "
        if self.settings:
            options = "".join(f", {name}={value!r}" for name, value in self.settings)
            name = "euler" if self.solver == "auto" else self.solver
            solver = f"cwdfm.make_solver({name!r}{options}), "
        values = {name: repr(text) for name, text in self._constraints.items()}
        if (scaffold := values.pop("scaffold", None)) is not None:
            values["fragment"] = f"Scaffold({scaffold})"
        constraints = "".join(f", {name}={value}" for name, value in values.items())
        arguments = f"n={self.n}, steps={self.steps}, seed={self.seed}{constraints}, record=True"
        return f"samples = model.generate({solver}{arguments})\nprint(*samples.texts, sep='\\n')\n"

    @property
    def _constraints(self) -> dict[str, str]:
        """What the samples must contain, by the names of the options."""
        names = ("prompt", "template", "scaffold")
        return {name: text for name in names if (text := getattr(self, name))}

    def job(self, folder: Path, device: str) -> Job:
        """Load the model and check that the values are valid for it."""
        check_integer("n", self.n, most=MAX_SAMPLES)
        check_integer("evaluations" if self.evaluations else "steps", self.steps, most=MAX_STEPS)
        if self.model.startswith("-"):  # which the parser would take for a flag
            raise InputError(
                f"the model {self.model!r} starts with a hyphen; write a folder of that name as "
                f"./{self.model}",
                fields=("model",),
            )
        if self.evaluations and self.scaffold:
            raise InputError(
                "a scaffold cannot be combined with a number of evaluations, because samples that "
                "do not contain it are drawn again; choose a number of steps",
                fields=("scaffold", "evaluations"),
            )
        argv = [*self.arguments(str(folder / f"{self.solver}.jsonl")), "--device", device]
        options, given = parse_options(argv)
        with options.flag_names():
            check(options)
        trained = load_trained(options.model, device)
        record = options.record and isinstance(trained.method, Flow)
        job = make_job(trained, replace(options, record=record), given)
        if self.evaluations and isinstance(trained.method, Flow):
            steps = steps_for(trained.method, job, self.steps)
            job = replace(job, options=replace(job.options, steps=steps))
        return job


def steps_for(flow: Flow, job: Job, evaluations: int) -> int:
    """The largest number of steps with at most this many evaluations per sample, on average.

    A step that changes no token of a sample needs no evaluation. Which steps these are does not
    depend on the network, unless the solver evaluates it in every step. The count is therefore
    estimated with a cheap stand-in for the model: a uniform prediction over two tokens.
    """
    source = replace(flow.source, vocab_size=2)
    texts = {"prompt": job.options.prompt, "template": job.options.template}
    tokens, fixed = prompt_tokens(job.trained, length=job.options.length, **texts)
    prompt = None if tokens is None else torch.zeros_like(tokens)

    def mean_evaluations(steps: int) -> float:
        samples = sample(
            lambda x, t: torch.zeros(*x.shape, source.num_tokens),
            source,
            flow.schedule,
            job.solver,
            shape=(PILOT, job.length),
            steps=steps,
            prompt=prompt,
            fixed=fixed,
        )
        return float(samples.evaluations.double().mean())

    low, high = evaluations, min(4 * evaluations, MAX_STEPS)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if mean_evaluations(middle) <= evaluations else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Result:
    """The outputs that the app displays."""

    rows: list[list[Any]]  # solver, sample, evaluations
    page: str | None  # the replay; None for models that are not flows
    command: str
    code: str
    files: list[str]  # paths of the samples and the replay


def run(
    forms: list[Form], folder: Path, device: str, progress: Callable[[float], object]
) -> Result:
    """Sample with each form, record the first samples, and write everything to `folder`."""
    rows: list[list[Any]] = []
    commands, files = [], []
    code = f"\nmodel = cwdfm.load({forms[0].model!r})\n"
    if forms[0].scaffold:
        code = "from cwdfm.data.fragments import Scaffold\n" + code
    code = "import cwdfm\n" + code
    recordings: list[Recording] = []
    for number, form in enumerate(forms):
        job, done = form.job(folder, device), 0
        total = job.options.steps * form.n

        def advance(units: int, number: int = number, total: int = total) -> None:
            nonlocal done
            done += units
            progress((number + min(1.0, done / total)) / len(forms))

        record = job.recorded if job.options.record else 0
        request = job.request(list(range(form.n)))
        samples = job.sampler(**request, record=record, progress=advance)
        name = job.options.solver
        for text, count in zip(samples.texts, samples.evaluations.tolist(), strict=True):
            rows.append([name, text, count])
        write_samples(
            job.options.out, SampleFile(samples.texts, samples.tokens.tolist(), file_header(job))
        )
        files.append(str(job.options.out))
        if samples.recording is not None:
            recordings.append(job.named(samples.recording))
        final = replace(form, steps=job.options.steps, evaluations=False)
        commands.append(shlex.join(["cwdfm", "sample", *final.arguments(job.options.out.name)]))
        code += final.code()
    page = None
    if recordings:
        page = replay_page(recordings, ", ".join(dict.fromkeys(form.model for form in forms)))
        (folder / "replay.html").write_text(page, encoding="utf-8", errors="replace")
        files.append(str(folder / "replay.html"))
        stems = [f"{form.solver}.recording.npz" for form in forms]
        commands.append(shlex.join(["cwdfm", "replay", *stems, "--out", "replay.html"]))
    else:
        commands = [command.removesuffix(" --record") for command in commands]
        code = code.replace(", record=True", "")
    return Result(rows, page, "\n".join(commands), code, files)


class Setting(NamedTuple):
    """An option of a solver."""

    type: Any
    default: Any
    help: str


def solver_settings(solver: str) -> dict[str, Setting]:
    """The options of a solver, by name."""
    config = SOLVERS["euler" if solver == "auto" else solver].config
    comments = field_comments(config)
    return {
        field.name: Setting(field.type, field.default, comments.get(field.name, ""))
        for field in fields(config)
    }
