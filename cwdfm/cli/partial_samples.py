"""Samples drawn piece by piece: an interrupted job goes on, and processes share one.

Beside the output FILE a folder FILE.parts holds the job's settings and the pieces that are done,
each written whole under the numbers of its samples. Sample i of a seed is the same sample whoever
draws it and in whatever company, so pieces need no order, and a job may go on with other batches
or another number of processes.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cwdfm.distributed import exclusive, rank
from cwdfm.errors import InputError
from cwdfm.files import LOCK, replacing, retry_advice

_SETTINGS = "settings.json"


class Parts:
    """The pieces of one output file."""

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.folder = out.with_name(out.name + ".parts")
        self.settings = settings

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse a file for which another job goes on: both would do all of the work."""
        if rank() == 0:
            with self._written(self.folder):
                self.folder.mkdir(exist_ok=True)
        out = self.folder.with_suffix("")
        other = f"another run (torchrun starts those that share a file) draws the samples of {out}"
        with exclusive(self.folder, other):
            try:
                yield
            finally:
                if rank() == 0 and not self._begun():
                    self.discard()

    def _begun(self) -> list[Path]:
        """What is there of a job."""
        return [path for path in self.folder.glob("*") if path.name != LOCK]

    def open(self, *, force: bool) -> set[int]:
        """Begin, or go on: the numbers of the samples that are done.

        Pieces of a job with other settings are refused, or with `force` thrown away.
        """
        begun = self._begun()
        if not begun or self._same():
            return set(self.rows())
        if not force:
            raise InputError(
                f"{self.folder} holds the beginning of a job with other settings; give the same "
                f"ones to go on with it, another --out, or --force to throw it away"
            )
        for path in begun:
            path.unlink(missing_ok=True)
        return set()

    def _same(self) -> bool:
        try:
            settings = json.loads((self.folder / _SETTINGS).read_text())
        except (OSError, ValueError):
            return False
        return bool(settings == self.settings)

    def add(self, rows: dict[int, dict[str, Any]]) -> None:
        """Keep finished samples, by number."""
        if not (self.folder / _SETTINGS).exists():
            self._write(self.folder / _SETTINGS, self.settings)
        self._write(self.folder / f"{min(rows)}-{max(rows)}.piece", rows)

    def rows(self) -> dict[int, dict[str, Any]]:
        """All finished samples, in order; those of a damaged piece are none, and drawn again."""
        found: dict[int, dict[str, Any]] = {}
        for piece in self.folder.glob("*.piece"):
            with suppress(ValueError):  # cut off, as by a machine that lost its power
                found |= {int(i): row for i, row in json.loads(piece.read_text()).items()}
        return dict(sorted(found.items()))

    def discard(self) -> None:
        """Throw the pieces away."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, path: Path, data: object) -> None:
        with self._written(path), replacing(path) as part:
            part.write_text(json.dumps(data))

    @contextmanager
    def _written(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write {path}: {error.strerror or error}; what is done is kept. "
                f"{retry_advice(error, path)} and start again with the same command"
            ) from error
