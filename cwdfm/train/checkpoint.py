"""Checkpoints: written atomically, verified by checksum, only the newest few kept.

A checkpoint is a folder `step-00001000`. It contains the averaged model (`model.safetensors` and
`config.json`, like any saved model), the other tensors of the training state
(`training.safetensors`), and `meta.json` with the remaining state and the checksums. It is written
under a temporary name and renamed when complete, so a killed process never leaves a partial
checkpoint.
"""

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.files import (
    check_fields,
    read_json,
    read_tensors,
    remove_files,
    write_errors,
    write_tensors,
)
from cwdfm.pretrained.format import checksum, verify
from cwdfm.pretrained.model import Pretrained

FORMAT = 3  # format 2 has a flat `recipe` instead of the nested `config`
OLDEST_FORMAT = 2
_WEIGHTS, _TRAINING = "model.safetensors", "training.safetensors"
_NAMES = (_WEIGHTS, _TRAINING, "config.json", "meta.json")  # all files of a checkpoint
# Includes the temporary file that safetensors leaves if a run is killed while writing weights.
_FILES = "|".join((*map(re.escape, _NAMES), r"\.tmp\w{6}"))


def save_checkpoint(
    folder: Path, model: Pretrained, tensors: dict[str, Tensor], meta: dict[str, Any], keep: int
) -> None:
    """Write a checkpoint, then delete all but the newest `keep` and the best one."""
    final, part = (folder / f"{name}-{meta['step']:08d}" for name in ("step", ".part"))
    remove_files(part, _FILES)
    try:
        with write_errors(final, "earlier checkpoints are intact"):
            part.mkdir(parents=True)
            model.save_pretrained(part)
            write_tensors(part / _TRAINING, tensors)
            digests = {file.name: checksum(file) for file in sorted(part.iterdir())}
            record = {"format": FORMAT, "sha256": digests, **meta}
            (part / "meta.json").write_text(json.dumps(record, indent=2))
            for file in part.iterdir():
                _sync(file)
            remove_files(final, _FILES)  # if a damaged one exists
            part.rename(final)
    finally:
        remove_files(part, _FILES)
    _prune(folder, final, keep, f"step-{meta['best_step']:08d}")


def _prune(folder: Path, newest: Path, keep: int, best: str) -> None:
    """Delete old checkpoints, remains of interrupted saves, and damaged later checkpoints."""
    existing = checkpoints(folder)
    end = existing.index(newest) + 1
    old = [path for path in existing[: max(0, end - keep)] if path.name != best]
    for path in (*old, *existing[end:], *folder.glob(".part-*")):
        remove_files(path, _FILES)


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    folders = sorted(folder.glob("step-????????"))
    return [path for path in folders if any((path / name).exists() for name in _NAMES)]


Loaded = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]


def load_latest(folder: Path) -> Loaded | None:
    """Load the averaged weights, training tensors and metadata of the newest valid checkpoint.

    Returns None if there is no checkpoint. Damaged checkpoints are skipped with a warning; if all
    are damaged, an InputError is raised.
    """
    damaged = ""
    for path in reversed(checkpoints(folder)):
        try:
            meta = _read_meta(path)
            verify(path)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            damaged = f"checkpoint {path} is damaged ({error})"
            warnings.warn(f"{damaged}; using the previous one", stacklevel=2)
            continue
        return read_tensors(path / _WEIGHTS), read_tensors(path / _TRAINING), meta
    if damaged:
        raise InputError(
            f"{damaged}, and there is no other checkpoint to resume from; delete {folder} to start "
            f"from scratch"
        )
    return None


def _read_meta(path: Path) -> dict[str, Any]:
    """Read the metadata of a checkpoint in the current format; ValueError if it is damaged."""
    meta: dict[str, Any] = read_json(path / "meta.json")
    check_fields("meta.json", meta, format=int)
    if not OLDEST_FORMAT <= meta["format"] <= FORMAT:
        raise InputError(
            f"checkpoint {path} has format {meta['format']}, but this version reads formats "
            f"{OLDEST_FORMAT} to {FORMAT}; resume with the version that wrote it, or choose a "
            f"different output folder"
        )
    if meta["format"] == 2:
        meta["config"] = meta.pop("recipe")
    numbers = {"step": int, "best_step": int, "best": float | int | None}
    check_fields("meta.json", meta, config=dict, data=str, losses=list, **numbers)
    if not all(isinstance(loss, float | int) for loss in meta["losses"]):
        raise ValueError("'losses' in meta.json contains values that are not numbers")
    return meta


def _sync(path: Path) -> None:
    """Flush a file to disk, so that it is complete before the folder is renamed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
