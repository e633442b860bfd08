"""`cwdfm sample MODEL --out FILE`: draw sequences from a trained model."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.cli.options import by_flags, check_window, fields_given, model_first, parse
from cwdfm.cli.partial_samples import Parts
from cwdfm.cli.progress import Progress
from cwdfm.cli.sample_options import (
    Options,
    acceptance,
    check,
    mending,
    refinement,
    rework,
    settings,
)
from cwdfm.cli.unused_options import check_steps
from cwdfm.data import TextTokenizer
from cwdfm.distributed import barrier, broadcast, process_group, rank, world_size
from cwdfm.errors import InputError, RunError
from cwdfm.generation import fitting_batch, generate, given
from cwdfm.method import Method
from cwdfm.pretrained.model import Pretrained, load, steps_short
from cwdfm.provenance import provenance
from cwdfm.sample_file import LINES, SampleFile, write_samples
from cwdfm.solver import Solver
from cwdfm.solver.sample import Tick


def main(arguments: list[str]) -> None:
    """Parse, sample, write."""
    asked = model_first("sample", arguments)
    options = parse("sample MODEL", asked, lambda missing: Options(model=missing, out=missing))
    with by_flags(Options):
        check(options)
    with process_group(options.device) as device:
        trained = load(options.model, device)
        note_unfinished(trained, options)
        options = options.resolved(trained.method)
        check_idle(trained, options)
        length = length_of(trained, options)
        check_steps(
            fields_given(Options, asked), options.model, trained.method, options.steps, length
        )
        asked_for = options.steps
        options = replace(options, steps=trained.method.steps(asked_for, length))
        with by_flags(Options):
            check_given(trained, options)
        if rank() == 0:
            note_steps(trained.method, options, asked_for, length)
        if options.compile:
            trained.model.compile_trunk(by_block=True)
        trained.model.capture_trunk()
        parts = Parts(options.out, settings(options) | {"weights": trained.fingerprint()})
        with parts.alone():
            todo = broadcast(_todo(parts, options) if rank() == 0 else None)
            start = time.perf_counter()
            draw(trained, options, parts, todo[rank() :: world_size()])
            barrier()
            if rank() == 0:
                took = {"seconds": time.perf_counter() - start, "drawn": len(todo)}
                finish(options, parts, head(trained, options) | took)


def head(trained: Pretrained, options: Options) -> dict[str, Any]:
    """What a file of samples says of where they come from."""
    return {
        "options": settings(options),
        "model": trained.card,
        "weights": trained.fingerprint(),
        "tokenizer": trained.tokenizer.kind,
        "length": length_of(trained, options),
        "provenance": provenance(),
    }


def check_idle(trained: Pretrained, options: Options) -> None:
    """Refuse settings that neither the solver nor the method reads."""
    options.check_idle()
    if options.grid != Options.grid and isinstance(trained.method, Autoregressive):
        raise InputError(
            f"--grid is of steps in time, and {options.model} takes one a token; leave it out"
        )


def length_of(trained: Pretrained, options: Options) -> int:
    """Tokens a sample; a prompt or template without room, or more than can be, is refused."""
    check_positions(trained, options, options.length or trained.length)  # before there is a list
    tokens, _ = given(
        trained, length=options.length, prompt=options.prompt, template=options.template
    )
    length = len(tokens) if tokens is not None else options.length or trained.length
    check_positions(trained, options, length)  # a template has a length of its own
    return length


def check_positions(trained: Pretrained, options: Options, length: int) -> None:
    """Refuse more tokens than the model has learned positions."""
    positions = trained.model.config.positions
    if positions and length > positions:
        what = "--length" if options.template is None else "--template"
        raise InputError(
            f"the model has learned {positions} positions, asked for are {length} tokens; give a "
            f"{what} of at most {positions}"
        )


def note_unfinished(trained: Pretrained, options: Options) -> None:
    """Say that a run is not finished, whose samples may be worse than its recipe promises."""
    short = steps_short(options.model, trained)
    if short is not None and rank() == 0:
        print(
            f"{options.model} is not finished: its checkpoint of step {short[0]} of {short[1]} is "
            f"sampled",
            file=sys.stderr,
        )


def check_given(trained: Pretrained, options: Options) -> None:
    """Refuse a length, prompt, template or kind of file that the model cannot take."""
    length = length_of(trained, options)
    if options.out.suffix in LINES and isinstance(trained.tokenizer, TextTokenizer):
        raise InputError(
            f"{options.out} would hold one text a line, and samples of text hold line breaks; give "
            f"a .jsonl file (with tokens, as eval needs it) or a .csv file"
        )
    solver = options.build(trained.method, trained.tokenizer.eos_id)
    check_window(getattr(solver, "weight", None), length)
    if isinstance(solver, Solver):
        for after in rework(options):
            after.check(solver)


def note_steps(method: Method, options: Options, asked: int, length: int) -> None:
    """Say where fewer steps were asked for than a block model takes, or a solver wants."""
    if isinstance(method, BlockDiffusion) and asked < options.steps:
        print(
            f"note: {options.model} has {options.steps} blocks of {method.block} tokens and takes "
            f"at least a step for each: {options.steps} steps, not the {asked} of --steps"
        )
    if options.solver not in ("first-hitting", "entropy-bound"):
        return
    if options.steps < length:
        last = "last one of a block" if isinstance(method, BlockDiffusion) else "last one"
        print(
            f"note: {options.solver} takes up to a step a token; in {options.steps} steps for "
            f"{length} tokens the {last} draws all that is left at once. Give --steps {length}"
        )
    noised = round(options.refine_share * length) if options.refine else 0
    if options.refine_steps < noised:
        print(
            f"note: {options.solver} takes up to a step a token, in refining too, where about "
            f"{noised} are noised at once. Give --refine-steps {noised}"
        )


def _todo(parts: Parts, options: Options) -> Sequence[int]:
    done = parts.open(force=options.force)
    if done:
        print(f"going on: {len(done)} of {options.n} samples are there")
    return [i for i in range(options.n) if i not in done] if done else range(options.n)


def draw(trained: Pretrained, options: Options, parts: Parts, todo: Sequence[int]) -> None:
    """Draw the samples numbered `todo` and put them into `parts`, batch by batch."""
    share = f" (this process's {len(todo)})" if world_size() > 1 else ""
    size = options.batch_size or fitting_batch(trained, length_of(trained, options))
    first = 0
    steps = options.steps + sum(after.ticks for after in rework(options))
    steps *= options.accept_tries if options.accept else 1
    total = max(1, len(todo) * steps)
    with Progress(f"sampling{share}", total, shown=rank() == 0) as progress:
        while first < len(todo):
            index = list(todo[first : first + size])
            try:
                parts.add(rows(trained, options, index, progress.advance))
                first += size
            except torch.OutOfMemoryError as error:
                if size == 1:
                    raise InputError(f"memory does not hold a single sequence: {error}") from error
                size = max(1, size // 2)
                progress.say(f"memory is short: going on with {size} sequences at once")
                progress.reach(first * steps)


def rows(
    trained: Pretrained, options: Options, index: list[int], tick: Tick
) -> dict[int, dict[str, Any]]:
    """The samples numbered `index`, in one batch."""
    half = options.precision == "bfloat16"
    device = next(trained.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        out = generate(
            trained,
            options.build(trained.method, trained.tokenizer.eos_id),
            n=len(index),
            steps=options.steps,
            seed=options.seed,
            grid=options.grid,
            length=options.length,
            prompt=options.prompt,
            template=options.template,
            refine=refinement(options),
            mend=mending(options),
            accept=acceptance(options),
            index=torch.tensor(index),
            batch_size=len(index),
            progress=tick,
        )
    decode = trained.tokenizer.decode
    found = zip(index, out.tokens.tolist(), out.evaluations.tolist(), strict=True)
    drawn = {i: {"text": decode(t), "tokens": t, "evaluations": e} for i, t, e in found}
    if out.plausibility is not None:
        for row, value in zip(drawn.values(), out.plausibility.tolist(), strict=True):
            row["plausibility"] = value
    return drawn


def finish(options: Options, parts: Parts, origin: dict[str, Any]) -> None:
    """Join the pieces into the output file."""
    rows = parts.rows()
    if len(rows) < options.n:
        raise RunError(
            f"of {options.n} samples {len(rows)} are left in {parts.folder}: another run of the "
            f"same command may have written all of them to {options.out}. If that is there and "
            f"new, delete {parts.folder}; else give the same command again. Start processes that "
            f"share the work by torchrun"
        )
    done = list(rows.values())
    origin["evaluations"] = sum(row["evaluations"] for row in done)
    if options.accept:
        accepted = sum(row["plausibility"] >= options.accept for row in done)
        origin["accepted"] = accepted
        rest = f"; the others are the most plausible of {options.accept_tries} tries"
        print(f"accepted: {accepted} of {len(done)}" + (rest if accepted < len(done) else ""))
    texts, tokens = [row["text"] for row in done], [row["tokens"] for row in done]
    write_samples(options.out, SampleFile(texts, tokens, origin))
    parts.discard()
    print(f"written: {len(done)} samples to {options.out}")
