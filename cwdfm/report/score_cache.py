"""Scores that took long, kept one by one: an interrupted evaluation goes on where it stood."""

import hashlib
import json
from pathlib import Path
from typing import Any

from cwdfm.files import write_json

CELLS = "cells"  # the folder's name within a report's
_FORMAT = 1
_BLOCK = 1 << 16


class Cells:
    """A folder with one JSON file a score, named by all that the score depends on."""

    def __init__(self, report: Path) -> None:
        self.folder = report / CELLS

    def open(self) -> None:
        """Make the folder, before anything is computed for it."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The score, if it is there whole."""
        try:
            cell = json.loads(self._path(key).read_text())
        except (OSError, ValueError):
            return None
        value: dict[str, Any] | None = cell.get("value") if isinstance(cell, dict) else None
        return value

    def put(self, key: dict[str, Any], value: dict[str, Any]) -> None:
        """Keep a score."""
        write_json(self._path(key), {"key": key, "value": value})

    def _path(self, key: dict[str, Any]) -> Path:
        text = json.dumps([_FORMAT, key], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def model_identity(name: str) -> dict[str, Any]:
    """What tells a model from another of the same name: sizes, beginnings and ends of its files.

    Other weights differ everywhere, so that gigabytes need not be read. A hub name has no files.
    A model of one file is the same under any name; in a folder names tell what is what.
    """
    path = Path(name).expanduser()
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            size = file.stat().st_size
            digest.update(f"{file.name if path.is_dir() else ''} {size} ".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(_BLOCK))
                stream.seek(max(0, size - _BLOCK))
                digest.update(stream.read())
    return {"model": name, "files": digest.hexdigest() if files else None}
