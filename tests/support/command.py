"""The command `cwdfm` in this process: starting one costs more than most commands do."""

import contextlib
import io
import sys
from dataclasses import dataclass

import pytest

from cwdfm.cli.main import main
from experiments.__main__ import main as experiments_main


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: object) -> Ended:
    """Run it with these words."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        words = [str(word) for word in arguments]
        of_experiments = words[:1] and words[0] in ("run", "list", "bench", "report")
        patch.setattr(sys, "argv", ["cwdfm", *words])
        try:
            (experiments_main if of_experiments else main)()
        except SystemExit as left:
            code = left.code
    return Ended(int(str(code or 0)), out.getvalue(), err.getvalue())


def succeeded(*arguments: object) -> Ended:
    """How a command ended that must succeed."""
    ended = command(*arguments)
    assert ended.returncode == 0, (arguments, ended)
    return ended


def rejected(*arguments: object) -> str:
    """What a command says that rejects its input: exit code 2 and a message."""
    ended = command(*arguments)
    assert ended.returncode == 2, (arguments, ended)
    assert "Traceback" not in ended.stderr
    return ended.stderr + ended.stdout
