"""`cwdfm demo`: sample the bundled models with three solvers and write a report."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import torch

from cwdfm.cli.options import cores, parse
from cwdfm.cli.progress import Progress
from cwdfm.cli.sample import Job, file_header
from cwdfm.cli.sample_options import Options as Sampling
from cwdfm.errors import load_extra
from cwdfm.generation import generate
from cwdfm.metrics.molecule import score_molecules
from cwdfm.pretrained.model import load_trained
from cwdfm.report import MoleculeReference, check_folder, evaluate
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.solver_config import SOLVERS as NAMED_SOLVERS
from cwdfm.solver_config import build_solver

MODELS = ("qm9-uniform-small", "qm9-mask-small")
SOLVERS: tuple[Literal["euler", "neighbor", "entropy"], ...] = ("euler", "neighbor", "entropy")
BATCH = 64  # larger batches are not faster on one core
HINT = """Open it in a browser. Look at the curves first (validity against the number of steps),
then at the molecules and at their features compared with the data. ± is one standard deviation;
differences below three standard deviations may be due to chance."""


@dataclass(frozen=True)
class Options:
    """Sample the bundled models with three solvers and write a report (about 3 minutes)."""

    out: Path = Path("demo")  # output folder; existing files are overwritten
    data: str = "qm9"  # data to compare with, as in `cwdfm eval`
    quick: bool = False  # few samples and steps, to check the installation


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = parse("demo", arguments, lambda _: Options())
    check_folder(options.out, force=True)
    load_extra("matplotlib", "plot")  # fail before the work: the report comes last
    steps, n = ((2, 4), 8) if options.quick else ((16, 32, 64), 128)
    plan = [
        Sampling(
            model=model,
            out=options.out / "samples" / f"{model}-{solver}-{k}.jsonl",
            n=n,
            steps=k,
            solver=solver,
            solver_options=NAMED_SOLVERS[solver].config(),
        )
        for model, solver, k in product(MODELS, SOLVERS, steps)
    ]
    reference = load_reference(options.data)
    training = reference.training if reference else None
    print(f"sampling {n} molecules for each of {len(plan)} settings", flush=True)
    with (
        Progress("sampling", sum(cell.n * cell.steps for cell in plan)) as progress,
        workers(len(plan)) as pool,
    ):
        for cell, texts in pool.map(draw, plan):
            scores = score_molecules(texts, training, fold_size=cell.n)
            progress.say(f"{cell.model}, {cell.solver}, {cell.steps} steps: {scores}")
            progress.advance(cell.n * cell.steps)
    files = [cell.out for cell in plan]
    evaluation = evaluate(files, options.out, data=options.data, fold_size=n, distribution=False)
    print(f"\n{evaluation.table.text()}\n\nwritten: {options.out / 'report.html'}\n{HINT}")


def load_reference(data: str) -> MoleculeReference | None:
    """Load the data and show progress, since preparing it for the first time takes a while."""
    print(f"reading {data} (about 20 seconds the first time) ...", end="", flush=True)

    def tick(rows: int) -> None:
        if rows % 10_000 == 0:
            print(".", end="", flush=True)

    reference = MoleculeReference.load(data, tick)
    print(" done", flush=True)
    return reference


def workers(limit: int) -> ProcessPoolExecutor:
    """One single-threaded process per core, which is faster than one process with many threads."""
    spawn = get_context("spawn")
    return ProcessPoolExecutor(min(cores(), limit), spawn, torch.set_num_threads, (1,))


def draw(cell: Sampling) -> tuple[Sampling, list[str]]:
    """Write the same file as `cwdfm sample` with these options; returns the samples too."""
    trained = load_trained(cell.model)
    solver = build_solver(cell.solver, cell.solver_options)
    job = Job(trained, cell, solver, {}, length=trained.length)
    out = generate(trained, solver, n=cell.n, steps=cell.steps, batch_size=BATCH)
    tokens = out.tokens.tolist()
    texts = [trained.tokenizer.decode(row) for row in tokens]
    write_samples(cell.out, SampleFile(texts, tokens, file_header(job)))
    return cell, texts
