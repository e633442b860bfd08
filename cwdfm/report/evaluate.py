"""From files of samples to a folder with the report: the one place that asks what they are."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cwdfm.data import ByteTokenizer, CharacterTokenizer, FastTokenizer, SmilesTokenizer
from cwdfm.data.text import CORPORA, is_prepared
from cwdfm.errors import InputError, check_integer
from cwdfm.files import check_output_folder, replacing, write_advice, write_json
from cwdfm.provenance import provenance
from cwdfm.report.evaluation import Evaluation
from cwdfm.report.molecules import evaluate_molecules
from cwdfm.report.page import page
from cwdfm.report.sample_set import TEXT, SampleSet, gather, given_tokens, kind_of
from cwdfm.report.score_cache import CELLS
from cwdfm.report.settings import AUTO, Settings, TextSettings
from cwdfm.report.text import evaluate_text

# What is done with the sets; pictures go into the folder.
Evaluator = Callable[[Sequence[SampleSet], Path, Settings], Evaluation]

# By the kind of tokenizer that the head of a file names, or that is asked for.
EVALUATORS: dict[str, Evaluator] = {
    SmilesTokenizer.kind: evaluate_molecules,
    ByteTokenizer.kind: evaluate_text,
    CharacterTokenizer.kind: evaluate_text,
    FastTokenizer.kind: evaluate_text,
    TEXT: evaluate_text,
}


def evaluate(
    paths: Sequence[Path],
    out: Path,
    *,
    data: str = AUTO,
    fold_size: int = 1024,
    text: TextSettings | None = None,
    say: Callable[[str], object] | None = None,
) -> Evaluation:
    """Evaluate files of samples and write scores.json, table.md, pictures and report.html.

    data: to compare with, or "none"; "auto" is QM9 for molecules and none for text.
    fold_size: how many molecules are counted together.
    text: how text is judged.
    say: hears of work that takes a while.

    What is wrong with the files is said before any work is done.
    """
    if not paths:
        raise InputError("no files of samples; give at least one")
    check_integer("fold_size", fold_size)
    sets = gather(paths)
    settings = Settings(data, fold_size)
    if text is not None:
        settings = replace(settings, text=text)
    if say is not None:
        settings = replace(settings, say=say)
    evaluator = _evaluator(sets, settings)
    try:
        evaluation = evaluator(sets, out, settings)
        notes = (*evaluation.notes, *given_tokens(sets))
        evaluation = replace(evaluation, notes=notes)
        write(evaluation, sets, out)
    except OSError as error:
        raise InputError(
            f"cannot write the report into {out}: {error.strerror or error}; {write_advice(error)}"
        ) from error
    return evaluation


def _evaluator(sets: Sequence[SampleSet], settings: Settings) -> Evaluator:
    flags = settings.text.flags()
    text = bool(flags) or settings.data in CORPORA or is_prepared(Path(settings.data))
    kind = kind_of(sets, TEXT if text else SmilesTokenizer.kind)
    if kind == SmilesTokenizer.kind and flags:
        raise InputError(
            f"{', '.join(flags)}: for samples of text, and {sets[0].files[0].path} holds "
            f"molecules; leave it out, or give text as a .jsonl file that `cwdfm sample` wrote"
        )
    if kind not in EVALUATORS:
        raise InputError(
            f"{sets[0].files[0].path} holds samples of kind {kind!r}; there is an evaluation for "
            f"{', '.join(map(repr, EVALUATORS))}"
        )
    return EVALUATORS[kind]


def write(evaluation: Evaluation, sets: Sequence[SampleSet], out: Path) -> None:
    """The files of a report, beside pictures that are there already."""
    origin = provenance()
    out.mkdir(parents=True, exist_ok=True)
    write_json(
        out / "scores.json",
        {"provenance": origin, "notes": list(evaluation.notes)} | evaluation.scores,
    )
    files = [file for found in sets for file in found.files]
    pages = {
        "table.md": evaluation.table.markdown(),
        "report.html": page(evaluation, files, evaluation.settings | origin, out),
    }
    for name, text in pages.items():
        with replacing(out / name) as part:
            part.write_text(text, encoding="utf-8")


def check_folder(out: Path, *, force: bool) -> None:
    """Refuse a folder in which something would be overwritten; scores on their way are welcome."""
    check_output_folder(out)
    if out.is_dir() and any(path.name != CELLS for path in out.iterdir()) and not force:
        raise InputError(f"{out} is not empty; give another folder, or --force to write into it")
