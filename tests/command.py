"""The command `cwdfm` in this process: starting one costs more than most commands do."""

import contextlib
import io
import sys
from dataclasses import dataclass

import pytest

from cwdfm.cli.main import main


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
        patch.setattr(sys, "argv", ["cwdfm", *map(str, arguments)])
        try:
            main()
        except SystemExit as left:
            code = left.code
    return Ended(int(str(code or 0)), out.getvalue(), err.getvalue())
