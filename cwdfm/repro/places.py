"""Where corpora lie: wrong places are told before any work."""

import glob
from functools import cache
from pathlib import Path

from cwdfm.data import CORPORA, DATASETS, SmilesFile, find_corpus, load, reads_text
from cwdfm.data.reading import is_table, kind_of
from cwdfm.data.smiles_file import LINES
from cwdfm.data.text import is_prepared
from cwdfm.errors import InputError


@cache  # many jobs ask, and a pattern lists folders
def check_corpus(place: str, *, text: bool, length: int | None = None) -> None:
    """Refuse a corpus that is neither known by name nor there, or of the other kind.

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
    if not text and not named and path.suffix != ".npz":
        SmilesFile.of(path)  # which refuses endings that it does not know
    if length is not None and (is_prepared(path) or path.suffix == ".npz"):
        load(place, length=length)


def _of_molecules(path: Path) -> bool:
    """Whether a file's ending is one of molecules."""
    return path.suffix == ".npz" or is_table(path) or kind_of(path) in LINES
