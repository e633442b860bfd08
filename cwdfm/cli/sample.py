"""`cwdfm sample MODEL --out FILE`: sample sequences from a trained model."""

import shlex
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cwdfm.cli import sample_prompts
from cwdfm.cli.options import by_flags, check_window, flags_given
from cwdfm.cli.progress import Progress
from cwdfm.cli.sample_options import (
    Options,
    check,
    fragment_of,
    guidance_of,
    parse_options,
    postprocessing,
    recommended,
    recording_file,
    settings,
    wrong_solver,
)
from cwdfm.cli.sample_output import finish, records
from cwdfm.cli.streams import STREAM, standard_output
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.distributed import barrier, broadcast, process_group, rank, world_size
from cwdfm.errors import InputError
from cwdfm.generation import check_model, generate_samples, generate_with_fragment
from cwdfm.method import Method
from cwdfm.method.flow import Flow
from cwdfm.model.predict import model_device
from cwdfm.model.transformer import DiT
from cwdfm.pretrained.model import Pretrained, load_trained, unfinished_steps
from cwdfm.provenance import provenance
from cwdfm.sample_file import LINES, PartialSamples, read_samples
from cwdfm.solver import Samples, Solver
from cwdfm.solver.recording import Recording, check_record
from cwdfm.solver_config import SHARED_OPTIONS, SOLVERS, build_solver
from cwdfm.trained import auto_batch_size, prompt_tokens

RECORDED = 8  # maximum number of samples in a recording
RECORDED_CELLS = 2**21  # maximum of samples x steps x tokens in a recording, about 4 MB


@dataclass(frozen=True)
class Job:
    """A sampling job: the model, the solver and the options, checked against each other."""

    trained: Pretrained
    options: Options
    solver: Any
    length: int

    @property
    def progress_steps(self) -> int:
        """The maximum number of progress units per sample."""
        stages = postprocessing(self.options)
        steps = (stages.get("refine"), stages.get("resample"))
        total = self.options.steps + sum(step.progress_steps for step in steps if step)
        return total * (stages["reject"].max_tries if "reject" in stages else 1)

    def request(self, index: list[int]) -> dict[str, Any]:
        """The arguments of `sampler` for the samples with these indices."""
        names = ("steps", "seed", "grid", "length", "prompt", "template")
        return {
            "trained": self.trained,
            "solver": self.solver,
            "n": len(index),
            "index": torch.tensor(index),
            "batch_size": len(index),
            **{name: getattr(self.options, name) for name in names},
            "guidance": guidance_of(self.options),
            **postprocessing(self.options),
        }

    @property
    def sampler(self) -> Callable[..., Samples]:
        """The function that draws the samples."""
        fragment = fragment_of(self.options)
        if fragment is None:
            return generate_samples
        return partial(generate_with_fragment, fragment=fragment)

    @property
    def recorded(self) -> int:
        """The number of samples in a recording."""
        fit = max(1, RECORDED_CELLS // (self.options.steps * self.length))
        return min(self.options.n, RECORDED, fit)

    def named(self, recording: Recording) -> Recording:
        """Label a recording with the model and the solver."""
        options = self.options
        name = f"{options.model}, {options.solver}, {options.steps} steps, seed {options.seed}"
        return replace(recording, labels=recording.labels | {"name": name})

    def autocast(self) -> torch.autocast:
        """A context that runs matrix products in the requested precision."""
        device = model_device(self.trained.model) or torch.device("cpu")
        half = self.options.precision == "bfloat16"
        return torch.autocast(device.type, torch.bfloat16, enabled=half)


def main(arguments: list[str]) -> None:
    """Parse the options, sample, and write the output file."""
    if "--prompts" in flags_given(arguments):
        sample_prompts.main(arguments)
        return
    options, given = parse_options(arguments)
    streamed = str(options.out) == STREAM
    if options.record and streamed:
        raise InputError("--record requires a file; omit it, or set --out FILE")
    written = 0
    with standard_output(options.out, "samples.jsonl") as out:
        options = replace(options, out=out)
        with options.flag_names():
            check(options, given)
        with process_group(options.device) as device:
            trained = load_trained(options.model, device, network=options.network)
            unfinished = unfinished_steps(options.model, trained)
            if unfinished is not None and rank() == 0:
                checkpoint = f"its checkpoint at step {unfinished[0]} of {unfinished[1]}"
                note = f"training of {options.model} is not finished: sampling from {checkpoint}"
                print(f"note: {note}", file=sys.stderr)
            job = make_job(trained, options, given)
            if isinstance(trained.model, DiT):
                if options.compile:
                    trained.model.compile_trunk(by_block=True)
                trained.model.capture_trunk()
            identity = settings(job.options) | {"weights": trained.fingerprint()}
            partial = PartialSamples(options.out, identity)
            with options.flag_names(), partial.lock(force=options.force):
                todo = broadcast(remaining(partial, options) if rank() == 0 else None)
                start = time.perf_counter()
                sample_batches(job, partial, todo[rank() :: world_size()])
                barrier()
                if rank() == 0:
                    seconds = time.perf_counter() - start
                    header = file_header(job) | {"seconds": seconds, "drawn": len(todo)}
                    if options.record:  # first, so that a command killed in between resumes
                        path = write_recording(job)
                    written = finish(options, partial, header, trained.tokenizer)
                    if not streamed:
                        print(f"written: {written} samples to {options.out}")
                    if options.record:
                        replay = f"cwdfm replay {shlex.quote(str(path))}"
                        print(
                            f"written: a recording of {job.recorded} samples to {path}; play it "
                            f"with `{replay}`"
                        )
        if streamed and not trained.tokenizer.has_line_breaks:
            texts = read_samples(out).texts if written else []  # --only may leave no samples
            out.write_text("".join(f"{text}\n" for text in texts))


def make_job(trained: Pretrained, options: Options, given: Collection[str] = ()) -> Job:
    """Fill in the options that depend on the model, and check that all options are valid for it.

    `given` are the names of the options on the command line.
    """
    method = trained.method
    if options.evaluations is not None:
        options = recommended(options, method, sample_length(trained, options), given)
    elif options.solver == "auto":
        options = default_solver(options, method, given)
    with options.flag_names():
        solver = build_solver(options.solver, options.solver_options)
    if "valid" in options.only and not isinstance(trained.tokenizer, SmilesTokenizer):
        raise InputError(
            f"--only valid applies to molecules, but {options.model} samples "
            f"{trained.tokenizer.kind} tokens; use --only unique, or omit it"
        )
    if options.record and not isinstance(method, Flow):
        raise InputError(
            f"--record requires a flow model, but {options.model} was trained with the method "
            f"{type(method).__name__}; omit it"
        )
    if guidance := guidance_of(options):
        check_model(trained, guidance)
    length, requested = sample_length(trained, options), options.steps
    if options.record:
        check_record(1, (1, length), requested)
    if method.step_per_token:
        steps_given = "steps" in given and requested != length
        if steps_given or options.grid != Options.grid:
            name = f"--steps {requested}" if options.grid == Options.grid else "--grid"
            raise InputError(
                f"{name} does not apply to {options.model} ({type(method).__name__}), which takes "
                f"one step for each of its {length} tokens; omit it"
            )
    options = replace(options, steps=method.steps(requested, length))
    if options.out.suffix in LINES and trained.tokenizer.has_line_breaks:
        raise InputError(
            f"{options.out} would hold one text per line, but text samples contain line breaks; "
            f"write a .jsonl file (with tokens, as required by eval) or a .csv file"
        )
    with options.flag_names():
        solver = method.adapt(solver, trained.tokenizer.eos_id if options.stop else None)
        check_window(getattr(solver, "weight", None), length)
        if isinstance(solver, Solver) and (refine := postprocessing(options).get("refine")):
            refine.check(solver)
    if rank() == 0:
        note_steps(method, options, requested, length)
    return Job(trained, options, solver, length)


def default_solver(options: Options, method: Method, given: Collection[str]) -> Options:
    """Replace --solver auto by the method's default solver."""
    name, chosen = method.default_solver, options.solver_options
    config = SOLVERS[name].config
    names = {field.name for field in fields(config)}
    for option in (field.name for field in fields(chosen)):
        if option in given and option not in names:
            raise wrong_solver(option, name)
    if not isinstance(chosen, config):
        chosen = config(**{option: getattr(chosen, option) for option in SHARED_OPTIONS})
    return replace(options, solver=name, solver_options=chosen)


def file_header(job: Job) -> dict[str, Any]:
    """The header of the sample file: options, model and provenance."""
    only = {"only": list(job.options.only)} if job.options.only else {}
    return {
        "options": settings(job.options) | only,
        "model": job.trained.card,
        "weights": job.trained.fingerprint(),
        "tokenizer": job.trained.tokenizer.kind,
        "length": job.length,
        "provenance": provenance(),
    }


def sample_length(trained: Pretrained, options: Options) -> int:
    """The number of tokens per sample, after checking prompt, template and fragment."""
    length = options.length or trained.length
    check_positions(trained, options, length)  # before allocating a list of this length
    texts = {"prompt": options.prompt, "template": options.template}
    with by_flags(Options):
        tokens, _ = prompt_tokens(trained, length=options.length, **texts)
        if (fragment := fragment_of(options)) is not None:
            fragment.check(trained.tokenizer, length)
    length = length if tokens is None else len(tokens)
    check_positions(trained, options, length)  # a template has its own length
    return length


def check_positions(trained: Pretrained, options: Options, length: int) -> None:
    """Raise an error if a sample is longer than the learned position embeddings of the model."""
    positions = trained.model.config.positions if isinstance(trained.model, DiT) else 0
    if positions and length > positions:
        name = "--length" if options.template is None else "--template"
        raise InputError(
            f"the model has {positions} learned positions, but {length} tokens are requested; use "
            f"a {name} of at most {positions} tokens"
        )


def note_steps(method: Method, options: Options, requested: int, length: int) -> None:
    """Print a note if the number of steps was raised, or is too small for the solver."""
    block = None if method.step_per_token else method.causal_block
    if block and requested < options.steps:
        print(
            f"note: {options.model} has {options.steps} blocks of {block} tokens and needs "
            f"at least one step per block: using {options.steps} steps instead of {requested}"
        )
    if options.solver not in ("first-hitting", "entropy-bound", "threshold", "klass"):
        return
    if options.steps < length:
        last_step = "last step of a block" if block else "last step"
        print(
            f"note: {options.solver} needs up to one step per token; with {options.steps} steps "
            f"for {length} tokens, the {last_step} draws all remaining tokens at once; use "
            f"--steps {length} to avoid this"
        )
    noised = round(options.refine_noise_fraction * length) if options.refine else 0
    if options.refine_steps < noised:
        print(
            f"note: {options.solver} needs up to one step per token when refining, too, and each "
            f"round noises about {noised} tokens; use --refine-steps {noised}"
        )


def remaining(partial: PartialSamples, options: Options) -> Sequence[int]:
    """The indices of the samples that are still to be drawn."""
    with by_flags(Options):
        done = partial.open(force=options.force)
    if done:
        share = f"{len(done)} of {options.n} samples ({len(done) / options.n:.0%})"
        print(f"resuming: {share} are finished")
    return [i for i in range(options.n) if i not in done] if done else range(options.n)


def sample_batches(job: Job, partial: PartialSamples, todo: Sequence[int]) -> None:
    """Draw the samples with the indices in `todo` in batches, and save each batch."""
    trained, options = job.trained, job.options
    share = f" (this process: {len(todo)})" if world_size() > 1 else ""
    size = options.batch_size or auto_batch_size(trained, job.length)
    first, total = 0, max(1, len(todo) * job.progress_steps)
    with Progress(f"sampling{share}", total, shown=rank() == 0) as progress:
        while first < len(todo):
            index = list(todo[first : first + size])
            try:
                with job.autocast():
                    samples = job.sampler(**job.request(index), progress=progress.advance)
            except torch.OutOfMemoryError as error:
                if size == 1:
                    raise InputError(
                        f"out of memory with a batch of one sequence: {error}; use a shorter "
                        f"--length or a smaller model"
                    ) from error
                size = max(1, size // 2)
                progress.say(f"out of memory: continuing with batches of {size} sequences")
                progress.reach(first * job.progress_steps)
                continue
            partial.add(records(trained, index, samples))
            first += size


def write_recording(job: Job) -> Path:
    """Write the recording. The first samples are drawn again, which gives identical samples."""
    with job.autocast():
        request = job.request(list(range(job.recorded)))
        recording = job.sampler(**request, record=job.recorded).recording
    assert recording is not None
    path = recording_file(job.options.out)
    job.named(recording).save(path)
    return path
