"""Sweeps: many jobs in their order, by one process or by several that share a folder."""

import gc
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch

from cwdfm.errors import InputError
from cwdfm.files import is_disk_full
from experiments.job import FAILURE, Job, Resources, Store, Unavailable, WrongFolder

TRIES = 4  # of a job that lacks memory, where others may hold it
NEEDS_FAILED, NEEDS_LACKING = "needs a job that failed", "needs a job that is not done here"


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


def wanted(store: Store, jobs: Iterable[Job]) -> list[Job]:
    """What is to be done for these jobs: those without a result, and what they need.

    A job with a result is done again only where one of those needs what it left and that is gone,
    as from a folder of which the results alone were kept.
    """
    order = in_order(jobs)
    asked: set[Job] = set()
    found: set[Job] = set()
    for job in reversed(order):
        if store.result(job) is None or (job in asked and not store.ready(job)):
            found.add(job)
            asked.update(job.needs)
    return [job for job in order if job in found]


def check(
    todo: Iterable[Job], resources: Resources, only: Collection[str] = ()
) -> dict[Job, str | None]:
    """Refuse wrong places before the first job is begun: those that jobs to be done here need.

    What each of those lacks is returned: it is left to another machine.
    """
    return {job: lack(job, resources) for job in todo if not only or job.kind in only}


def lack(job: Job, resources: Resources) -> str | None:
    """What a job needs and this machine does not have; None if it has all. Wrong places raise."""
    try:
        job.check(resources)
    except Unavailable as error:
        return str(error)
    return None


def hindered(
    todo: Iterable[Job], resources: Resources, only: Collection[str] = ()
) -> dict[Job, str]:
    """What is not to be done here, and why."""
    order = list(todo)
    reason = f"only {', '.join(only)} are to be done"
    found = {job: reason for job in order if only and job.kind not in only}
    for job in order:
        with suppress(InputError):  # a wrong place: the job is begun, and fails by it
            if (why := lack(job, resources)) is not None:
                found.setdefault(job, why)
    return found


def foreseen(
    todo: Iterable[Job], resources: Resources, only: Collection[str] = ()
) -> dict[Job, str]:
    """What a sweep would leave of these jobs, which are in order, so far as one can tell before."""
    order = list(todo)
    found = hindered(order, resources, only)
    for job in order:
        if any(need in found for need in job.needs):
            found.setdefault(job, NEEDS_LACKING)
    return found


def failure(store: Store, job: Job, since: float) -> str:
    """Why a job has failed since some time, by the note it left; nothing if it has not."""
    path = store.place(job) / FAILURE
    try:
        if path.stat().st_mtime < since:
            return ""
        return path.read_text().rstrip().rpartition("\n")[2] or "unknown"
    except FileNotFoundError:  # or another has done it this moment
        return ""


@dataclass(frozen=True)
class Outcome:
    """How far a sweep came."""

    done: int
    lacking: dict[Job, str]  # what this machine could not do, and why
    elsewhere: list[Job]  # in others' hands
    waiting: list[Job]  # for one of those, or for another time
    failed: dict[Job, str]  # what broke off, and why; it is tried again next time

    @property
    def complete(self) -> bool:
        return not (self.lacking or self.elsewhere or self.waiting or self.failed)

    def with_failures(self, store: Store, since: float) -> "Outcome":
        """The same, where jobs that were not begun here have failed for others since some time."""
        found = {job: why for job in self.waiting if (why := failure(store, job, since))}
        waiting = [job for job in self.waiting if job not in found]
        return replace(self, waiting=waiting, failed=self.failed | found)


def work(
    store: Store,
    jobs: Iterable[Job],
    resources: Resources,
    *,
    only: Collection[str] = (),
    say: Callable[[str], object] = print,
    wait: float = 0.0,
    limit: float = math.inf,
    since: float = math.inf,
) -> Outcome:
    """Do all jobs that can be done here; if `only` names kinds of them, none but those.

    After each, the first is taken that can be done by then: several processes keep to one order.
    One that breaks off leaves `failure.txt` in its folder, and the others go on.
    With `wait` > 0, look again every so many seconds for what others were at, until nothing is in
    others' hands. A GPU's memory may be in their hands as well: a job that lacks it then is tried a
    few times. After `limit` seconds no job is begun.
    A job that has failed `since` some time (of the clock) is not tried here: another process of the
    same command has tried it.
    """
    end = time.monotonic() + limit
    sweep = _Sweep(store, in_order(jobs), resources, only, say, wait, since)
    while time.monotonic() < end:
        if sweep.step():
            continue
        if not sweep.elsewhere or not wait:
            break
        time.sleep(min(wait, max(0.0, end - time.monotonic())))
    return sweep.outcome()


class _Sweep:
    """What one process knows of the jobs that it works on."""

    def __init__(
        self,
        store: Store,
        order: list[Job],
        resources: Resources,
        only: Collection[str],
        say: Callable[[str], object],
        wait: float,
        since: float,
    ) -> None:
        self.store, self.resources, self.say, self.wait = store, resources, say, wait
        self.since = since
        self.total = len(order)
        self.left = wanted(store, order)
        self.undone = frozenset(self.left)
        self.failed: dict[Job, str] = {}
        self.lacking = hindered(self.left, resources, only)
        self.elsewhere: list[Job] = []
        self.short: Counter[Job] = Counter()  # how often each has lacked memory
        self.later: dict[Job, float] = {}  # and when to try again

    def step(self) -> bool:
        """Do the first job that can be done; False if there is none at present."""
        self.left = [job for job in self.left if not self.store.ready(job)]
        self.undone = frozenset(self.left)
        self.elsewhere = []
        for reasons in (self.failed, self.lacking):  # others may have done what was missing
            for job, why in list(reasons.items()):
                if job not in self.undone or why in (NEEDS_FAILED, NEEDS_LACKING):
                    del reasons[job]
        for job in self.left:
            if job in self.failed or job in self.lacking or not self._has_all(job):
                continue
            if self.later.get(job, 0.0) > time.monotonic():
                self.elsewhere.append(job)
                continue
            if why := failure(self.store, job, self.since):
                self.failed[job] = why
                continue
            number = self.total - len(self.left) + 1
            about = f" ({job.about})" if job.about else ""
            begun = partial(self.say, f"[{number}/{self.total}] {job}{about}")
            came = _tried(self.store, job, self.resources, begun)
            _release()
            if came is True:
                self.left.remove(job)
            else:
                self._told(job, came)
            if came is not False:  # some time has gone by
                return True
        return False

    def _has_all(self, job: Job) -> bool:
        """Whether all that a job needs is there; what is not to be had is passed on."""
        missing = [other for other in job.needs if other in self.undone]
        if any(other in self.failed for other in missing):
            self.failed[job] = NEEDS_FAILED
        elif any(other in self.lacking for other in missing):
            self.lacking[job] = NEEDS_LACKING
        return not missing

    def _told(self, job: Job, came: "bool | Unavailable | Broke") -> None:
        """Remember why a job is not done."""
        if isinstance(came, Unavailable):
            self.lacking[job] = str(came)
        elif not isinstance(came, Broke):
            self.elsewhere.append(job)
        elif came.short and self.wait and self.short[job] + 1 < TRIES:
            self.short[job] += 1
            self.later[job] = time.monotonic() + self.wait
            self.elsewhere.append(job)
            self.say(f"no memory for {job} now; again later")
        else:
            (self.store.place(job) / FAILURE).write_text(came.trace)
            self.failed[job] = came.why
            self.say(f"failed: {job}: {came.why}")

    def outcome(self) -> Outcome:
        """What there is to say at the end."""
        told = {*self.lacking, *self.failed, *self.elsewhere}
        waiting = [job for job in self.left if job not in told]
        done = self.total - len(self.left)
        return Outcome(done, self.lacking, self.elsewhere, waiting, self.failed)


@dataclass(frozen=True)
class Broke:
    """Why a job broke off."""

    why: str
    trace: str
    short: bool  # of memory


def _tried(
    store: Store, job: Job, resources: Resources, begun: Callable[[], object]
) -> bool | Unavailable | Broke:
    """Do a job if it is free: whether it is done, what this machine lacks, or why it broke off.

    No error leaves this place with its frames, which hold memory; what stops all jobs is raised.
    """
    try:
        return store.do(job, resources, begun)
    except Unavailable as error:
        return error.with_traceback(None)
    except (WrongFolder, OSError):  # of all jobs: another corpus, a full disk
        raise
    except Exception as error:  # of this one; the others are worth having
        if isinstance(error.__cause__, OSError) and is_disk_full(error.__cause__):
            raise  # each of them would work up to where it is to be kept
        plain = isinstance(error, InputError)  # its message says it all
        why = str(error) if plain else traceback.format_exception_only(error)[-1].splitlines()[0]
        why += _remedy(store, job, why)
        return Broke(why, traceback.format_exc(), isinstance(error, torch.OutOfMemoryError))


def _remedy(store: Store, job: Job, why: str) -> str:
    """What to delete where a job broke off at what another left, which is not made again as is."""
    named = [need for need in job.needs if str(store.place(need)) in why]
    left = [str(store.place(need) / name) for need in named for name in need.leaves]
    return f"; to have it made again, delete {' and '.join(left)}" if left else ""


def _release() -> None:
    """Give back what a GPU's memory is held by no longer: other processes may share it."""
    if torch.cuda.is_initialized():  # looking for it takes a while, and there may be many jobs
        gc.collect()
        torch.cuda.empty_cache()
