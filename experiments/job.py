"""Jobs: pieces of work that are done once, by whoever comes first.

A job is a frozen dataclass, and its key a checksum of all it says. What it makes lies in a folder
of that name, with a `result.json` that is written last. So finished jobs are not done again (unless
what they left is gone and another needs it), a sweep that was interrupted goes on, and several
processes or machines can share a folder: whoever works on a job holds its lock.
"""

import dataclasses
import hashlib
import json
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from cwdfm.config import to_config
from cwdfm.errors import InputError
from cwdfm.files import LOCK, held, write_json
from cwdfm.provenance import provenance

Result = dict[str, Any]


FAILURE = "failure.txt"  # in the folder of a job that broke off: how
AGAIN = "again"  # a file in the folder of a job with a result that is being done again


def _nothing() -> None:
    pass


def _clear(place: Path) -> None:
    """Make a finished job's folder ready for another run: its result alone stays until then."""
    (place / AGAIN).touch()
    for path in place.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (AGAIN, LOCK, "result.json"):
            path.unlink()


class WrongFolder(InputError):
    """One that cannot be written, has a damaged file, or is of another corpus or judge."""


class Fields(dict[str, Any]):
    """What an object of JSON holds. A field that is asked for in vain is told, with its file."""

    def __init__(self, found: dict[str, Any], path: Path) -> None:
        super().__init__(found)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise WrongFolder(
            f"{self.path} is damaged (it lacks {name!r}); delete its folder, and "
            f"the same command does the job again"
        )


def _read(path: Path, right: Callable[[Any], bool], remedy: str) -> Any:
    """What a file of JSON holds; a damaged one is refused."""
    try:
        found = json.loads(path.read_text(), object_hook=lambda fields: Fields(fields, path))
    except ValueError as error:
        raise WrongFolder(f"{path} is damaged ({error}); {remedy}") from error
    if not right(found):
        raise WrongFolder(f"{path} is damaged (it holds {json.dumps(found)[:40]}); {remedy}")
    return found


def _is_record(found: Any) -> bool:
    """Whether this is what `Store.do` writes, so far as the store itself reads it."""
    match found:
        case {"result": dict(), "provenance": {"date": str()}, **others}:
            earlier = others.get("earlier", [])
            dates = isinstance(earlier, list) and all(isinstance(date, str) for date in earlier)
            return dates and isinstance(others.get("needs", {}), dict)
    return False


@dataclass(frozen=True)
class Resources:
    """What a machine brings along; it does not change what a job is."""

    device: torch.device
    molecules: str = "qm9"  # where the corpus of molecules lies, or its name
    text: str | None = None  # where the corpus of text lies, or its name
    eval_model: str | None = None  # where the judge of text lies, or its name
    tests: tuple[tuple[str, str], ...] = ()  # names of test corpora, and where they lie

    def corpus(self, kind: str) -> str:
        """The place or name of a corpus."""
        found: str | None = getattr(self, kind)
        if found is None:
            raise Unavailable(f"needs a corpus of {kind}: give one by --{kind}")
        return found

    def test(self, name: str) -> str:
        """The place or name of a test corpus."""
        found = dict(self.tests).get(name)
        if found is None:
            raise Unavailable(f"needs the test corpus {name}: give it by --tests {name}=PLACE")
        return found


class Unavailable(InputError):
    """The job needs something that this machine lacks; another may have it."""


@dataclass(frozen=True)
class Job(ABC):
    """A piece of work. Its fields say all that its result depends on, apart from the code."""

    version: ClassVar[int] = 1  # raise it when the same fields shall mean another result

    @property
    def needs(self) -> "tuple[Job, ...]":
        """Jobs that must be done before: those among the fields."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return tuple(value for value in values if isinstance(value, Job))

    @property
    def leaves(self) -> tuple[str, ...]:
        """What others need of its folder, beside the result: names of files and folders there."""
        return ()

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        return type(self).__name__.lower()

    @cached_property
    def name(self) -> str:
        """What it is, and the checksum of its fields: the name of its folder."""
        said = json.dumps([self.version, to_config(self)], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"

    @property
    def about(self) -> str:
        """What it is about, for people."""
        return next((other.about for other in self.needs), "")

    @property
    def label(self) -> str:
        """What it is and is about."""
        return f"{self.kind} ({self.about})" if self.about else self.kind

    def check(self, resources: Resources) -> None:  # noqa: B027 (some need nothing)
        """Refuse what the machine brings along for it and is wrong, before any job is begun."""

    @abstractmethod
    def run(self, place: Path, store: "Store", resources: Resources) -> Result:
        """Do the work in the folder `place`, and return what is to be known of it.

        What a run that was killed left there may be used.
        """

    def __str__(self) -> str:
        return self.name


class Store:
    """The folder that jobs share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, job: Job) -> Path:
        """Where a job's work lies."""
        return self.folder / job.name

    def result(self, job: Job) -> Result | None:
        """What came of a job; None while it is not done. A damaged result is none."""
        path = self.place(job) / "result.json"
        try:
            found: Result = _read(path, _is_record, "the job is done again")
        except FileNotFoundError:
            return None
        except WrongFolder as error:
            warnings.warn(str(error), stacklevel=2)
            return None
        return found

    def found(self, job: Job) -> Result:
        """The numbers of a job that is done."""
        result = self.result(job)
        assert result is not None, f"{job} is not done"
        numbers: Result = result["result"]
        return numbers

    def ready(self, job: Job) -> bool:
        """Whether a job is done, what others need of it is there, and nobody makes it again."""
        if self.result(job) is None or (self.place(job) / AGAIN).exists():
            return False
        return all((self.place(job) / name).exists() for name in job.leaves)

    def run_of(self, need: Job, job: Job) -> str | None:
        """By which run of one it needs a job was done: that run's date; None if either is not done.

        A job whose files were lost may have been done several times. Results that do not say of
        which run they are, are of the last before them.
        """
        mine, its = self.result(job), self.result(need)
        if mine is None or its is None:
            return None
        if need.name in mine.get("needs", {}):
            return str(mine["needs"][need.name])
        runs = [*its.get("earlier", []), its["provenance"]["date"]]
        before = [date for date in runs if date <= mine["provenance"]["date"]]
        return str(before[-1] if before else runs[0])

    def remembers(self, what: str) -> bool:
        """Whether results here are of a corpus or judge, which `same` compares with."""
        return (self.folder / f"{what}.json").exists()

    def same(self, what: str, identity: str) -> None:
        """Refuse another corpus or judge than the one that this folder's results come from."""
        path = self.folder / f"{what}.json"
        if not self.remembers(what):
            write_json(path, identity)
        before = _read(path, lambda found: isinstance(found, str), "delete it")
        if before != identity:
            raise WrongFolder(
                f"the results in {self.folder} were made with other {what} ({before[:16]}) than "
                f"is given now ({identity[:16]}); give the same, or another folder"
            )

    def do(self, job: Job, resources: Resources, begun: Callable[[], object] = _nothing) -> bool:
        """Do the job, unless it is ready or someone else is at it; whether it is ready now.

        `begun` is called once the job is ours.
        """
        if self.ready(job):
            return True
        with self._held(job) as mine:
            if not mine:
                return False
            if self.ready(job):  # by whoever had the lock
                return True
            begun()
            place, start = self.place(job), time.perf_counter()
            last = self.result(job)
            if last is not None and not (place / AGAIN).exists():
                _clear(place)
            result = job.run(place, self, resources)
            if missing := [name for name in job.leaves if not (place / name).exists()]:
                raise RuntimeError(f"{job} did not leave {', '.join(missing)}")
            needed = {need.name: self.result(need) for need in job.needs}
            record = {
                "job": to_config(job),
                "needs": {
                    name: found["provenance"]["date"] for name, found in needed.items() if found
                },
                "result": result,
                "seconds": time.perf_counter() - start,
                "provenance": provenance(),
            }
            if last is not None:
                record["earlier"] = [*last.get("earlier", []), last["provenance"]["date"]]
            write_json(place / "result.json", record)
            for name in (AGAIN, FAILURE):
                (place / name).unlink(missing_ok=True)
            return True

    @contextmanager
    def _held(self, job: Job) -> Iterator[bool]:
        """Hold the job's lock if it is free."""
        place = self.place(job)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WrongFolder(f"cannot write {place}: {error.strerror or error}") from error
        with held(place) as mine:
            yield mine
