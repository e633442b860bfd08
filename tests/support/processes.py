"""New processes for tests, alone or in a process group.

They are forked from one that has imported what most of them need: it takes longer than their work.
"""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

# What training imports at its first step, and a command when it starts.
IMPORTED = (
    *("rdkit.Chem", "torch._dynamo", "torch.distributed.fsdp"),
    *("cwdfm.cli.main", "cwdfm.cli.sample", "tests.support.train_script"),
)


def started(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """Call a function of a module in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def ended(target: Callable[..., None], *arguments: object) -> int | None:
    """The exit code of a new process."""
    process = started(target, *arguments)
    process.join()
    return process.exitcode


def ended_together(folder: Path, target: Callable[..., None], *arguments: object) -> str:
    """What two processes print, which form a group as those of torchrun do and must succeed."""
    with socket.create_server(("localhost", 0)) as found:
        port = found.getsockname()[1]
    said = [folder / f"said-{number}" for number in range(2)]
    processes = [
        started(_run, number, port, said[number], target, *arguments) for number in range(2)
    ]
    for process in processes:
        process.join()
    text = "".join(path.read_text() for path in said)
    assert [process.exitcode for process in processes] == [0, 0], text
    return text


def _run(number: int, port: int, said: Path, target: Callable[..., None], *rest: object) -> None:
    stream = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    target(*rest)
