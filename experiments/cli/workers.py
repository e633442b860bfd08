"""Processes that one command starts and attends to: they work side by side, and end before it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

import torch

from cwdfm.cli.options import cores
from experiments.cli.mps import mps

# `-P` and PYTHONPATH: modules are found where this process finds them, and not where it stands.
COMMAND = [sys.executable, "-P", "-m", "experiments.cli.worker"]
TICK = 0.05  # seconds between looks whether one has ended
GRACE = 5.0  # seconds for the last lines of one that has, where a process of its own holds the pipe


def dealt(device: str, found: torch.device, count: int) -> list[str]:
    """The device of each of `count` workers: with "auto", `found` to be a GPU, all GPUs in turn."""
    gpus = torch.cuda.device_count() if (device, found.type) == ("auto", "cuda") else 0
    return [f"cuda:{i % gpus}" if gpus else str(found) for i in range(count)]


def side_by_side(work: Sequence[Sequence[str]], devices: Sequence[str]) -> None:
    """Let a worker do each of these, which are words for `experiments.cli.worker`; wait for all.

    Whatever ends this process meanwhile, a signal or an error, ends them first: in order.
    """
    with _sharing(devices) as shared:
        crew = Crew(os.environ | environment(devices) | shared)
        try:
            for words in work:
                crew.start([*COMMAND, *words])
            crew.attend()
        except BaseException:
            crew.dismiss()
            raise


def environment(devices: Sequence[str]) -> dict[str, str]:
    """What workers on these devices shall have other than this process."""
    found = {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    if "cpu" in devices and "OMP_NUM_THREADS" not in os.environ:
        found["OMP_NUM_THREADS"] = str(max(1, cores() // len(devices)))
    return found


def _sharing(devices: Sequence[str]) -> AbstractContextManager[dict[str, str]]:
    """What lets workers share a GPU, if some do."""
    on_gpus = [device for device in devices if device.startswith("cuda")]
    return mps() if len(on_gpus) > len(set(on_gpus)) else nullcontext({})


class Crew:
    """Processes with numbers from 1. Their lines become this process's, each with its number."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.readers: dict[int, list[Thread]] = {}
        self.lines: SimpleQueue[tuple[int, str, str]] = SimpleQueue()
        self.dismissed = False

    def start(self, command: Sequence[str]) -> None:
        """One more.

        Ctrl-C in a terminal is for this process alone. Its input ends with us, however we end.
        """
        pipe, number = subprocess.PIPE, len(self.readers) + 1
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment, process_group=0
        )
        self.running[number] = process
        self.readers[number] = [
            Thread(target=self._read, args=(number, name, getattr(process, name)), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for reader in self.readers[number]:
            reader.start()

    def attend(self) -> None:
        """Pass on their lines until all have ended; one that has not done so by itself is told."""
        while self.running:
            try:
                self._tell(*self.lines.get(timeout=TICK))
            except Empty:
                for number in [n for n, each in self.running.items() if each.poll() is not None]:
                    self._ended(number)

    def dismiss(self) -> None:
        """Ask all to end, again with each further signal, and wait until they have."""
        self.dismissed = True
        while self.running:
            for process in self.running.values():
                process.terminate()
            with suppress(KeyboardInterrupt, SystemExit, OSError):  # nobody may read any more
                self.attend()

    def _read(self, number: int, name: str, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                # What a bar of progress has overwritten is nothing to keep.
                text = line.decode(errors="replace").rstrip().rpartition("\r")[2]
                self.lines.put((number, name, text))

    def _tell(self, number: int, name: str, text: str) -> None:
        stream = getattr(sys, name)
        stream.write(f"{number}: {text}\n")
        stream.flush()

    def _ended(self, number: int) -> None:
        process = self.running[number]
        for reader in self.readers[number]:
            reader.join(GRACE)
        while not self.lines.empty():
            self._tell(*self.lines.get())
        del self.running[number]
        if process.stdin is not None:
            process.stdin.close()
        code = process.returncode
        if code and not self.dismissed:
            how = f"ended with code {code}"
            if code < 0:
                how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
            print(f"note: worker {number} {how}; the others go on", file=sys.stderr, flush=True)
