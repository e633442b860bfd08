"""One process at a time in a folder: the eight of a training run all ask for the same data."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
                same = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:  # whoever had it moved or deleted the folder meanwhile
                continue
            except FileExistsError:  # or did so within `mkdir`, unless a file is in the way
                if folder.is_file():
                    raise
                continue
            if same:
                yield
                return
