"""`cwdfm sample` in a process of its own."""

import os
import signal
import sys
from typing import Any

from cwdfm.cli.main import main
from cwdfm.sample_file import PartialSamples


def sample(*words: str) -> None:
    """Run the command with these words."""
    sys.argv = ["cwdfm", "sample", *words]
    main()


def sample_and_be_killed(*words: str) -> None:
    """The process is killed after its third batch."""
    add = PartialSamples.add

    def add_and_kill(partial: PartialSamples, records: dict[int, dict[str, Any]]) -> None:
        add(partial, records)
        if len(partial.records()) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    PartialSamples.add = add_and_kill  # type: ignore[assignment,method-assign]
    sample(*words)


def sample_without_streams(*words: str) -> None:
    """Standard output and standard error are closed, as Python finds them after `>&- 2>&-`."""
    os.closerange(1, 3)
    sys.stdout = sys.stderr = None
    sample(*words)


def complete_to_a_closed_pipe(errors: str) -> None:
    """Nobody reads what `cwdfm completion` prints; standard error goes to a file."""
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["cwdfm", "completion", "bash"]
    main()
