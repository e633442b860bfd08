"""Prepared data on disk, so that a dataset is canonicalised once."""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cwdfm.data.dataset import FORMAT, TokenData
from cwdfm.errors import InputError

Cache = bool | Literal["read"]


def cache_folder() -> Path:
    """`$CWDFM_CACHE`, or `~/.cache/cwdfm`."""
    if folder := os.environ.get("CWDFM_CACHE"):
        return Path(folder)
    try:
        return Path.home() / ".cache" / "cwdfm"
    except RuntimeError:
        raise InputError(
            "there is no home directory to cache prepared data in; set CWDFM_CACHE to a folder, "
            "or in Python use cache=False"
        ) from None


def cache_place(name: str, key: object) -> Path:
    """Where data lie that depend on a key (JSON), by the name of what they are made of."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder() / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:60]}-{digest[:24]}"


def cached(
    name: str, key: object, make: Callable[[], TokenData], *, keep: bool = True
) -> TokenData:
    """`make()`, or what an earlier call with an equal key (JSON) made and kept.

    The key must hold everything the data depend on. An entry that cannot be read is made again,
    one that cannot be written is done without; both with a warning.
    """
    place = cache_place(name, {"format": FORMAT, "key": key})
    path = place.with_name(f"{place.name}.npz")
    try:
        if path.exists():
            return TokenData.load(path)
    except (InputError, OSError) as error:
        _warn(f"the cached data are made again: {error}")
    data = make()
    if not keep:
        return data
    try:
        data.save(path)
    except InputError as error:
        _warn(f"the prepared data are not cached: {error} (set CWDFM_CACHE to a writable folder)")
    return data


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
