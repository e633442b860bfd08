"""NVIDIA's MPS: kernels of several processes run on a GPU side by side, not in turns."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE = 30.0  # seconds for the program to start its daemon, or to end it


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """A daemon for a while: the environment of processes that shall use it.

    Where the user has one, that is theirs already. Without one they work all the same: it is told.
    """
    if PIPES in os.environ:
        yield {}
    elif shutil.which(CONTROL) is None:
        _without(f"{CONTROL} is not on the PATH")
        yield {}
    else:
        with _daemon() as found:
            yield found


@contextmanager
def _daemon() -> Iterator[dict[str, str]]:
    """One of our own: in folders of its own it is nobody else's."""
    with TemporaryDirectory(prefix="cwdfm-mps-", ignore_cleanup_errors=True) as folder:
        own = {PIPES: f"{folder}/pipes", LOGS: f"{folder}/logs"}
        for place in own.values():
            Path(place).mkdir()
        # Of the GPUs that it sees the daemon makes numbers of its own, to which those of the
        # workers' CUDA_VISIBLE_DEVICES would be applied again: it shall see all.
        seen = {key: os.environ[key] for key in os.environ.keys() - {"CUDA_VISIBLE_DEVICES"}} | own
        try:
            if _control(["-d"], seen):
                yield own
            else:
                _without(f"{CONTROL} -d failed")
                yield {}
        finally:
            _control([], seen, b"quit\n")


def _control(arguments: list[str], environment: Mapping[str, str], told: bytes = b"") -> bool:
    """Whether the program did what it was asked for.

    A daemon keeps what it writes to, so that must be no pipe of ours; and Ctrl-C is for us alone.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        ended = subprocess.run(
            [CONTROL, *arguments],
            input=told,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=PATIENCE,
            process_group=0,
            check=False,
        )
        return ended.returncode == 0
    return False


def _without(why: str) -> None:
    print(f"kernels of workers on one GPU will take turns, without NVIDIA's MPS: {why}")
