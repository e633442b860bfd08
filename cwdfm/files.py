"""Files that are whole at any moment, also where processes write the same one.

And whether they can be written, asked before the work whose result they shall hold.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cwdfm.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of `path` once the block is done, and not if it fails.

    It lies beside `path`, for the rename, and has a name of its own, for processes that write at
    once: the last one stays, whole. Folders are made.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_place(path: Path) -> None:
    """Refuse a path that cannot be made: a file stands where a folder should, or no permission."""
    folders = (path, *path.parents) if path.is_dir() else path.absolute().parents
    above = next((folder for folder in folders if folder.exists()), Path())
    if not above.is_dir():
        raise InputError(
            f"{path} cannot be written: {above} is a file; give a place that is in a folder"
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(
            f"{path} cannot be written: there is no permission to write into {above}; give another "
            f"place"
        )


def check_new_file(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or that is there already; `force` overwrites it."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file to write")
    check_place(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to overwrite it")


def is_full(error: OSError) -> bool:
    """Whether it is space that lacks: the disk's, or what a quota or limit leaves of it."""
    return error.errno in _FULL


def elsewhere(error: OSError) -> str:
    """What to do about a file that could not be written."""
    return "free some space or choose another place" if is_full(error) else "choose another place"
