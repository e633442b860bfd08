"""What the form of the app means: a command, the same in Python, and its samples."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from cwdfm.cli.options import flag
from cwdfm.cli.sample import Job, file_header, make_job
from cwdfm.cli.sample_options import check, parse_options
from cwdfm.errors import check_integer
from cwdfm.generation import generate_samples
from cwdfm.method.flow import Flow
from cwdfm.pretrained.model import load_trained
from cwdfm.report.replay import replay_page
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.solver.recording import Recording
from cwdfm.solver.sample import sample
from cwdfm.solver_config import SOLVERS, build_solver
from cwdfm.trained import prompt_tokens

MAX_SAMPLES, MAX_STEPS = 256, 4096  # of the app; the command has no such limits
PILOT = 16  # samples that estimate the number of evaluations


@dataclass(frozen=True)
class Form:
    """The input of the app, for one solver."""

    model: str
    solver: str = "auto"
    settings: tuple[tuple[str, Any], ...] = ()  # options of the solver that differ from the default
    steps: int = 64
    evaluations: bool = False  # whether `steps` is a number of evaluations instead
    n: int = 8
    seed: int = 0
    prompt: str = ""
    template: str = ""

    def arguments(self, out: str) -> list[str]:
        """The arguments of `cwdfm sample`."""
        given: dict[str, Any] = {"out": out, "n": self.n, "steps": self.steps, "seed": self.seed}
        given |= {"solver": self.solver} | dict(self.settings) | self._texts
        words = [str(self.model)]
        for name, value in given.items():
            joined = str(value).startswith("-")  # otherwise it would look like a flag
            words += [f"{flag(name)}={value}"] if joined else [flag(name), str(value)]
        return [*words, "--record"]

    def code(self) -> str:
        """The same in Python."""
        solver = "" if self.solver == "auto" else f"{self.solver!r}, "
        if self.settings:
            options = "".join(f", {name}={value!r}" for name, value in self.settings)
            name = "euler" if self.solver == "auto" else self.solver
            solver = f"cwdfm.make_solver({name!r}{options}), "
        texts = "".join(f", {name}={text!r}" for name, text in self._texts.items())
        given = f"n={self.n}, steps={self.steps}, seed={self.seed}{texts}, record=True"
        return f"samples = model.generate({solver}{given})\nprint(*samples.texts, sep='\\n')\n"

    @property
    def _texts(self) -> dict[str, str]:
        texts = {"prompt": self.prompt, "template": self.template}
        return {name: text for name, text in texts.items() if text}

    def job(self, folder: Path, device: str) -> Job:
        """Load the model, and check that everything fits it."""
        check_integer("n", self.n, most=MAX_SAMPLES)
        check_integer("evaluations" if self.evaluations else "steps", self.steps, most=MAX_STEPS)
        words = [*self.arguments(str(folder / f"{self.solver}.jsonl")), "--device", device]
        options, given = parse_options(words)
        with options.flag_names():
            check(options)
            named = options.solver != "auto"
            solver = build_solver(options.solver, options.solver_options) if named else None
        trained = load_trained(options.model, device)
        record = options.record and isinstance(trained.method, Flow)
        job = make_job(trained, replace(options, record=record), given, solver, {})
        if self.evaluations and isinstance(trained.method, Flow):
            steps = steps_for(trained.method, job, self.steps)
            job = replace(job, options=replace(job.options, steps=steps))
        return job


def steps_for(flow: Flow, job: Job, evaluations: int) -> int:
    """The largest number of steps with at most this many evaluations per sample, on average.

    Steps in which no token of a sample changes need no evaluation, and where they are does not
    depend on the network, except if a solver evaluates it in every step. A uniform prediction over
    two tokens therefore costs as many evaluations as the model.
    """
    source = replace(flow.source, vocab_size=2)
    texts = {"prompt": job.options.prompt, "template": job.options.template}
    tokens, fixed = prompt_tokens(job.trained, length=job.options.length, **texts)
    prompt = None if tokens is None else torch.zeros_like(tokens)

    def cost(steps: int) -> float:
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
        low, high = (middle, high) if cost(middle) <= evaluations else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Result:
    """What the app shows."""

    rows: list[list[Any]]  # solver, sample, evaluations
    page: str | None  # the replay; None for models that are not flows
    command: str
    code: str
    files: list[str]  # samples, and the replay


def run(
    forms: list[Form], folder: Path, device: str, progress: Callable[[float], object]
) -> Result:
    """Sample with each form, and record the first samples."""
    rows: list[list[Any]] = []
    commands, files = [], []
    code = f"import cwdfm\n\nmodel = cwdfm.load({forms[0].model!r})\n"
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
        samples = generate_samples(**request, record=record, progress=advance)
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


def solver_settings() -> dict[str, tuple[Any, Any]]:
    """The options of all solvers: type and default by name."""
    found: dict[str, tuple[Any, Any]] = {}
    for solver in SOLVERS.values():
        for each in fields(solver.config):
            found.setdefault(each.name, (each.type, each.default))
    return found
