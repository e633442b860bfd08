"""Jobs: pieces of work that are done once, by whoever comes first.

A job is a frozen dataclass, and its key a checksum of all it says. What it makes lies in a folder
of that name, with a `result.json` that is written last. So finished jobs are never done again,
a sweep that was interrupted goes on, and several processes or machines can share a folder: whoever
works on a job holds its lock.
"""

import dataclasses
import gc
import hashlib
import json
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from cwdfm.config import to_config
from cwdfm.errors import InputError
from cwdfm.provenance import provenance, write_json

Result = dict[str, Any]
TRIES = 4  # of a job that lacks memory, where others may hold it


@dataclass(frozen=True)
class Resources:
    """What a machine brings along; it does not change what a job is."""

    device: torch.device
    molecules: str = "qm9"  # where the corpus of molecules lies, or its name
    text: str | None = None  # where the corpus of text lies, or its name
    judge: str | None = None  # where the judge of text lies, or its name
    tests: tuple[tuple[str, str], ...] = ()  # names of test corpora, and where they lie

    def corpus(self, kind: str) -> str:
        """The place or name of a corpus."""
        found: str | None = getattr(self, kind)
        if found is None:
            raise Unavailable(f"no {kind}; say where the corpus lies by --{kind}")
        return found

    def test(self, name: str) -> str:
        """The place or name of a test corpus."""
        found = dict(self.tests).get(name)
        if found is None:
            raise Unavailable(f"no test corpus {name}; say where it lies by --tests {name}=PLACE")
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
    def kind(self) -> str:
        """What it is, in a word."""
        return type(self).__name__.lower()

    @property
    def name(self) -> str:
        """What it is, and the checksum of its fields: the name of its folder."""
        said = json.dumps([self.version, to_config(self)], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"

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
        """What came of a job; None while it is not done."""
        path = self.place(job) / "result.json"
        try:
            found: Result = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}); delete its folder") from error
        return found

    def found(self, job: Job) -> Result:
        """The numbers of a job that is done."""
        result = self.result(job)
        assert result is not None, f"{job} is not done"
        numbers: Result = result["result"]
        return numbers

    def older(self, job: Job, need: Job) -> bool:
        """Whether a job was done before the one it needs was: by an earlier run of that.

        So it is where what a job needs was lost and done again.
        """
        mine, its = self.result(job), self.result(need)
        if mine is None or its is None:
            return False
        return bool(mine["provenance"]["date"] < its["provenance"]["date"])

    def same(self, what: str, identity: str) -> None:
        """Refuse another corpus or judge than the one that this folder's results come from."""
        path = self.folder / f"{what}.json"
        if not path.exists():
            write_json(path, identity)
        elif (before := json.loads(path.read_text())) != identity:
            raise InputError(
                f"the results in {self.folder} were made with other {what} ({before[:16]}) than "
                f"is given now ({identity[:16]}); give the same, or another folder"
            )

    def do(self, job: Job, resources: Resources) -> bool:
        """Do the job, unless it is done or someone else is at it; whether it is done now."""
        if self.result(job) is not None:
            return True
        with self._held(job) as mine:
            if not mine:
                return False
            if self.result(job) is not None:  # by whoever had the lock
                return True
            start = time.perf_counter()
            result = job.run(self.place(job), self, resources)
            record = {
                "job": to_config(job),
                "result": result,
                "seconds": time.perf_counter() - start,
                "provenance": provenance(),
            }
            write_json(self.place(job) / "result.json", record)
            (self.place(job) / "failure.txt").unlink(missing_ok=True)
            return True

    @contextmanager
    def _held(self, job: Job) -> Iterator[bool]:
        """Hold the job's lock if it is free; it goes with the process, however that ends."""
        place = self.place(job)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {place}: {error.strerror or error}") from error
        if sys.platform == "win32":
            yield True
            return
        import fcntl

        with (place / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


@dataclass(frozen=True)
class Broke:
    """Why a job broke off."""

    why: str
    short: bool  # of memory


def _tried(store: Store, job: Job, resources: Resources) -> bool | Unavailable | Broke:
    """Do a job if it is free: whether it is done, what this machine lacks, or why it broke off.

    No error leaves this place with its frames, which hold memory; what stops all jobs is raised.
    """
    try:
        return store.do(job, resources)
    except Unavailable as error:
        return error.with_traceback(None)
    except (InputError, OSError):  # as a rule of all jobs: a wrong place, a full disk
        raise
    except Exception as error:  # of this one; the others are worth having
        (store.place(job) / "failure.txt").write_text(traceback.format_exc())
        why = traceback.format_exception_only(error)[-1].splitlines()[0]
        return Broke(why, isinstance(error, torch.OutOfMemoryError))


def _release() -> None:
    """Give back what a GPU's memory is held by no longer: other processes may share it."""
    if torch.cuda.is_initialized():  # looking for it takes a while, and there may be many jobs
        gc.collect()
        torch.cuda.empty_cache()


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """The jobs and all they need, each once, those needed first."""
    done: dict[Job, None] = {}

    def visit(job: Job) -> None:
        if job not in done:
            for other in job.needs:
                visit(other)
            done[job] = None

    for job in jobs:
        visit(job)
    return list(done)


@dataclass(frozen=True)
class Outcome:
    """How far a sweep came."""

    done: int
    lacking: dict[Job, str]  # what this machine could not do, and why
    elsewhere: list[Job]  # in others' hands
    waiting: list[Job]  # for one of those
    failed: dict[Job, str]  # what broke off, and why; it is tried again next time

    @property
    def complete(self) -> bool:
        return not (self.lacking or self.elsewhere or self.waiting or self.failed)


def work(
    store: Store,
    jobs: Iterable[Job],
    resources: Resources,
    *,
    only: Collection[str] = (),
    say: Callable[[str], object] = print,
    wait: float = 0.0,
) -> Outcome:
    """Do all jobs that can be done here; if `only` names kinds of them, none but those.

    A job that breaks off leaves `failure.txt` in its folder, and the others go on.
    With `wait` > 0, look again every so many seconds for what others were at, until nothing is in
    others' hands. A GPU's memory may be in their hands as well: a job that lacks it then is tried a
    few times.
    """
    order = in_order(jobs)
    failed: dict[Job, str] = {}
    short: Counter[Job] = Counter()
    while True:
        outcome = _pass(store, order, resources, only, say, failed, short if wait else None)
        if not outcome.elsewhere or not wait:
            return outcome
        time.sleep(wait)


def _pass(
    store: Store,
    order: list[Job],
    resources: Resources,
    only: Collection[str],
    say: Callable[[str], object],
    failed: dict[Job, str],
    short: Counter[Job] | None,
) -> Outcome:
    """One look at all jobs; `failed` has those of earlier looks, and gets this one's.

    `short` counts how often each has lacked memory, if there will be another look.
    """
    done: set[Job] = set()
    lacking: dict[Job, str] = {}
    elsewhere: list[Job] = []
    waiting: list[Job] = []
    for number, job in enumerate(order, start=1):
        if store.result(job) is not None:
            done.add(job)
        elif job in failed:
            continue
        elif only and job.kind not in only:
            lacking[job] = f"only {', '.join(only)} are to be done"
        elif missing := [other for other in job.needs if other not in done]:
            if any(other in failed for other in missing):
                failed[job] = "needs one that failed"
            elif any(other in lacking for other in missing):
                lacking[job] = "needs one that is lacking"
            else:
                waiting.append(job)
        else:
            say(f"[{number}/{len(order)}] {job}")
            came = _tried(store, job, resources)
            _release()
            if isinstance(came, Unavailable):
                lacking[job] = str(came)
            elif not isinstance(came, Broke):
                (done.add if came else elsewhere.append)(job)
            elif came.short and short is not None and short[job] + 1 < TRIES:
                short[job] += 1
                elsewhere.append(job)
                say(f"no memory for {job} now; again later")
            else:
                failed[job] = came.why
                say(f"failed: {job}: {came.why}")
    return Outcome(len(done), lacking, elsewhere, waiting, failed)
