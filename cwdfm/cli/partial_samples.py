"""Partial sample files, from which an interrupted job resumes.

Beside the output FILE, the folder FILE.parts holds the settings of the job and its finished
batches, each in a file named after the first and last sample number. Sample i of a seed does not
depend on the batch or process that draws it. Batches can therefore be finished in any order, and a
job can resume with a different batch size or number of processes.
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


class PartialSamples:
    """The finished batches of one output file."""

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.folder = out.with_name(out.name + ".parts")
        self.settings = settings

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Raise an error if another job is writing the same file."""
        if rank() == 0:
            with self._write_errors(self.folder):
                self.folder.mkdir(exist_ok=True)
        out = self.folder.with_suffix("")
        other = f"another run is sampling {out} (use torchrun to share the work)"
        with exclusive(self.folder, other):
            try:
                yield
            finally:
                if rank() == 0 and not self._files():
                    self.discard()

    def _files(self) -> list[Path]:
        """All files of the job except its lock."""
        return [path for path in self.folder.glob("*") if path.name != LOCK]

    def open(self, *, force: bool) -> set[int]:
        """Start or resume the job. Returns the numbers of the finished samples.

        Batches of a job with different settings raise an error, or are deleted with `force`.
        """
        files = self._files()
        if not files or self._same_settings():
            return set(self.records())
        if not force:
            raise InputError(
                f"{self.folder} holds part of a job with different settings; repeat those settings "
                f"to resume it, choose a different --out, or delete it with --force"
            )
        for path in files:
            path.unlink(missing_ok=True)
        return set()

    def _same_settings(self) -> bool:
        try:
            settings = json.loads((self.folder / _SETTINGS).read_text())
        except (OSError, ValueError):
            return False
        return bool(settings == self.settings)

    def add(self, records: dict[int, dict[str, Any]]) -> None:
        """Save finished samples, by number."""
        if not (self.folder / _SETTINGS).exists():
            self._write(self.folder / _SETTINGS, self.settings)
        self._write(self.folder / f"{min(records)}-{max(records)}.piece", records)

    def records(self) -> dict[int, dict[str, Any]]:
        """All finished samples in order. Damaged files are skipped and sampled again."""
        found: dict[int, dict[str, Any]] = {}
        for piece in self.folder.glob("*.piece"):
            with suppress(ValueError):  # truncated, for example by a power failure
                found |= {int(i): row for i, row in json.loads(piece.read_text()).items()}
        return dict(sorted(found.items()))

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, path: Path, data: object) -> None:
        with self._write_errors(path), replacing(path) as part:
            part.write_text(json.dumps(data))

    @contextmanager
    def _write_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write {path}: {error.strerror or error}; finished samples are kept. "
                f"{retry_advice(error, path)}, then run the same command again"
            ) from error
