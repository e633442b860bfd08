"""What a command line of `python -m experiments run` says: experiments and options; what is none is refused."""

import itertools
import math
import os
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from cwdfm.cli.options import parse
from cwdfm.errors import InputError
from experiments.catalog import EXPERIMENTS
from experiments.catalog.perplexity import TEST_CORPORA
from experiments.jobs import Corpus
from experiments.listing import last_of, no_experiment, of_the_paper
from experiments.scale import Scale

LONGEST_WAIT = 10**6  # seconds: what is much longer, no clock sleeps


@dataclass(frozen=True)
class Options:
    """Make tables and figures of the paper. What is done is kept; interrupted, it goes on.

    Several processes (--workers) or machines may work in one folder at a time.
    """

    out: Path  # folder for the jobs, and in OUT/SCALE for the tables made of them
    scale: Scale = "smoke"  # smoke: minutes on a CPU; small: one GPU; paper: the paper's own
    molecules: str = "qm9"  # corpus of the experiments on molecules: a name, or what was prepared
    text: str | None = None  # corpus of text: a prepared folder, a file, a name; smoke has its own
    eval_model: str | None = (
        None  # of text: a causal LM by hub name, a folder, a .gguf; smoke: a toy
    )
    tests: tuple[str, ...] = ()  # of perplexity: NAME=PLACE of its test corpora, or NAME alone
    corpora: tuple[Corpus, ...] = ()  # of experiments on both, one alone; none named: both
    only: tuple[str, ...] = ()  # kinds of jobs to do here: train, sample, text, molecules, ...
    wait: float = 0.0  # seconds after which to look again for jobs that others are at; 0: do not
    limit: float = math.inf  # seconds after which no job is begun
    workers: int = 1  # processes that do jobs side by side; 8 share one large GPU at small scale
    dry_run: bool = False  # tell what would be done, what is there, lacks here and costs; no more
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...; auto deals workers over all GPUs


def understood(arguments: list[str]) -> tuple[list[str], list[str], Options]:
    """The experiments that a command line names, its flags, and what they say."""
    given = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    names = chosen(given, before=arguments[0])
    flags = arguments[len(given) :]
    verb = f"repro {' '.join(given)}"
    return names, flags, parse(verb, flags, lambda missing: Options(missing))


def chosen(given: list[str], before: str) -> list[str]:
    """The experiments that are named, each once."""
    if not given:
        raise InputError(
            f"{before} stands before the experiment's name; give that first, one of `python -m experiments run "
            f"list`"
        )
    for word in given:
        if told := no_experiment(word):
            raise InputError(f"{word} is no experiment: {told}; see `python -m experiments list`")
    names = [name for word in given for name in of_the_paper(word) or [word]]
    known = (*EXPERIMENTS, "all")
    if wrong := [name for name in names if name not in known]:
        if last := last_of(wrong[0]):
            raise InputError(
                f"unknown experiment {wrong[0]!r}; the paper's last is {last}, and `python -m experiments run "
                f"list` has them all"
            )
        word = wrong[0].lower()
        begun = [name for name in known if name.startswith(word)]
        near = begun or get_close_matches(word, known)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(
            f"unknown experiment {wrong[0]!r}; {meant}`python -m experiments list` has them all"
        )
    return list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))


def places(tests: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Test corpora and where they lie, from NAME=PLACE or NAME alone."""
    parts = [test.partition("=") for test in tests]
    if wrong := [name for name, _, _ in parts if name not in TEST_CORPORA]:
        known = ", ".join(TEST_CORPORA)
        raise InputError(f"--tests {' '.join(wrong)}: no such test corpus; there are {known}")
    for name, equals, place in parts:
        if equals and not place:
            raise InputError(f"--tests {name}= names no place; give one, or {name} alone")
        if [other for other, _, _ in parts].count(name) > 1:
            raise InputError(f"--tests names {name} more than once; give one place for it")
    return tuple((name, place or name) for name, _, place in parts)


def check_seconds(options: Options) -> None:
    """Refuse times that are none."""
    if not 0 <= options.wait <= LONGEST_WAIT:
        raise InputError(
            f"--wait {options.wait:g}: give a finite number of seconds, from 0 to "
            f"{LONGEST_WAIT:,}; 0 is not to look again"
        )
    if not options.limit >= 0:  # NaN is not, either
        raise InputError(
            f"--limit {options.limit:g}: give a number of seconds, 0 or more; leave it out for no "
            f"limit"
        )


def check_alone(workers: int) -> None:
    """Refuse a group of processes, which would wait for each other in different jobs."""
    if workers < 1:
        raise InputError(
            f"--workers {workers}: give how many processes shall work side by side, 1 or more"
        )
    if sys.platform == "win32" and workers > 1:
        raise InputError(
            f"--workers {workers}: jobs have no locks on Windows, and each would be done {workers} "
            f"times; leave --workers out"
        )
    group = "WORLD_SIZE" if os.environ.get("WORLD_SIZE", "1") != "1" else "RANK"
    if group == "WORLD_SIZE" or (workers > 1 and group in os.environ):
        raise InputError(
            f"{group} is {os.environ[group]}: processes share the work of `python -m experiments run` by its "
            f"folder, not by torchrun; start it once and alone, with --workers 2 for two processes "
            f"and one --out for all machines"
        )
