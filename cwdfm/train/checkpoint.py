"""Checkpoints that survive: written whole or not at all, known by checksum, the last few kept.

A checkpoint is a folder `step-00001000`: the model as it is used (`model.safetensors` and
`config.json`: a folder like any other trained model's), what training needs beside it
(`training.safetensors`) and the rest in `meta.json`, checksums included. It is written under
another name and renamed when complete, so a process killed at any moment leaves whole checkpoints
only.
"""

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.files import read_tensors, retry_advice, write_tensors
from cwdfm.pretrained.model import Pretrained, checksum, verify

FORMAT = 2
_WEIGHTS, _TRAINING = "model.safetensors", "training.safetensors"


def save_checkpoint(
    folder: Path,
    step: int,
    model: Pretrained,
    tensors: dict[str, Tensor],
    meta: dict[str, Any],
    keep: int,
) -> Path:
    """Write checkpoint `step`, then drop all but the newest `keep` and the best one."""
    final = folder / f"step-{step:08d}"
    part = folder / f".part-{step:08d}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        model.save_pretrained(part)
        write_tensors(part / _TRAINING, tensors)
        digests = {file.name: checksum(file) for file in sorted(part.iterdir())}
        record = {"format": FORMAT, "step": step, "sha256": digests, **meta}
        (part / "meta.json").write_text(json.dumps(record, indent=2))
        for file in part.iterdir():
            _sync(file)
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(
            f"checkpoint {final} could not be written: {error.strerror or error}; the ones before "
            f"it are whole. {retry_advice(error, folder)} and start again with the same command"
        ) from error
    _prune(folder, final, keep, f"step-{meta['best_step']:08d}")
    return final


def _prune(folder: Path, newest: Path, keep: int, best: str) -> None:
    """Drop what is too old, what an interrupted save left, and the damaged beyond the newest."""
    found = checkpoints(folder)
    place = found.index(newest) + 1
    old = [path for path in found[: max(0, place - keep)] if path.name != best]
    for path in (*old, *found[place:], *folder.glob(".part-*")):
        shutil.rmtree(path, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """The folder's complete checkpoints, oldest first."""
    return sorted(folder.glob("step-????????"))


def load_latest(
    folder: Path,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]] | None:
    """Averaged weights, tensors and meta of the newest undamaged checkpoint; None without any.

    A damaged one is passed over with a warning; if all are, that is an error.
    """
    damaged = ""
    for path in reversed(checkpoints(folder)):
        try:
            meta: dict[str, Any] = json.loads((path / "meta.json").read_text())
            if meta["format"] != FORMAT:
                raise InputError(
                    f"checkpoint {path} has format {meta['format']}, this version reads {FORMAT}; "
                    f"go on with the version that wrote it, or give another --out"
                )
            if not _is_meta(meta):
                raise ValueError("its meta.json lacks something, or holds another kind of it")
            verify(path)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            damaged = f"checkpoint {path} is damaged ({error})"
            warnings.warn(f"{damaged}; using the one before", stacklevel=2)
            continue
        return read_tensors(path / _WEIGHTS), read_tensors(path / _TRAINING), meta
    if damaged:
        raise InputError(
            f"{damaged}, and there is no other to go on from; delete {folder} to start afresh"
        )
    return None


def _is_meta(meta: Any) -> bool:
    """Whether this is what a run writes and goes on from."""
    match meta:
        case {
            "step": int(step),
            "recipe": dict(),
            "data": str(),
            "best": None | int() | float(),
            "best_step": int(),
            "losses": list(losses),
            **others,
        }:
            numbers = all(isinstance(loss, int | float) for loss in losses)
            told = isinstance(others.get("earlier", []), list)
            return 0 <= step < 2**31 and numbers and told
    return False


def _sync(path: Path) -> None:
    """Have the operating system put a file on the disk before its name appears."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
