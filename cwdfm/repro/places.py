"""Where corpora lie: wrong places are told before any work."""

import glob
from functools import cache
from pathlib import Path

from cwdfm.data import CORPORA, DATASETS, find_corpus, load, reads_text
from cwdfm.errors import InputError


@cache  # many jobs ask, and a pattern lists folders
def check_corpus(place: str, *, text: bool) -> None:
    """Refuse a corpus that is neither known by name nor there, or of the other kind."""
    if not (place in DATASETS or place in CORPORA or Path(place).exists()):
        if glob.has_magic(place):
            find_corpus(place, CORPORA)
        else:
            load(place)  # where nothing lies, it says so at once
    if reads_text(place, "gpt2" if text else None) != text:
        kinds = ("molecules", "text")
        raise InputError(
            f"{place!r} is read as {kinds[not text]}, and {kinds[text]} should be there; look at "
            f"which of --molecules, --text and --tests names it"
        )
