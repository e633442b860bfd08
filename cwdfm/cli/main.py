"""`cwdfm VERB ...`: find the verb, and turn wrong input into a message and exit code 2."""

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

from cwdfm.cli import analyze, demo, evaluate, perplexity, prepare, sample, train
from cwdfm.cli.options import HELP
from cwdfm.errors import InputError, RunError
from cwdfm.version import __version__


@dataclass(frozen=True)
class Verb:
    """A command of `cwdfm`."""

    main: Callable[[list[str]], None]
    told: str  # what it does
    keeps: bool = True  # what it has done: interrupted, it goes on


VERBS = {
    "prepare": Verb(prepare.main, "tokenise and pack text or molecules"),
    "train": Verb(train.main, "train a model by a named recipe"),
    "sample": Verb(sample.main, "draw sequences from a trained model"),
    "eval": Verb(evaluate.main, "score samples and write a report with pictures"),
    "perplexity": Verb(
        perplexity.main, "bound a model's perplexity on data it has not seen", keeps=False
    ),
    "analyze": Verb(analyze.main, "what models and solvers do: context, updates", keeps=False),
    "demo": Verb(
        demo.main, "sample the models in the box and write a report: about 3 minutes", keeps=False
    ),
}
BEGIN = """
to begin with, without data or training:
  cwdfm demo
  cwdfm sample qm9-uniform-small --out molecules.smi --n 64

`cwdfm VERB --help` tells more about one, `cwdfm --version` which cwdfm this is."""


def main() -> None:
    """Entry point of the `cwdfm` command."""
    arguments = sys.argv[1:]
    write_any_text()
    check_text(arguments)
    if arguments[:1] == ["--version"]:
        print(f"cwdfm {__version__}")
        sys.exit(0)
    if not arguments or arguments[0] in HELP:
        print("usage: cwdfm VERB ...\n\nverbs:")
        for name, verb in VERBS.items():
            print(f"  {name:10} {verb.told}")
        print(BEGIN)
        sys.exit(0 if arguments else 2)
    if arguments[0] not in VERBS:
        fail(f"unknown verb {arguments[0]!r}; choose from {', '.join(VERBS)}")
    verb = VERBS[arguments[0]]
    with exit_on_error(resumable=verb.keeps):
        verb.main(arguments[1:])


def write_any_text() -> None:
    """Let output be written whatever its encoding: the ± of a table could lose its numbers."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def exit_on_error(*, resumable: bool) -> Iterator[None]:
    """Turn expected errors of a command into a message and an exit code.

    `resumable`: whether the same command resumes after an interruption.
    """
    try:
        with notes():
            yield
        sys.stdout.flush()
    except InputError as error:
        fail(str(error))
    except RunError as error:
        fail(str(error), code=1)
    except KeyboardInterrupt:
        action = "resumes" if resumable else "starts over"
        fail(f"interrupted; the same command {action}", code=130)
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        fail("out of memory; reduce the batch size, the sequence length or the number of samples")
    except BrokenPipeError:  # the reader closed the pipe, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard buffered output
        sys.exit(141)  # the code that shells report
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}; check the path, permissions and free space")


@contextmanager
def notes() -> Iterator[None]:
    """Show what the library warns of as notes, each once and without the line of its code."""
    package, said = Path(__file__).parents[1], set[str]()
    with warnings.catch_warnings():
        plain = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not Path(filename).is_relative_to(package):
                plain(message, category, filename, lineno, file, line)
            elif str(message) not in said:
                said.add(str(message))
                print(f"note: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield


def check_text(arguments: list[str]) -> None:
    """Refuse words that are no text, which neither models nor reports could hold."""
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            fail(f"{word!r} is not UTF-8; give it as UTF-8, and rename a file or folder so called")


def short_of_memory(error: Exception) -> bool:
    """Whether it is memory that lacks; of the CPU's, torch says so in words alone."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "DefaultCPUAllocator" in str(error)


def fail(message: str, code: int = 2) -> None:
    """Say what is wrong and leave."""
    print(f"cwdfm: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
