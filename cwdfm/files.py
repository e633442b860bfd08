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
    """Refuse a path that cannot be made: a file or a dead link is in its way, or no permission."""
    for link in (path, *path.parents):
        if os.path.islink(link) and not os.path.exists(link):  # noqa: PTH110, PTH114
            raise InputError(
                f"{path} cannot be written: {link} is a link to {os.readlink(link)}, which is not "  # noqa: PTH115
                f"there; make that, or give another place"
            )
    above = _above(path)
    if not above.is_dir():
        raise InputError(
            f"{path} cannot be written: {above} is a file; give a place that is in a folder"
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(
            f"{path} cannot be written: there is no permission to write into {above}; give another "
            f"place"
        )


def _above(path: Path) -> Path:
    """Into what the path would be made: the nearest that is there, itself if it is a folder."""
    # By os.path, to which what may not be looked at is not there: pathlib's own would raise.
    folders = (path, *path.parents) if os.path.isdir(path) else path.absolute().parents  # noqa: PTH112
    return next((folder for folder in folders if os.path.exists(folder)), Path())  # noqa: PTH110


def check_folder_place(path: Path) -> None:
    """Refuse a folder that cannot be made, or written into if it is there."""
    check_place(path)  # first: a path that may not be looked at is neither folder nor file
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; give a folder, or move the file away")


def check_new_file(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or that is there already; `force` overwrites it."""
    check_place(path)  # first, as above
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file to write")
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to overwrite it")


def is_full(error: OSError) -> bool:
    """Whether it is space that lacks: the disk's, or what a quota or limit leaves of it."""
    return error.errno in _FULL


def repair(error: OSError, path: Path) -> str:
    """What to do about a file that could not be written and whose work goes on in its place."""
    if is_full(error):
        return "Free some space"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Give yourself permission to write into {_above(path)}"
    if error.errno == errno.EROFS:
        return f"Have the file system of {_above(path)} mounted for writing, as it is not now,"
    return "Put that right"


def elsewhere(error: OSError) -> str:
    """What to do about a file that could not be written, and may be anywhere."""
    return "free some space or choose another place" if is_full(error) else "choose another place"
