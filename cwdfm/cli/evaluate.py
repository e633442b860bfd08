"""`cwdfm eval FILE ... --out DIR`: score samples, draw pictures, write one HTML report."""

from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from cwdfm.cli.options import by_flags, parse
from cwdfm.errors import InputError
from cwdfm.report import TextSettings, check_folder, evaluate


@dataclass(frozen=True)
class Options:
    """Score files of samples together; those of one model, solver and step count are one set.

    What took long is kept in the folder: the same command goes on after an interruption, and with
    --force and one file more it computes no more than that file's scores.
    """

    # FILE ..., the first words: what `cwdfm sample` wrote, of text as .jsonl; of molecules also
    # files with one a line, or a table.
    files: tuple[Path, ...]
    # Folder for scores.json, table.md, pictures and report.html; None: the first file's -report.
    out: Path | None = None
    # What to compare with: a dataset, a file, prepared data, or none; auto is qm9 for molecules and
    # none for text, whose held-out windows MAUVE needs.
    data: str = "auto"
    fold_size: int = 1024  # molecules that are counted together
    force: bool = False  # write into a folder that is not empty
    text: TextSettings = field(default_factory=TextSettings)


def main(arguments: list[str]) -> None:
    """Parse, evaluate, print the table."""
    files = list(takewhile(lambda word: not word.startswith("-"), arguments))
    given = ["--files", *arguments] if files else arguments
    options = parse("eval FILE [FILE ...]", given, lambda missing: Options(missing))
    if not options.files:
        raise InputError("no files of samples; give at least one")
    first = options.files[0]
    out = options.out or first.with_name(f"{first.stem}-report")
    check_folder(out, force=options.force)
    with by_flags(Options, dtype="eval_dtype"):
        found = evaluate(
            options.files,
            out,
            data=options.data,
            fold_size=options.fold_size,
            text=options.text,
            say=lambda line: print(line, flush=True),
        )
    print("\n".join(found.table.lines()))
    for note in found.notes:
        print(f"note: {note}")
    print(f"written: {out / 'report.html'}")
