"""Where corpora lie: wrong places are told before any work."""

import glob
from functools import cache
from pathlib import Path

from cwdfm.data import CORPORA, DATASETS, find_corpus, load


@cache  # many jobs ask, and a pattern lists folders
def check_corpus(place: str) -> None:
    """Refuse a corpus that is neither known by name nor there."""
    if place in DATASETS or place in CORPORA or Path(place).exists():
        return
    if glob.has_magic(place):
        find_corpus(place, CORPORA)
    else:
        load(place)  # where nothing lies, it says so at once
