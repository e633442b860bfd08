"""Run commands in forked children of a process that has imported everything, for fast starts."""

import io
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cwdfm.cli.main import COMMANDS, main

LIMIT = 300.0  # seconds after which a command counts as hanging
_TRACEBACK = 99  # exit code of a child that raised
_NOBODY = 65534  # an id without permissions

for _command in COMMANDS.values():
    _command.load()


@dataclass(frozen=True)
class Child:
    """A running command."""

    pid: int
    said: Path
    ended: "list[Ended]" = field(default_factory=list)  # empty while it runs

    def wait(self, seconds: float = LIMIT) -> "Ended | None":
        """Wait until the command ends; None if it is still running after `seconds`."""
        end = time.monotonic() + seconds
        while not self.ended:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.ended.append(Ended(os.waitstatus_to_exitcode(status), self.said.read_text()))
            elif time.monotonic() > end:
                return None
            else:
                time.sleep(0.002)
        return self.ended[0]

    def end(self) -> "Ended":
        """Wait until the command ends; kill it if it hangs."""
        if (ended := self.wait()) is not None:
            return ended
        self.kill()
        return Ended(None, self.said.read_text())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@dataclass(frozen=True)
class Ended:
    """How a command ended; the exit code is None if it hung."""

    code: int | None
    said: str

    @property
    def problem(self) -> str:
        """The defect, if any: a traceback, a hang or an unexpected exit code; otherwise empty."""
        if self.code is None:
            return "hang"
        if self.code not in (0, 1, 2) or "Traceback" in self.said:
            return f"exit code {self.code}: {self.said[-2000:]}"
        return ""


def warm_up(lines: Iterable[list[str]]) -> None:
    """Run commands in this process, so that its children find everything imported and compiled."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    before, arguments = Path.cwd(), sys.argv
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        os.chdir(folder)
        for argv in lines:
            sys.argv = ["cwdfm", *argv]
            main()
        os.chdir(before)
    sys.argv = arguments


def start(
    words: list[str], folder: Path, *, most_bytes: int | None = None, unprivileged: bool = False
) -> Child:
    """Run `cwdfm WORDS` in a folder.

    Files cannot grow beyond `most_bytes`, which simulates a full disk. With `unprivileged`, root
    becomes a user without special permissions.
    """
    said = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.said")
    sys.stdout.flush()
    if pid := os.fork():
        return Child(pid, said)
    code = _TRACEBACK
    try:
        stream = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = os.fdopen(0)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        os.chdir(folder)
        torch.set_num_threads(1)
        if most_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        if unprivileged and os.geteuid() == 0:
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        sys.argv = ["cwdfm", *words]
        main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
