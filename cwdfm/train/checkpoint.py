"""Checkpoints that survive: written whole or not at all, known by checksum, the last few kept.

A checkpoint is a folder `step-00001000` with tensors in `state.safetensors` and everything else in
`meta.json`, checksum included. It is written under another name and renamed when complete, so a
process killed at any moment leaves whole checkpoints only.
"""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from cwdfm.errors import InputError, load_extra

FORMAT = 1


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], meta: dict[str, Any], keep: int
) -> Path:
    """Write checkpoint `step` into folder, then drop all but the newest `keep`."""
    final = folder / f"step-{step:08d}"
    part = folder / f".part-{step:08d}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        load_extra("safetensors.torch", "cli").save_file(
            {k: v.contiguous().cpu() for k, v in tensors.items()}, part / "state.safetensors"
        )
        digest = _digest(part / "state.safetensors")
        record = {"format": FORMAT, "step": step, "sha256": digest, **meta}
        (part / "meta.json").write_text(json.dumps(record, indent=2))
        for file in part.iterdir():
            _sync(file)
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(
            f"checkpoint {final} could not be written ({error}); the ones before it are whole. "
            f"Free some space and start again with the same command"
        ) from error
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """The folder's complete checkpoints, oldest first."""
    return sorted(folder.glob("step-????????"))


def load_latest(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and meta of the newest checkpoint that is undamaged; None if there is none.

    A damaged one is passed over with a warning.
    """
    for path in reversed(checkpoints(folder)):
        try:
            meta: dict[str, Any] = json.loads((path / "meta.json").read_text())
            if meta["sha256"] != _digest(path / "state.safetensors"):
                raise ValueError("its checksum does not match")
        except (OSError, ValueError, KeyError) as error:
            warnings.warn(
                f"checkpoint {path} is damaged ({error}); using the one before", stacklevel=2
            )
            continue
        if meta["format"] > FORMAT:
            raise InputError(
                f"checkpoint {path} has format {meta['format']}, newer than this version's "
                f"{FORMAT}; update the library"
            )
        return load_extra("safetensors.torch", "cli").load_file(path / "state.safetensors"), meta
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Have the operating system put a file on the disk before its name appears."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
