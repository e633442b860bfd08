"""Checks of corpora before any task starts."""

import glob
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from cwdfm.data import (
    CORPORA,
    DATASETS,
    HubCorpus,
    SmilesFile,
    TextFiles,
    find_corpus,
    is_prepared,
    load,
    reads_text,
)
from cwdfm.data.molecule_files import LINE_SUFFIXES
from cwdfm.data.molecules import MoleculeOptions
from cwdfm.data.readers import file_type, is_table
from cwdfm.errors import InputError, NotInstalled

_LARGE_FILE = 1 << 20  # bytes; larger text files are assumed not to be blank
_MANY_LINES = 1000  # longer files are assumed to contain molecules
_LONG = 1000  # tokens per molecule if the length is unknown


@cache  # many tasks check the same corpus, and a glob pattern lists folders
def check_corpus(path: str, *, text: bool, length: int | None = None) -> None:
    """Raise an error if a corpus is missing, empty, or of the wrong kind or length.

    The length is checked for corpora that were prepared with `cwdfm prepare`.
    """
    file, named = Path(path), path in DATASETS or path in CORPORA
    is_folder = file.is_dir() and not is_prepared(file)
    if not named and (is_folder or (glob.has_magic(path) and not file.exists())):
        find_corpus(path)  # raises if there are no text files
    elif not named and not file.exists():
        load(path)  # raises
    if reads_text(path, "gpt2" if text else None) != text:
        if text and file.is_file() and not _is_molecule_file(file):
            find_corpus(path)  # raises for unknown suffixes
        kinds = ("molecules", "text")
        raise InputError(
            f"{path!r} is read as {kinds[not text]}, but a corpus of {kinds[text]} is required; "
            f"check --molecules, --text and --tests"
        )
    if is_prepared(file) or file.suffix == ".npz":
        if length is not None:
            load(path, length=length)
    elif text and not named:
        _check_text(TextFiles.of(path))
    elif not named:
        _check_molecules(SmilesFile.of(file), length)


def is_on_hub(path: str) -> bool:
    """Whether this is the name of a corpus that has to be downloaded."""
    return isinstance(CORPORA.get(path), HubCorpus) and not is_prepared(Path(path))


def _is_molecule_file(path: Path) -> bool:
    return path.suffix == ".npz" or is_table(path) or file_type(path) in LINE_SUFFIXES


def _check_text(files: TextFiles) -> None:
    """Raise an error if all files are blank. Large files are not read."""
    if any(path.stat().st_size > _LARGE_FILE for path in files.paths):
        return
    lines = replace(files, unit="lines").documents(None, None)
    with suppress(NotInstalled):  # the task itself reports it
        if not any(line.text.strip() for line in lines):
            raise InputError(f"{files.name} contains no text; choose a different corpus")


def _check_molecules(file: SmilesFile, length: int | None) -> None:
    """Raise an error if a short file contains no molecules."""
    with suppress(NotInstalled):  # the task itself reports it
        if len(list(file.rows(_MANY_LINES))) < _MANY_LINES:
            file.prepare(MoleculeOptions(length or _LONG))  # raises
