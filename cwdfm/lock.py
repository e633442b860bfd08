"""One process at a time in a folder.

A lock goes with the process that has it, however that ends.
"""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOCK = "lock"  # the file's name
_NONE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # by file systems that know no locks


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, waiting for it."""
    if sys.platform == "win32":
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    import fcntl

    path = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # deleted within `mkdir`, unless something else is in the way
            if not folder.parent.is_dir() or _is_no_folder(folder):
                raise
            continue
        with ExitStack() as stack:
            try:
                file = stack.enter_context(path.open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
                same = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:  # whoever had it moved or deleted the folder meanwhile
                continue
            if same:
                yield
                return


def _is_no_folder(path: Path) -> bool:
    """Whether something else lies there, a link too; one look, as folders come and go."""
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder that is there if it is free; whether it was."""
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in _NONE:
                raise
        yield True
