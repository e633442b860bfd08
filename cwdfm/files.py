"""Files on disk: atomic writes, locks, folders of unfinished work, checks of output paths.

Readers of a file see either the old content or the complete new content, even if several processes
write the same path.
"""

import errno
import json
import lzma
import os
import re
import secrets
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from cwdfm.errors import InputError

if TYPE_CHECKING:  # importing torch takes seconds
    import torch
    from torch import Tensor

LOCK = "lock"  # name of the lock file inside a locked folder
MARKER = ".cwdfm"  # empty file in a folder of unfinished work that this library created
_TEMPORARY = r"(\.\d+-[0-9a-f]{8}\.part)?"  # suffix of the temporary files of `replacing`
MAX_JSON = 1 << 26  # bytes of a file with a config or meta data
# What zipfile and numpy raise for a damaged .npz file; RuntimeError for an encrypted one.
DAMAGED_ZIP: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    RuntimeError,
)
if find_spec("compression"):  # Python >= 3.14: a damaged byte may select this method
    DAMAGED_ZIP += (import_module("compression.zstd").ZstdError,)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCKS_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds.

    The temporary file is in the same folder, so the rename is atomic, and its name is unique, so
    the last of several writers wins. Missing parent folders are created.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, data: object) -> None:
    """Write JSON atomically, and sync it to disk before the rename."""
    with replacing(path) as part, part.open("w") as file:
        file.write(json.dumps(data, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path, most: int = MAX_JSON) -> Any:
    """Read a JSON file from an untrusted source.

    Raises ValueError if it is not a regular file, larger than `most` bytes, or not JSON; OSError if
    it cannot be read.
    """
    check_regular(path)
    if (size := path.stat().st_size) > most:
        raise ValueError(f"{path.name} has {size:,} bytes, and at most {most:,} are allowed")
    try:
        return json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error


def check_regular(path: Path) -> None:
    """Raise a ValueError unless the path is a regular file: reading a named pipe could block."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path.name} is not a regular file")


def check_fields(origin: str, data: Any, /, **types: type | UnionType) -> None:
    """Raise a ValueError unless `data` is a dictionary with at least these keys and types.

    `origin` says in the error message where the data comes from.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{origin} is not a JSON object")
    for name, expected in types.items():
        if name not in data:
            raise ValueError(f"{origin} has no {name!r}")
        value = data[name]
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            type_name = getattr(expected, "__name__", str(expected))
            raise ValueError(f"{name!r} in {origin} is {value!r:.80}, not of type {type_name}")


def write_tensors(
    path: Path, tensors: "dict[str, Tensor]", dtype: "torch.dtype | None" = None
) -> None:
    """Write tensors in the safetensors format; `dtype` converts the floating-point ones."""
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    on_cpu: dict[str, Tensor] = {}
    stored = set[int]()
    for name, tensor in tensors.items():
        x = tensor.detach().to(dtype=dtype if tensor.is_floating_point() else None)
        x = x.contiguous().cpu()
        start = x.untyped_storage().data_ptr()
        on_cpu[name] = x.clone() if start in stored else x  # tied weights share their memory
        stored.add(start)
    try:
        save_file(on_cpu, path)
        path.chmod(mode)  # safetensors renames a temporary file that only its owner can read
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))  # only the message contains the errno
        if code is None:
            raise OSError(f"{error}") from error
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Read tensors in the safetensors format. Raises InputError if the file is damaged."""
    from safetensors.torch import load_file

    try:
        check_regular(path)
        with path.open("rb"):  # safetensors reports an unreadable file as a missing one
            pass
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        raise InputError(
            f"{path} is damaged ({error}); copy it again, or train the model again"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of `path`, waiting while another process holds it.

    The lock file is deleted at the end of the block.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock_file(path)):
        try:
            yield
        finally:
            remove_lock(path)


def lock_file(path: Path) -> Path:
    """The lock file of an output path: its name with `.lock` appended."""
    return path.with_name(path.name + ".lock")


def remove_lock(path: Path) -> None:
    """Delete the lock file of an output path, which the caller must hold. Other waiters retry."""
    with suppress(FileNotFoundError):
        if lock_file(path).stat().st_size == 0:  # otherwise it is a user's own file
            lock_file(path).unlink()


@contextmanager
def held(file: Path) -> Iterator[bool]:
    """Try to acquire a lock file in an existing folder without waiting; yields whether it did.

    The operating system releases the lock when the process ends. On file systems that do not
    support locks, filelock falls back to a lock file with the holder's process id.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(file, blocking=False))
        except Timeout:
            yield False
            return
        except OSError as error:
            if error.errno not in _LOCKS_UNSUPPORTED:
                raise
        yield True


def open_work(folder: Path, names: str) -> None:
    """Create a folder for unfinished work, or reopen one that an interrupted run left.

    `names` is a regular expression for the files that the library writes there. Anything else in
    the folder raises InputError, because the library later overwrites and deletes its content.
    """
    if not folder.is_symlink():
        folder.mkdir(exist_ok=True)
    paths = list(folder.iterdir())
    created = MARKER in (path.name for path in paths) and not folder.is_symlink()
    foreign = [path.name for path in paths if not (created and _is_own_file(path, names))]
    if foreign or folder.is_symlink():
        problem = f"contains {foreign[0]!r}, which" if foreign else "is a symbolic link, which"
        raise InputError(
            f"{folder} is reserved for unfinished work, but it {problem} cwdfm did not create; "
            f"move it away, or choose a different output path"
        )
    (folder / MARKER).touch()


def remove_files(folder: Path, names: str) -> None:
    """Delete the files whose names match, then the folder if it is empty.

    Symbolic links are not followed, and errors are ignored.
    """
    with suppress(OSError):
        if folder.is_symlink():
            return
        for path in folder.iterdir():
            if _is_own_file(path, names) and path.name != MARKER:
                path.unlink(missing_ok=True)
        # Last, because a folder without the marker counts as the user's.
        (folder / MARKER).unlink(missing_ok=True)
        folder.rmdir()


def _is_own_file(path: Path, names: str) -> bool:
    """Whether the name says that the library wrote this file."""
    known = re.fullmatch(f"({names}){_TEMPORARY}", path.name) or path.name == MARKER
    return bool(known) and path.is_file() and not path.is_symlink()


def check_writable(path: Path) -> None:
    """Raise an InputError if `path` cannot be created."""
    problem = ""
    for link in (path, *path.parents):
        if os.path.islink(link) and not os.path.exists(link):  # noqa: PTH110, PTH114
            target = os.readlink(link)  # noqa: PTH115
            problem = f"{link} is a symbolic link to {target}, which does not exist"
    parent = _nearest_existing(path)
    if not problem and not parent.is_dir():
        problem = f"{parent} is a file, not a folder"
    if not problem and not os.access(parent, os.W_OK | os.X_OK):
        problem = f"no permission to write into {parent}"
    if problem:
        raise InputError(f"{path} cannot be written: {problem}; choose a different path")


def _nearest_existing(path: Path) -> Path:
    """The path itself if it is a folder, else its nearest existing parent."""
    # os.path treats inaccessible paths as missing; pathlib's methods would raise.
    folders = (path, *path.parents) if os.path.isdir(path) else path.absolute().parents  # noqa: PTH112
    return next((folder for folder in folders if os.path.exists(folder)), Path())  # noqa: PTH110


def check_output_folder(path: Path) -> None:
    """Raise an InputError if the folder cannot be created, or cannot be written to."""
    check_writable(path)  # first, because `exists` raises for inaccessible paths
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; choose a folder, or move the file away")


def check_output_file(path: Path, *, force: bool) -> None:
    """Raise an InputError if the file cannot be written, or exists and `force` is False."""
    check_writable(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; pass the path of a file")
    if path.exists() and not force:
        raise InputError(
            f"{path} already exists; choose a different path, or overwrite it with force=True",
            fields=("force",),
        )


@contextmanager
def write_errors(path: Path, intact: str = "") -> Iterator[None]:
    """Turn an OSError inside the block into an InputError that says how to fix it.

    `intact` tells the user what the failure left undamaged, and advises them to run the same
    command again with the same path. By default, the advice is to choose a different path.
    """
    try:
        yield
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror or error}"
        if not intact:
            raise InputError(f"{reason}; {write_advice(error)}") from error
        raise InputError(
            f"{reason}; {intact}. {retry_advice(error, path)} and run the same command again"
        ) from error


def is_disk_full(error: OSError) -> bool:
    """Whether the error is due to a full disk, a quota or a file size limit."""
    return error.errno in _DISK_FULL


def retry_advice(error: OSError, path: Path) -> str:
    """Advice after a failed write if the user has to retry with the same path."""
    if is_disk_full(error):
        return "Free some disk space"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Grant yourself permission to write into {_nearest_existing(path)}"
    if error.errno == errno.EROFS:
        return f"Remount the file system of {_nearest_existing(path)}, which is read-only,"
    return "Fix this"


def write_advice(error: OSError) -> str:
    """Advice after a failed write if the user may choose a different path."""
    if is_disk_full(error):
        return "free some disk space or choose a different path"
    return "choose a different path"
