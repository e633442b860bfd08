"""`cwdfm demo`: sample the bundled models with three solvers and write a report."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import torch

from cwdfm.cli.options import cores, parse
from cwdfm.cli.progress import Progress
from cwdfm.cli.sample import Job, file_header, sample_length, write_recording
from cwdfm.cli.sample_options import Options as Sampling
from cwdfm.cli.sample_options import recording_file
from cwdfm.errors import check_extras
from cwdfm.generation import generate_samples
from cwdfm.metrics.molecule import score_molecules
from cwdfm.pretrained.model import load_trained
from cwdfm.report import MoleculeReference, check_folder, evaluate
from cwdfm.report.page import quotes
from cwdfm.report.replay import FIT_FRAMES, replay_frame, replay_page
from cwdfm.sample_file import SampleFile, read_samples, write_samples
from cwdfm.solver.recording import Recording
from cwdfm.solver_config import SOLVERS as NAMED_SOLVERS
from cwdfm.solver_config import build_solver

MODELS = ("qm9-uniform-small", "qm9-mask-small")
TEXT_MODEL, TEMPLATE = "novels-small", "The [12] of the [3] was closed."
TOP_P = 0.9  # of the text, which otherwise contains many words that do not exist
Solver = Literal["euler", "neighbor", "entropy"]
SOLVERS: tuple[Solver, ...] = ("euler", "neighbor", "entropy")
COMPARED = SOLVERS[:2]  # shown side by side in the replays
NEEDED = {"matplotlib": "plot", "rdkit": "molecules", "tokenizers": "text", "tyro": "cli"}
BATCH = 64  # larger batches are not faster on one core
HINT = """Open the report in a browser and play the generations first. Then look at the curves
(validity against the number of steps), at the molecules, and at how their features compare with the
data. ± is one standard deviation; differences below three standard deviations may be chance."""


@dataclass(frozen=True)
class Options:
    """Sample the bundled models with three solvers and write a report (about 2 minutes)."""

    out: Path = Path("demo")  # output folder; existing files are overwritten
    data: str = "qm9"  # reference data, as in `cwdfm eval --data`
    quick: bool = False  # few samples and steps: a quick check of the installation


def main(arguments: list[str]) -> None:
    """Run the command."""
    check_extras("cwdfm demo", NEEDED)  # before the work: the report comes last
    options = parse("demo", arguments, lambda _: Options())
    check_folder(options.out, force=True)
    steps, n, texts = ((2, 4), 8, 2) if options.quick else ((8, 16, 32), 64, 8)
    folder = options.out / "samples"
    molecules = [job_options(folder, *setting, n) for setting in product(MODELS, SOLVERS, steps)]
    sentences = [
        replace(
            job_options(folder, TEXT_MODEL, solver, steps[-1], texts, top_p=TOP_P),
            template=TEMPLATE,
        )
        for solver in SOLVERS
    ]
    recorded = [
        job
        for job in (*sentences, *molecules)
        if job.solver in COMPARED and job.steps == steps[-1] and job.model != MODELS[0]
    ]
    jobs = [replace(job, record=job in recorded) for job in (*molecules, *sentences)]
    jobs.sort(key=lambda job: -job.n * job.steps)  # longest first, so that cores finish together
    print(
        f"sampling {n} molecules for each of {len(molecules)} settings, and some text", flush=True
    )
    with (
        Progress("sampling", sum(job.n * job.steps for job in jobs)) as progress,
        workers(1 + len(jobs)) as pool,
    ):
        # The reference takes half a minute the first time. The evaluation reads it from the cache.
        prepared = pool.submit(prepare_reference, options.data)
        for done, samples in pool.map(run_job, jobs):
            scores = score_molecules(samples, None, fold_size=done.n) if done in molecules else ""
            line = f"{done.model}, {done.solver}, {done.steps} steps{scores and ': '}{scores}"
            progress.say(line)
            progress.advance(done.n * done.steps)
            if prepared.done() and prepared.exception():  # raised by result() below
                pool.shutdown(cancel_futures=True)
                break
        prepared.result()
    evaluation = evaluate(
        [job.out for job in molecules],
        options.out,
        data=options.data,
        fold_size=n,
        distribution=False,
        title=f"Demo: {', '.join((TEXT_MODEL, *MODELS))}",
        lead=lead([job.out for job in sentences], [job.out for job in recorded]),
    )
    print(f"\n{evaluation.table.text()}\n\nwritten: {options.out / 'report.html'}\n{HINT}")


def job_options(
    folder: Path, model: str, solver: Solver, steps: int, n: int, **settings: float
) -> Sampling:
    """The options of `cwdfm sample` for one sample file."""
    out = folder / f"{model}-{solver}-{steps}.jsonl"
    config = NAMED_SOLVERS[solver].config(**settings)
    return Sampling(model=model, out=out, n=n, steps=steps, solver=solver, solver_options=config)


def prepare_reference(data: str) -> None:
    """Read the reference data, which puts it in the cache."""
    MoleculeReference.load(data)


def workers(limit: int) -> ProcessPoolExecutor:
    """Start one single-threaded process per core: faster than one process with many threads."""
    spawn = get_context("spawn")
    return ProcessPoolExecutor(min(cores(), limit), spawn, torch.set_num_threads, (1,))


def run_job(options: Sampling) -> tuple[Sampling, list[str]]:
    """Write the same files as `cwdfm sample` would; also returns the samples."""
    trained = load_trained(options.model)
    solver = build_solver(options.solver, options.solver_options)
    job = Job(trained, options, solver, {}, length=sample_length(trained, options))
    request = job.request(list(range(options.n))) | {"batch_size": BATCH}
    samples = generate_samples(**request)
    write_samples(options.out, SampleFile(samples.texts, samples.tokens.tolist(), file_header(job)))
    if options.record:
        write_recording(job)
    return replace(options, record=False), samples.texts


def lead(sentences: Sequence[Path], recorded: Sequence[Path]) -> str:
    """The first part of the report: replays of text and molecules, then all sentences."""
    recordings = [Recording.load(recording_file(path)) for path in recorded]
    half = len(COMPARED)
    pages = {"A sentence with two holes": recordings[:half], "Molecules": recordings[half:]}
    frames = "".join(
        replay_frame(replay_page(shown, title), title) for title, shown in pages.items()
    )
    texts = []
    for path in sentences:
        file = read_samples(path)
        solver, steps, n = (file.options[name] for name in ("solver", "steps", "n"))
        command = f"cwdfm sample {TEXT_MODEL} --solver {solver} --steps {steps} --n {n}"
        command += f" --top-p {TOP_P} --template '{TEMPLATE}' --out {path.name}"
        title = escape(str(solver).capitalize())
        texts.append(f"<h3>{title}</h3>\n<p><code>{escape(command)}</code></p>{quotes(file.texts)}")
    return (
        f"<h2>Every step of a generation</h2>\n<p>{' and '.join(map(str.capitalize, COMPARED))} "
        f"with the same seed. Press Play, or point at a token.</p>\n"
        f"<script>{FIT_FRAMES}</script>\n{frames}\n"
        f"<h2>Text</h2>\n<p>{TEXT_MODEL} fills the holes in a sentence.</p>\n{''.join(texts)}\n"
        f"<h2>Molecules</h2>"
    )
