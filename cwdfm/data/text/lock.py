"""One process at a time in a folder: the eight of a training run all ask for the same data."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, waiting for it; it goes with the process, however that ends."""
    if sys.platform == "win32":
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    import fcntl

    path = folder / "lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had it may have moved or deleted the folder meanwhile.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return
