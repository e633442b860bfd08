"""Where corpora lie: wrong places are told before any work."""

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
    load,
    reads_text,
)
from cwdfm.data.molecule_loader import SPLIT_SEED
from cwdfm.data.readers import is_table, kind_of
from cwdfm.data.smiles_file import LINES
from cwdfm.data.text import is_prepared
from cwdfm.data.text.text8 import Text8
from cwdfm.errors import InputError, NotInstalled

_LARGE = 1 << 20  # bytes of a file, beyond which it is taken to hold something
_MANY = 1000  # lines of a file of molecules, likewise
_LONG = 1000  # tokens a molecule, where the length is not known


@cache  # many jobs ask, and a pattern lists folders
def check_corpus(place: str, *, text: bool, length: int | None = None) -> None:
    """Refuse a corpus that is neither known by name nor there, of the other kind, or empty.

    One that is prepared has a length, which is refused if it is another than `length`.
    """
    path, named = Path(place), place in DATASETS or place in CORPORA
    raw = path.is_dir() and not is_prepared(path)
    if not named and (raw or (glob.has_magic(place) and not path.exists())):
        find_corpus(place, CORPORA)  # which refuses one without text files
    elif not named and not path.exists():
        load(place)  # where nothing lies, it says so at once
    if reads_text(place, "gpt2" if text else None) != text:
        if text and path.is_file() and not _of_molecules(path):
            find_corpus(place, CORPORA)  # which refuses endings that it does not know
        kinds = ("molecules", "text")
        raise InputError(
            f"{place!r} is read as {kinds[not text]}, and {kinds[text]} should be there; look at "
            f"which of --molecules, --text and --tests names it"
        )
    if is_prepared(path) or path.suffix == ".npz":
        if length is not None:
            load(place, length=length)
    elif text and not named:
        _check_text(TextFiles.of(place))
    elif not named:
        _check_molecules(SmilesFile.of(path), length)  # which refuses endings that it does not know


def is_on_hub(place: str) -> bool:
    """Whether this is a corpus by name that is downloaded."""
    return isinstance(CORPORA.get(place), HubCorpus | Text8) and not is_prepared(Path(place))


def _of_molecules(path: Path) -> bool:
    """Whether a file's ending is one of molecules."""
    return path.suffix == ".npz" or is_table(path) or kind_of(path) in LINES


def _check_text(files: TextFiles) -> None:
    """Refuse files that hold nothing but blanks; large ones are not looked into."""
    if any(path.stat().st_size > _LARGE for path in files.paths):
        return
    lines = replace(files, unit="lines").documents(None, None)  # read no further than the first
    with suppress(NotInstalled):  # which the job tells
        if not any(line.text.strip() for line in lines):
            raise InputError(f"{files.name} holds no text: all of it is blank; give another corpus")


def _check_molecules(file: SmilesFile, length: int | None) -> None:
    """Refuse a file without molecules, if it has few lines."""
    with suppress(NotInstalled):  # which the job tells
        if len(list(file.rows(_MANY))) < _MANY:
            file.prepare(length=length or _LONG, limit=None, seed=SPLIT_SEED)  # which refuses it
