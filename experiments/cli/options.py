"""The command line of `python -m experiments run`."""

import itertools
import math
import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from cwdfm.cli.options import parse
from cwdfm.errors import InputError
from experiments.catalog import EXPERIMENTS
from experiments.catalog.perplexity import TEST_CORPORA
from experiments.cli import PROGRAM
from experiments.listing import by_paper_number, explain_missing, last_in_paper
from experiments.scale import Scale
from experiments.tasks.base import Corpus


@dataclass(frozen=True)
class Options:
    """Run experiments and write their tables and figures.

    Finished tasks are never repeated, and an interrupted command resumes where it stopped.
    """

    out: Path  # output folder: results in OUT/jobs, tables and figures in OUT/SCALE
    scale: Scale = "smoke"  # smoke: minutes on a CPU; small: one GPU; paper: the paper's own sizes
    molecules: str = "qm9"  # molecule corpus: a name, or the path of a file or a prepared folder
    text: str | None = None  # text corpus: a name or path; smoke scale has a default
    eval_model: str | None = None  # evaluator LM: a hub name or path; smoke scale has a toy LM
    tests: tuple[str, ...] = ()  # test corpora of `perplexity`: NAME=PATH, or NAME to download it
    corpora: tuple[Corpus, ...] = ()  # run only the tasks on these corpora
    workers: int = 1  # worker processes; 8 can share one large GPU; 0 runs in this process
    config: Path | None = None  # Python file with a Parsl configuration, e.g. for SLURM
    time_limit: float = math.inf  # seconds after which no task starts; 0 only writes tables
    dry_run: bool = False  # print what would run, and stop
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...; auto distributes workers over all GPUs


def parse_command(arguments: list[str]) -> tuple[list[str], list[str], Options]:
    """The names of experiments, the remaining flags, and the options they set."""
    names_given = list(
        itertools.takewhile(lambda argument: not argument.startswith("-"), arguments)
    )
    names = select(names_given, first=arguments[0])
    flags = arguments[len(names_given) :]
    options = parse(
        f"run {' '.join(names_given)}", flags, lambda missing: Options(missing), PROGRAM
    )
    check(options)
    return names, flags, options


def select(words: list[str], first: str) -> list[str]:
    """The named experiments, without duplicates."""
    if not words:
        raise InputError(
            f"the names of experiments come first, got {first}; `python -m experiments list` "
            f"lists them"
        )
    for word in words:
        if reason := explain_missing(word):
            raise InputError(f"{word} is not an experiment: {reason}")
    names = [name for word in words for name in by_paper_number(word) or [word]]
    known = (*EXPERIMENTS, "all")
    if unknown := next((name for name in names if name not in known), ""):
        word = unknown.lower()
        near = [name for name in known if name.startswith(word)] or get_close_matches(word, known)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        if last := last_in_paper(unknown):
            hint = f"the last one in the paper is {last}; "
        raise InputError(
            f"unknown experiment {unknown!r}; {hint}`python -m experiments list` lists them all"
        )
    return list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))


def parse_test_corpora(tests: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Names and paths of test corpora from NAME=PATH or NAME."""
    parts = [test.partition("=") for test in tests]
    names = [name for name, _, _ in parts]
    if unknown := [name for name in names if name not in TEST_CORPORA]:
        raise InputError(
            f"--tests {' '.join(unknown)}: unknown test corpus; choose from "
            f"{', '.join(TEST_CORPORA)}"
        )
    for name, equals, path in parts:
        if equals and not path:
            raise InputError(f"--tests {name}= has no path; add one, or write {name} alone")
        if names.count(name) > 1:
            raise InputError(f"--tests names {name} more than once; choose one path")
    return tuple((name, path or name) for name, _, path in parts)


def check(options: Options) -> None:
    """Raise an error for numbers out of range, or under torchrun."""
    if not options.time_limit >= 0:  # also raises for NaN
        raise InputError(
            f"--time-limit must be a number of seconds >= 0, got {options.time_limit:g}; leave it "
            f"out for no limit"
        )
    if options.workers < 0:
        raise InputError(f"--workers must be an integer >= 0, got {options.workers}")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: this command starts its own workers; run "
            f"it without torchrun, with --workers or --config"
        )
    parse_test_corpora(options.tests)
