"""`cwdfm demo`: sample the bundled models with several solvers and write a report."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from cwdfm.cli import demo_page
from cwdfm.cli.options import cores, parse
from cwdfm.cli.progress import Progress
from cwdfm.cli.sample import file_header, make_job, write_recording
from cwdfm.cli.sample_options import Options as Sampling
from cwdfm.data import load_reference
from cwdfm.errors import check_extras
from cwdfm.metrics.molecule import score_molecules
from cwdfm.pretrained.model import load_trained
from cwdfm.report import check_folder, evaluate
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.solver_config import SOLVERS as NAMED_SOLVERS

MODELS = ("qm9-uniform-small", "qm9-mask-small")
TEXT_MODEL, TEMPLATE = "novels-small", "The [12] of the [3] was closed."
TOP_P = 0.9  # of the text, which otherwise contains many words that do not exist
DRUG_MODEL = "moses-uniform-small"
GIBBS = {"tokens": 4, "select": "unlikely", "begin": 0.3}  # as in the card of DRUG_MODEL
RESAMPLE = 40
SOLVERS = ("euler", "neighbor", "entropy")
COMPARED = SOLVERS[:2]  # shown side by side in the replays
NEEDED = {"matplotlib": "plot", "rdkit": "molecules", "tokenizers": "text", "tyro": "cli"}
BATCH = 64  # larger batches are not faster on one core
HINT = """Open the report in a browser and play the generations first. Then look at the curves
(validity against the number of steps), at the molecules, and at how their features compare with the
data. ± is one standard deviation; differences below three standard deviations may be chance."""


@dataclass(frozen=True)
class Options:
    """Sample the bundled models and write a report (about 2 minutes)."""

    out: Path = Path("demo")  # output folder; existing files are overwritten
    data: str = "qm9"  # reference data, as in `cwdfm eval --data`
    quick: bool = False  # few samples and steps: a quick check of the installation


@dataclass(frozen=True)
class Size:
    """The numbers of samples and steps."""

    steps: tuple[int, ...]  # of the small molecules; text takes the last number of steps
    molecules: int  # per model, solver and number of steps
    texts: int  # per solver
    drug_like: int
    drug_like_steps: int


FULL = Size((8, 16, 32), molecules=64, texts=8, drug_like=24, drug_like_steps=64)
QUICK = Size((2, 4), molecules=8, texts=2, drug_like=4, drug_like_steps=4)


def main(arguments: list[str]) -> None:
    """Run the command."""
    check_extras("cwdfm demo", NEEDED)  # check before sampling, because the report is written last
    options = parse("demo", arguments, lambda _: Options())
    check_folder(options.out, force=True)
    size, folder = QUICK if options.quick else FULL, options.out / "samples"
    molecules, text = molecule_jobs(size, folder), text_jobs(size, folder)
    drug_like = drug_like_job(size, folder)
    print(
        f"sampling {size.molecules} molecules for each of {len(molecules)} settings, "
        f"{size.drug_like} drug-like molecules, and some text",
        flush=True,
    )
    run_jobs([*molecules, *text, drug_like], options.data)
    last = [job for job in molecules if job.steps == size.steps[-1]]
    evaluation = evaluate(
        [job.out for job in molecules],
        options.out,
        data=options.data,
        fold_size=size.molecules,
        distribution=False,
        title=f"Demo: {', '.join((TEXT_MODEL, *MODELS, DRUG_MODEL))}",
        lead=demo_page.lead(text, last, drug_like, options.out),
    )
    print(f"\n{evaluation.table.text()}\n\nwritten: {options.out / 'report.html'}\n{HINT}")


def molecule_jobs(size: Size, folder: Path) -> list[Sampling]:
    """Sample small molecules with every model, solver and number of steps."""
    jobs = []
    for model, solver, steps in product(MODELS, SOLVERS, size.steps):
        job = job_options(folder, model, solver, steps, size.molecules)
        recorded = model == MODELS[1] and solver in COMPARED and steps == size.steps[-1]
        jobs.append(replace(job, record=recorded))
    return jobs


def text_jobs(size: Size, folder: Path) -> list[Sampling]:
    """Fill in the template with every solver."""
    jobs = []
    for solver in SOLVERS:
        job = job_options(folder, TEXT_MODEL, solver, size.steps[-1], size.texts, top_p=TOP_P)
        jobs.append(replace(job, template=TEMPLATE, record=solver in COMPARED))
    return jobs


def drug_like_job(size: Size, folder: Path) -> Sampling:
    """Sample drug-like molecules with the settings recommended in the model card."""
    job = job_options(folder, DRUG_MODEL, "gibbs", size.drug_like_steps, size.drug_like, **GIBBS)
    return replace(job, grid="kappa", resample=RESAMPLE)


def job_options(
    folder: Path, model: str, solver: str, steps: int, n: int, **settings: Any
) -> Sampling:
    """The options of `cwdfm sample` for one sample file."""
    out = folder / f"{model}-{solver}-{steps}.jsonl"
    config = NAMED_SOLVERS[solver].config(**settings)
    return Sampling(model=model, out=out, n=n, steps=steps, solver=solver, solver_options=config)


def run_jobs(jobs: Sequence[Sampling], data: str) -> None:
    """Write all sample files and read the reference data, on all cores."""
    jobs = sorted(jobs, key=cost, reverse=True)  # so that cores finish together
    with (
        Progress("sampling", sum(map(cost, jobs))) as progress,
        workers(1 + len(jobs)) as pool,
    ):
        # The reference takes half a minute the first time. The evaluation reads it from the cache.
        prepared = pool.submit(prepare_reference, data)
        for job, samples in completed(pool, jobs):
            line = f"{job.model}, {job.solver}, {job.steps} steps"
            if job.model != TEXT_MODEL:
                line += f": {score_molecules(samples, None, fold_size=job.n)}"
            progress.say(line)
            progress.advance(cost(job))
            if prepared.done() and prepared.exception():  # raised by result() below
                break
        prepared.result()


def cost(job: Sampling) -> int:
    """The number of steps and rounds of resampling of all samples."""
    return job.n * (job.steps + job.resample)


def completed(
    pool: ProcessPoolExecutor, jobs: Sequence[Sampling]
) -> Iterator[tuple[Sampling, list[str]]]:
    """Run jobs, and yield each with its samples in the order of completion."""
    futures = [pool.submit(run_job, job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def prepare_reference(data: str) -> None:
    """Read the reference data, which puts it in the cache."""
    if data != "none":
        load_reference(data)


def workers(limit: int) -> ProcessPoolExecutor:
    """Start one single-threaded process per core: faster than one process with many threads."""
    spawn = get_context("spawn")
    return ProcessPoolExecutor(min(cores(), limit), spawn, torch.set_num_threads, (1,))


def run_job(options: Sampling) -> tuple[Sampling, list[str]]:
    """Write the same files as `cwdfm sample` would; also returns the samples."""
    job = make_job(load_trained(options.model), options)
    samples = job.sampler(**job.request(list(range(options.n))) | {"batch_size": BATCH})
    write_samples(options.out, SampleFile(samples.texts, samples.tokens.tolist(), file_header(job)))
    if options.record:
        write_recording(job)
    return options, samples.texts
