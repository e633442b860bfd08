"""`cwdfm eval FILE ... --out DIR`: score sample files and write a report."""

from dataclasses import dataclass, field
from pathlib import Path

from cwdfm.cli.options import by_flags, cores, parse, positional_first
from cwdfm.cli.progress import stages
from cwdfm.cli.streams import STREAM, standard_input
from cwdfm.errors import InputError, check_integer
from cwdfm.report import TextSettings, evaluate, report_folder


@dataclass(frozen=True)
class Options:
    """Score sample files and write a report. Files of one model, solver and step count are pooled.

    Slow scores are cached in the output folder. Run the same command again to resume after an
    interruption. To add files, list them too and pass --force: only the new files are scored.
    """

    # FILE ... (positional): files written by `cwdfm sample` (.jsonl for text). Molecules can also
    # be files with one SMILES per line, or tables. - reads JSON lines or SMILES from standard
    # input.
    files: tuple[str, ...]
    # Folder for scores.json, table.md, figures and report.html; default: NAME-report, where NAME is
    # the first file's name, or stdin-report.
    out: Path | None = None
    # Reference data: a dataset, a file, prepared data, or none. auto is qm9 for molecules and none
    # for text. MAUVE needs held-out text.
    data: str = "auto"
    column: str | None = None  # column to read from tables; default: `text` or `smiles`
    data_column: str | None = None  # column or field of the reference data, if it differs
    fold_size: int = 1024  # molecules per fold
    # Compare the distribution of the molecules with the reference data: FCD, SNN, fragments,
    # scaffolds, diversity, filters, QED, SA, logP and weight. --no-distribution reports only
    # validity, uniqueness and novelty.
    distribution: bool = True
    workers: int = 0  # processes for the distribution metrics; 0: one per core
    force: bool = False  # write into a folder that is not empty
    text: TextSettings = field(default_factory=TextSettings)


def main(arguments: list[str]) -> None:
    """Run the command."""
    argv = positional_first("files", arguments)
    options = parse("eval FILE [FILE ...]", argv, lambda missing: Options(missing))
    if not options.files:
        raise InputError("no sample files; specify at least one")
    first = Path("stdin" if options.files[0] == STREAM else options.files[0])
    out = options.out or first.with_name(f"{first.stem}-report")
    check_integer("workers", options.workers, 0)
    with (
        by_flags(Options, dtype="eval_dtype", revision="eval_revision"),
        report_folder(out, force=options.force),
        standard_input(options.files, ".smi") as files,
        stages() as progress,
    ):
        evaluation = evaluate(
            [Path(file) for file in files],
            out,
            data=options.data,
            column=options.column,
            data_column=options.data_column,
            fold_size=options.fold_size,
            distribution=options.distribution,
            workers=options.workers or cores(),
            text=options.text,
            log=lambda line: print(line, flush=True),
            progress=progress,
        )
    print(evaluation.table.text())
    if evaluation.details:
        print(f"\n{evaluation.details.text()}\n")
    for note in evaluation.notes:
        print(f"note: {note}")
    print(f"written: {out / 'report.html'}")
