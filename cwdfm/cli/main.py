"""`cwdfm COMMAND ...`: dispatch to a command; input errors print a message and exit with code 2.

Commands are imported only when they run, because importing torch takes seconds.
"""

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cwdfm.version import __version__


@dataclass(frozen=True)
class Command:
    """A command of `cwdfm`."""

    module: str  # the module in `cwdfm.cli` with its `main` function
    help: str
    resumable: bool = True  # whether the same command resumes after an interruption

    def load(self) -> Callable[[list[str]], None]:
        """Import the command. Ctrl-C during the import ends the process without a traceback."""
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler:  # false if the parent process ignores SIGINT
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        main: Callable[[list[str]], None] = import_module(f"cwdfm.cli.{self.module}").main
        signal.signal(signal.SIGINT, handler)
        return main


COMMANDS = {
    "prepare": Command("prepare", "tokenize and pack text or molecules"),
    "train": Command("train", "train a model from a recipe"),
    "sample": Command("sample", "sample sequences from a trained model"),
    "eval": Command("evaluate", "score samples and write a report with figures"),
    "replay": Command("replay", "write a web page that plays recorded generations", False),
    "app": Command("app", "sample models in a web page and watch every step", False),
    "perplexity": Command("perplexity", "compute or bound the perplexity on held-out data", False),
    "analyze": Command("analyze", "run the paper's analyses: context, updates", False),
    "demo": Command("demo", "sample the bundled models and write a report (2 minutes)", False),
    "completion": Command("completion", "print a completion script for bash or zsh", False),
}
EXAMPLES = """
try it without data or training:
  cwdfm demo
  cwdfm sample qm9-uniform-small --out molecules.smi --n 64

Run `cwdfm COMMAND --help` for the options of a command, `cwdfm --version` for the versions."""


def main() -> None:
    """Entry point of the `cwdfm` command."""
    arguments = sys.argv[1:]
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # instead of failing on an ASCII terminal
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            fail(f"{argument!r} is not valid UTF-8; rename files and folders with such names")
    if arguments[:1] == ["--version"]:
        print(version())
        sys.exit(0)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: cwdfm COMMAND ...\n\ncommands:")
        for name, command in COMMANDS.items():
            print(f"  {name:10} {command.help}")
        print(EXAMPLES)
        sys.exit(0 if arguments else 2)
    if arguments[0] not in COMMANDS:
        fail(f"unknown command {arguments[0]!r}; choose from {', '.join(COMMANDS)}")
    command = COMMANDS[arguments[0]]
    run = command.load()
    # Output to a stream (-) is not kept, so the command cannot resume.
    with exit_on_error(resumable=command.resumable and "-" not in arguments):
        run(arguments[1:])


def version() -> str:
    """The versions of cwdfm, Python and torch, and the device that `--device auto` selects."""
    import platform

    import torch

    from cwdfm.device import find_device

    device = find_device("auto")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    python = platform.python_version()
    return (
        f"cwdfm {__version__} (Python {python}, torch {torch.__version__}, device {device}: {name})"
    )


def open_closed_streams() -> None:
    """Open closed standard streams on the null device.

    Otherwise the next opened file would reuse the number of the closed stream and receive whatever
    is printed.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            setattr(sys, name, stream)


@contextmanager
def exit_on_error(*, resumable: bool) -> Iterator[None]:
    """Turn expected errors into a message and an exit code."""
    import torch

    from cwdfm.errors import InputError, RunError

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
        # For memory of the CPU, torch raises a plain RuntimeError.
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and "DefaultCPUAllocator" not in str(error):
            raise
        fail("out of memory; reduce the batch size, the sequence length or the number of samples")
    except BrokenPipeError:  # the reader closed the pipe, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard buffered output
        sys.exit(141)  # 128 + SIGPIPE, as shells report it
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        fail(f"{path}{error.strerror or error}; check the path, permissions and free space")


@contextmanager
def notes() -> Iterator[None]:
    """Print warnings of this package as notes, each once and without the source line."""
    package, shown = Path(__file__).parents[1], set[str]()
    with warnings.catch_warnings():
        default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], file: str, *rest: Any) -> None:
            if not Path(file).is_relative_to(package):
                default(message, category, file, *rest)
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
