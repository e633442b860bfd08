"""The folder of results: one folder per task, named by the task's key.

`result.json` is written last and atomically. A task with a result is finished and never runs again,
unless its outputs were deleted and an unfinished task needs them. Each task runs under a lock in
its folder, so two runs can share a store.
"""

import json
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from cwdfm.config import to_config
from cwdfm.errors import InputError
from cwdfm.files import write_json
from cwdfm.provenance import provenance
from experiments.tasks.base import Resources, Result, Task

RESULT, FAILURE = "result.json", "failure.txt"
RERUN = "again"  # marks a finished task that is being run again for its outputs
LOCK = "lock"


class StoreError(InputError):
    """The store cannot be written, contains a damaged file, or belongs to a different corpus."""


class Store:
    """The results of tasks under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, task: Task) -> Path:
        return self.root / task.name

    def record(self, task: Task) -> Result | None:
        """The record of a finished task, else None. A damaged record counts as missing.

        Its keys: "job" (the task's fields), "needs" (dates of its dependencies), "result",
        "seconds", "provenance" and, if the task ran more than once, "earlier" (dates).
        """
        path = self.folder(task) / RESULT
        try:
            record: Result = _read_json(path, _is_record, "the task runs again")
        except FileNotFoundError:
            return None
        except StoreError as error:
            warnings.warn(str(error), stacklevel=2)
            return None
        return record

    def result(self, task: Task) -> Result | None:
        """What the task returned; None if it is not finished."""
        record = self.record(task)
        found: Result | None = None if record is None else record["result"]
        return found

    def ready(self, task: Task) -> bool:
        folder = self.folder(task)
        if self.record(task) is None or (folder / RERUN).exists():
            return False
        return all((folder / name).exists() for name in task.outputs)

    def run_date(self, dependency: Task, task: Task) -> str | None:
        """The date of the run of `dependency` that `task` used; None if either is not finished.

        A training whose model was deleted may have run several times. Old records do not name
        the run they used: it is the last one before them.
        """
        mine, other = self.record(task), self.record(dependency)
        if mine is None or other is None:
            return None
        if dependency.name in mine.get("needs", {}):
            return str(mine["needs"][dependency.name])
        runs = [*other.get("earlier", []), other["provenance"]["date"]]
        before = [date for date in runs if date <= mine["provenance"]["date"]]
        return str(before[-1] if before else runs[0])

    def has_fingerprint(self, name: str) -> bool:
        """Whether the store's results depend on a corpus or evaluator of this name."""
        return (self.root / f"{name}.json").exists()

    def check_fingerprint(self, name: str, fingerprint: str) -> None:
        """Raise an error if earlier results used a different corpus or evaluator; else record it."""
        path = self.root / f"{name}.json"
        if not self.has_fingerprint(name):
            write_json(path, fingerprint)
        before = _read_json(path, lambda found: isinstance(found, str), "delete it")
        if before != fingerprint:
            raise StoreError(
                f"the results in {self.root} were computed with different {name} ({before[:16]}) "
                f"from the one given now ({fingerprint[:16]}); use the same, or a different folder"
            )

    def run(self, task: Task, resources: Resources) -> None:
        """Run the task unless it is ready, and write its result."""
        if self.ready(task):
            return
        folder = self.folder(task)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write {folder}: {error.strerror or error}") from error
        with FileLock(folder / LOCK):
            if not self.ready(task):  # another run may have finished it in the meantime
                self._run_locked(task, folder, resources)

    def _run_locked(self, task: Task, folder: Path, resources: Resources) -> None:
        last, start = self.record(task), time.perf_counter()
        if last is not None and not (folder / RERUN).exists():
            _clear(folder)
        result = task.run(folder, self, resources)
        if missing := [name for name in task.outputs if not (folder / name).exists()]:
            raise RuntimeError(f"{task} did not write {', '.join(missing)}")
        needed = {other.name: self.record(other) for other in task.dependencies}
        origin = provenance()
        origin |= {} if resources.command is None else {"command": resources.command}
        record = {
            "job": to_config(task),
            "needs": {name: each["provenance"]["date"] for name, each in needed.items() if each},
            "result": result,
            "seconds": time.perf_counter() - start,
            "provenance": origin,
        }
        if last is not None:
            record["earlier"] = [*last.get("earlier", []), last["provenance"]["date"]]
        write_json(folder / RESULT, record)
        for name in (RERUN, FAILURE):
            (folder / name).unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Clear a finished task's folder for another run, keeping only the old result."""
    (folder / RERUN).touch()
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (RERUN, LOCK, RESULT):
            path.unlink()


class _Fields(dict[str, Any]):
    """A JSON object. A missing key raises an error that names the file."""

    def __init__(self, fields: dict[str, Any], path: Path) -> None:
        super().__init__(fields)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise StoreError(
            f"{self.path} is damaged ({name!r} is missing); delete its folder and run the same "
            f"command again"
        )


def _read_json(path: Path, is_valid: Callable[[Any], bool], remedy: str) -> Any:
    """The content of a JSON file; raises `StoreError` if it is damaged."""
    try:
        content = json.loads(path.read_text(), object_hook=lambda fields: _Fields(fields, path))
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}); {remedy}") from error
    if not is_valid(content):
        raise StoreError(f"{path} is damaged (it holds {json.dumps(content)[:40]}); {remedy}")
    return content


def _is_record(found: Any) -> bool:
    """Whether this is a record as `Store.run` writes it."""
    match found:
        case {"result": dict(), "provenance": {"date": str()}, **others}:
            earlier = others.get("earlier", [])
            dates = isinstance(earlier, list) and all(isinstance(date, str) for date in earlier)
            return dates and isinstance(others.get("needs", {}), dict)
    return False
