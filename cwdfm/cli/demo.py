"""`cwdfm demo`: the models in the box, three solvers, a few step counts, one report."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import torch

from cwdfm.cli.options import cores, parse
from cwdfm.cli.progress import Progress
from cwdfm.cli.sample import head
from cwdfm.cli.sample_options import Options as Sampling
from cwdfm.errors import load_extra
from cwdfm.generation import generate
from cwdfm.metrics.molecule import score_molecules
from cwdfm.pretrained import load
from cwdfm.report import MoleculeReference, align, check_folder, evaluate, gather
from cwdfm.report.molecule_scores import COLUMNS, Scored, cells
from cwdfm.sample_file import SampleFile, write_samples

MODELS = ("qm9-uniform-small", "qm9-mask-small")
SOLVERS: tuple[Literal["euler", "neighbor", "entropy"], ...] = ("euler", "neighbor", "entropy")
WIDTHS = (8, 5, 11, 11, 11, 7)
BATCH = 64  # as fast as larger ones on a core
LOOK = """Open it in a browser. What to look at: the curves (more steps, more valid molecules; which
solver gains most), then the molecules themselves, then how they are made beside the data's.
Numbers behind ± are one standard deviation: differences below three of them may be chance."""


@dataclass(frozen=True)
class Options:
    """Sample the models in the box with three solvers and write a report: about 3 minutes."""

    out: Path = Path("demo")  # folder for the samples and the report; overwritten
    data: str = "qm9"  # what the molecules are compared with, as for `cwdfm eval`
    quick: bool = False  # a few samples and steps, to see that everything works


def main(arguments: list[str]) -> None:
    """Parse, sample, print the table as it grows, write the report."""
    options = parse("demo", arguments, lambda _: Options())
    check_folder(options.out, force=True)
    load_extra("matplotlib", "plot")  # for the report, which comes last
    steps, n = ((2, 4), 8) if options.quick else ((16, 32, 64), 128)
    plan = [
        Sampling(model=model, out=place(options.out, model, solver, k), n=n, steps=k, solver=solver)
        for model, solver, k in product(MODELS, SOLVERS, steps)
    ]
    reference = prepared(options.data)
    print(f"sampling: {len(plan)} times {n} molecules")
    print(align(COLUMNS, WIDTHS), flush=True)
    with (
        Progress("sampling", sum(cell.n * cell.steps for cell in plan)) as progress,
        workers(len(plan)) as pool,
    ):
        for i, cell in enumerate(pool.map(draw, plan)):
            if i == 0 or cell.model != plan[i - 1].model:
                progress.say(cell.model)
            progress.say(align(row(cell, reference), WIDTHS))
            progress.advance(cell.n * cell.steps)
    evaluate([cell.out for cell in plan], options.out, data=options.data, fold_size=n)
    print(f"\nwritten: {options.out / 'report.html'}\n{LOOK}")


def place(out: Path, model: str, solver: str, steps: int) -> Path:
    """The file for one cell of the table."""
    return out / "samples" / f"{model}-{solver}-{steps}.jsonl"


def prepared(data: str) -> MoleculeReference | None:
    """The data; the first time they are prepared, which takes a while and shows."""
    print(f"reading {data} (the first time about 20 seconds) ...", end="", flush=True)

    def tick(rows: int) -> None:
        if rows % 10_000 == 0:
            print(".", end="", flush=True)

    reference = MoleculeReference.load(data, tick)
    print(" done", flush=True)
    return reference


def workers(most: int) -> ProcessPoolExecutor:
    """A process of one thread for each core: threads of one process wait for each other, and the
    more so the busier the machine is."""
    return ProcessPoolExecutor(
        min(cores(), most),
        mp_context=get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )


def draw(cell: Sampling) -> Sampling:
    """Write the file that `cwdfm sample` with the same options would write."""
    trained = load(cell.model)
    solver = cell.build(trained.method)
    out = generate(trained, solver, n=cell.n, steps=cell.steps, batch_size=BATCH)
    tokens = out.tokens.tolist()
    texts = [trained.tokenizer.decode(row) for row in tokens]
    write_samples(cell.out, SampleFile(texts, tokens, head(trained, cell)))
    return cell


def row(cell: Sampling, reference: MoleculeReference | None) -> tuple[str, ...]:
    """The line of the table for one file."""
    (samples,) = gather([cell.out])
    known = reference.known if reference else None
    return cells(Scored(samples, score_molecules(samples.texts, known, fold_size=cell.n), None))
