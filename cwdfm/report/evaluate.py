"""`evaluate`: score sample files and write the report folder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cwdfm.data import (
    CORPORA,
    ByteTokenizer,
    CharacterTokenizer,
    FastTokenizer,
    RowTokenizer,
    SmilesTokenizer,
    is_prepared,
)
from cwdfm.data.readers import Progress, file_type, is_table
from cwdfm.distributed import output
from cwdfm.errors import InputError, check_integer
from cwdfm.files import MARKER, check_output_folder, replacing, write_errors, write_json
from cwdfm.provenance import provenance
from cwdfm.report.molecules import evaluate_molecules
from cwdfm.report.page import Evaluation, page
from cwdfm.report.sample_set import TEXT, SampleSet, gather, kind_of, sampling_notes
from cwdfm.report.text import evaluate_text
from cwdfm.report.text_data import TextSettings
from cwdfm.report.text_scores import CACHE

MOLECULES = SmilesTokenizer.kind
TEXTS = (ByteTokenizer, CharacterTokenizer, FastTokenizer, RowTokenizer)
KINDS = (MOLECULES, *(tokenizer.kind for tokenizer in TEXTS), TEXT)


def evaluate(
    paths: Sequence[Path],
    out: Path,
    *,
    data: str = "auto",
    column: str | None = None,
    data_column: str | None = None,
    fold_size: int = 1024,
    distribution: bool = True,
    workers: int = 1,
    text: TextSettings | None = None,
    log: Callable[[str], object] = lambda _: None,
    progress: Progress = lambda *_: None,
    title: str | None = None,
    lead: str = "",
) -> Evaluation:
    """Evaluate sample files and write scores.json, table.md, figures and report.html into `out`.

    - `data`: the reference data, or "none"; "auto" is QM9 for molecules and none for text.
    - `column`: the column of tables, for both samples and data; None selects `text` or `smiles`.
    - `data_column`: the column of the data, if it differs.
    - `fold_size`: for molecules, samples per fold.
    - `distribution`: for molecules, also compute the metrics of `cwdfm.metrics.distribution`.
    - `workers`: number of processes for these metrics.
    - `text`: settings of the text metrics.
    - `log`: called with messages.
    - `progress`: called with the current stage, the units done, and the total if known.
    - `title`, `lead`: the title of the report, and HTML to show above the table.

    Input errors are raised before any score is computed.
    """
    if not paths:
        raise InputError("no sample files; specify at least one")
    check_integer("fold_size", fold_size)
    reference_column = data_column or (column if _has_columns(Path(data)) else None)
    if column and not reference_column and not any(map(_has_columns, paths)):
        raise InputError(
            f"column={column!r} applies to tables, but neither {paths[0]} nor the data {data!r} is "
            f"a table; omit it",
            fields=("column",),
        )
    sets, settings = gather(paths, column), text or TextSettings()
    kind = sample_kind(sets, data, settings)
    with write_errors(out):
        if kind == MOLECULES:
            evaluation = evaluate_molecules(
                sets,
                out,
                data=data,
                column=reference_column,
                fold_size=fold_size,
                distribution=distribution,
                workers=workers,
                progress=progress,
            )
        else:
            evaluation = evaluate_text(
                sets, out, data=data, column=reference_column, settings=settings, log=log
            )
        notes = (*evaluation.notes, *sampling_notes(sets))
        evaluation = replace(evaluation, notes=notes, title=title or evaluation.title, lead=lead)
        write(evaluation, sets, out)
    return evaluation


def _has_columns(path: Path) -> bool:
    """Whether a file is a table with named columns."""
    return is_table(path) or file_type(path) == ".parquet"


def sample_kind(sets: Sequence[SampleSet], data: str, settings: TextSettings) -> str:
    """The tokenizer kind of the samples; for files of unknown kind, the options decide."""
    changed = settings.changed()
    is_text = bool(changed) or data in CORPORA or is_prepared(Path(data))
    kind, path = kind_of(sets, TEXT if is_text else MOLECULES), sets[0].files[0].path
    if kind == MOLECULES and changed:
        options = ", ".join(f"{name}='{value}'" for name, value in changed.items())
        raise InputError(
            f"{path} contains molecules, but {options} applies to text only; omit it, or pass text "
            f"as a .jsonl file written by `cwdfm sample`",
            fields=tuple(changed),
        )
    if kind not in KINDS:
        raise InputError(
            f"{path} contains samples of kind {kind!r}; supported: {', '.join(map(repr, KINDS))}"
        )
    return kind


def write(evaluation: Evaluation, sets: Sequence[SampleSet], out: Path) -> None:
    """Write the report next to its figures, which must already exist."""
    versions = provenance()
    out.mkdir(parents=True, exist_ok=True)
    notes = {"provenance": versions, "notes": list(evaluation.notes)}
    write_json(out / "scores.json", notes | evaluation.scores)
    files = [file for sample_set in sets for file in sample_set.files]
    tables = [table.markdown() for table in (evaluation.table, evaluation.details) if table]
    pages = {
        "table.md": "\n".join(tables),
        "report.html": page(evaluation, files, evaluation.settings | versions, out),
    }
    for name, content in pages.items():
        with replacing(out / name) as temporary:
            temporary.write_text(content, encoding="utf-8")


@contextmanager
def report_folder(out: Path, *, force: bool) -> Iterator[None]:
    """Lock the folder of a report, and mark it as unfinished until the report is complete.

    The folder must be empty or contain an unfinished report, unless `force` is set.
    """
    with output(out, lambda: check_folder(out, force=force)):
        created, finished = not out.exists(), False
        with write_errors(out):
            out.mkdir(exist_ok=True)
            (out / MARKER).touch()
        try:
            yield
            finished = True
        finally:
            if finished or not _files(out):
                (out / MARKER).unlink(missing_ok=True)
            if created:
                with suppress(OSError):  # not empty
                    out.rmdir()


def check_folder(out: Path, *, force: bool) -> None:
    """Raise an error if files in the folder would be overwritten; cached scores are allowed."""
    check_output_folder(out)
    if out.is_dir() and not force and not (out / MARKER).exists() and _files(out):
        raise InputError(
            f"{out} is not empty; choose a different folder, or set force=True to write into it",
            fields=("force",),
        )


def _files(out: Path) -> list[Path]:
    """The files in the folder of a report, other than cached scores."""
    return [path for path in out.iterdir() if path.name not in (CACHE, MARKER)]
