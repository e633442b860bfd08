"""Where corpora and judges lie: wrong places are told before any work."""

import glob
from functools import cache
from pathlib import Path

from cwdfm.data import CORPORA, DATASETS, find_corpus, load
from cwdfm.metric.hub import whereabouts


@cache  # many jobs ask, and a pattern lists folders
def check_corpus(place: str) -> None:
    """Refuse a corpus that is neither known by name nor there."""
    if place in DATASETS or place in CORPORA or Path(place).exists():
        return
    if glob.has_magic(place):
        find_corpus(place, CORPORA)
    else:
        load(place)  # where nothing lies, it says so at once


@cache
def check_judge(place: str) -> None:
    """Refuse a judge's place where none lies. What may be a hub name is let through."""
    whereabouts(place)
