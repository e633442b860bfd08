"""Results cached on disk.

Each entry is named by a digest of a JSON description of everything the result depends on, so a
changed input never finds an outdated entry. Entries are written atomically. Damaged entries are
rebuilt, and one process at a time builds an entry.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from cwdfm.errors import InputError
from cwdfm.files import locked, read_json, write_json

T = TypeVar("T")


def cache_folder() -> Path:
    """The cache folder for prepared datasets: `$CWDFM_CACHE`, or `~/.cache/cwdfm`."""
    if folder := os.environ.get("CWDFM_CACHE"):
        return Path(folder)
    try:
        return Path.home() / ".cache" / "cwdfm"
    except RuntimeError:
        raise InputError(
            "there is no home directory to cache prepared data in; set the environment variable "
            "CWDFM_CACHE to a folder, or pass cache=False"
        ) from None


def content_digest(description: object) -> str:
    """The SHA-256 of a JSON-serializable description; the order of dict keys does not matter."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def cache_path(name: str, key: object, suffix: str = "") -> Path:
    """The path of an entry in the cache folder: a sanitized name and the digest of its key."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:60]
    return cache_folder() / f"{readable}-{content_digest(key)[:24]}{suffix}"


def cached_json(folder: Path, key: object) -> Any | None:
    """The result for a key that `cache_json` stored; None if it is missing or damaged."""
    try:
        entry = read_json(_json_path(folder, key))
    except (OSError, ValueError):
        return None
    return entry.get("value") if isinstance(entry, dict) else None


def cache_json(folder: Path, key: object, value: Any) -> None:
    """Store a JSON-serializable result in a folder, with its key for inspection."""
    write_json(_json_path(folder, key), {"key": key, "value": value})


def _json_path(folder: Path, key: object) -> Path:
    return folder / f"{content_digest(key)[:32]}.json"


def cached(
    path: Path,
    make: Callable[[], T],
    *,
    read: Callable[[Path], T],
    write: Callable[[T, Path], object],
) -> T:
    """Read an entry; if it is missing or damaged, compute it with `make` and write it.

    While one process computes an entry, others that need it wait. A damaged entry or an unwritable
    folder causes a RuntimeWarning, not an error. `read` must raise InputError or OSError for
    damaged files, and `write` must be atomic.
    """
    if (entry := _read_entry(path, read)) is not None:
        return entry
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except OSError as error:
            _warn_not_cached(f"cannot write into {path.parent}: {error}")
            return make()
        if (entry := _read_entry(path, read, warn=False)) is not None:  # built while waiting
            return entry
        value = make()
        try:
            write(value, path)
        except (InputError, OSError) as error:
            _warn_not_cached(error)
        return value


def _read_entry(path: Path, read: Callable[[Path], T], *, warn: bool = True) -> T | None:
    try:
        return read(path) if path.exists() else None
    except (InputError, OSError) as error:
        if warn:
            message = f"the cached entry is damaged and will be rebuilt: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        return None


def _warn_not_cached(reason: object) -> None:
    message = f"the result is not cached: {reason} (set CWDFM_CACHE to a writable folder)"
    warnings.warn(message, RuntimeWarning, stacklevel=3)
