"""`cwdfm COMMAND ...`: dispatch to a command; input errors give a message and exit code 2."""

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cwdfm.cli import analyze, demo, evaluate, perplexity, prepare, replay, sample, train
from cwdfm.cli.options import HELP
from cwdfm.errors import InputError, RunError
from cwdfm.version import __version__


@dataclass(frozen=True)
class Command:
    """A command of `cwdfm`."""

    main: Callable[[list[str]], None]
    help: str
    resumable: bool = True  # whether the same command resumes after an interruption


COMMANDS = {
    "prepare": Command(prepare.main, "tokenize and pack text or molecules"),
    "train": Command(train.main, "train a model from a recipe"),
    "sample": Command(sample.main, "sample sequences from a trained model"),
    "eval": Command(evaluate.main, "score samples and write a report with figures"),
    "replay": Command(replay.main, "play recorded generations in a web page", False),
    "perplexity": Command(perplexity.main, "bound the perplexity on held-out data", False),
    "analyze": Command(analyze.main, "analyze models and solvers: context, updates", False),
    "demo": Command(demo.main, "sample the bundled models and write a report (3 minutes)", False),
}
EXAMPLES = """
try it without data or training:
  cwdfm demo
  cwdfm sample qm9-uniform-small --out molecules.smi --n 64

Run `cwdfm COMMAND --help` for the options of a command, `cwdfm --version` for the version."""


def main() -> None:
    """Entry point of the `cwdfm` command."""
    arguments = sys.argv[1:]
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # instead of failing on an ASCII terminal
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            fail(f"{word!r} is not valid UTF-8; rename files and folders with such names")
    if arguments[:1] == ["--version"]:
        print(f"cwdfm {__version__}")
        sys.exit(0)
    if not arguments or arguments[0] in HELP:
        print("usage: cwdfm COMMAND ...\n\ncommands:")
        for name, command in COMMANDS.items():
            print(f"  {name:10} {command.help}")
        print(EXAMPLES)
        sys.exit(0 if arguments else 2)
    if arguments[0] not in COMMANDS:
        fail(f"unknown command {arguments[0]!r}; choose from {', '.join(COMMANDS)}")
    command = COMMANDS[arguments[0]]
    with exit_on_error(resumable=command.resumable):
        command.main(arguments[1:])


def open_closed_streams() -> None:
    """Discard the output of closed streams; otherwise files would be opened under their numbers."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            setattr(sys, name, stream)


@contextmanager
def exit_on_error(*, resumable: bool) -> Iterator[None]:
    """Turn expected errors of a command into a message and an exit code."""
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
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and "DefaultCPUAllocator" not in str(error):  # torch's only hint for the CPU
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
    """Print warnings of this package as notes, each once and without the source line."""
    package, shown = Path(__file__).parents[1], set[str]()
    with warnings.catch_warnings():
        default = warnings.showwarning

        def show(message: Warning | str, kind: type[Warning], file: str, *rest: Any) -> None:
            if not Path(file).is_relative_to(package):
                default(message, kind, file, *rest)
            elif str(message) not in shown:
                shown.add(str(message))
                print(f"note: {message}", file=sys.stderr)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def fail(message: str, code: int = 2) -> None:
    """Print an error message and exit."""
    print(f"cwdfm: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
