"""`-` as a file name: standard input or standard output."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from cwdfm.errors import InputError

STREAM = "-"


@contextmanager
def standard_input(names: Sequence[str], suffix: str) -> Iterator[list[str]]:
    """Replace `-` in a list of file names by a temporary file with the content of standard input.

    The file's suffix is .jsonl if the content is JSON, and `suffix` otherwise.
    """
    if STREAM not in names:
        yield list(names)
        return
    if names.count(STREAM) > 1:
        raise InputError("- (standard input) is given more than once; it can be read only once")
    content = sys.stdin.buffer.read()
    suffix = ".jsonl" if content.lstrip().startswith(b"{") else suffix
    with TemporaryDirectory(prefix="cwdfm-") as folder:
        path = Path(folder, f"stdin{suffix}")
        path.write_bytes(content)
        yield [str(path) if name == STREAM else name for name in names]


@contextmanager
def standard_output(path: Path, name: str) -> Iterator[Path]:
    """Replace the output path `-` by a temporary file that is copied to standard output at the end.

    Until then, messages go to standard error.
    """
    if str(path) != STREAM:
        yield path
        return
    if "RANK" in os.environ:
        raise InputError("--out - requires a single process; under torchrun, write to a file")
    with TemporaryDirectory(prefix="cwdfm-") as folder:
        target = Path(folder, name)
        with redirect_stdout(sys.stderr):
            yield target
        sys.stdout.write(target.read_text())
        sys.stdout.flush()
