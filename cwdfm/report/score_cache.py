"""Scores that took long, kept one by one: an interrupted evaluation goes on where it stood."""

import hashlib
import json
from pathlib import Path
from typing import Any

from cwdfm.files import write_json

CELLS = "cells"  # the folder's name within a report's
_FORMAT = 1


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
