"""What `python -m experiments run` tells: what it would do, and at the end what is left and why."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from cwdfm.errors import InputError, RunError
from experiments.catalog import EXPERIMENTS
from experiments.job import Job, Store
from experiments.sweep import NEEDS_FAILED, Outcome


def foretell(
    order: Sequence[Job], todo: Sequence[Job], lacking: Mapping[Job, str], device: torch.device
) -> None:
    """Say what the command would do, without --dry-run."""
    gone = set(todo)
    print(f"there already: {kinds(job for job in order if job not in gone)}")
    print(f"would be done, on {device}: {kinds(job for job in todo if job not in lacking)}")
    report_lacking(lacking)


@contextmanager
def refusal_told() -> Iterator[None]:
    """Say what a command would be refused for, and go on."""
    try:
        yield
    except InputError as error:
        print(f"but it would be refused here: {error}")


def together(names: Sequence[str]) -> str:
    """The experiments of a command in words."""
    return f"all {len(names)} experiments" if len(names) == len(EXPERIMENTS) else ", ".join(names)


def kinds(jobs: Iterable[Job]) -> str:
    """How many jobs of each kind."""
    counts = Counter(job.kind for job in jobs)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


def report_lacking(lacking: Mapping[Job, str]) -> None:
    """Say what is not done here, and why."""
    for reason in dict.fromkeys(lacking.values()):
        jobs = [job for job, why in lacking.items() if why == reason]
        more = ", ..." if len(jobs) > 1 else ""
        print(f"not done here: {many(jobs)} ({jobs[0].label}{more}): {reason}")


def many(jobs: Collection[Job]) -> str:
    """How many, in words."""
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"


def report(
    outcome: Outcome, store: Store, *, limit: float = math.inf, unwritten: Sequence[str] = ()
) -> None:
    """Say what is left, and why; also which experiments' tables could not be written."""
    report_lacking(outcome.lacking)
    if outcome.elsewhere:
        later = "the same command goes on later, or waits for them with --wait 10"
        print(f"in others' hands: {many(outcome.elsewhere)}; {later}")
    if outcome.waiting:
        why = "the same command goes on there"
        if not limit:
            why = "--limit 0 begins none; the same command without it goes on there"
        elif limit == math.inf:
            why = "they need what is in others' hands"
        print(f"not begun: {many(outcome.waiting)}; {why}")
    if outcome.failed:
        broken = {job: why for job, why in outcome.failed.items() if why != NEEDS_FAILED}
        job, why = next(iter(broken.items()))
        first = ", the first of them" if len(broken) > 1 else ":"
        behind = len(outcome.failed) - len(broken)
        left = f"; not done for want of what failed: {behind}" if behind else ""
        raise RunError(
            f"{many(broken)} failed{first} {job.label}: {why}; see "
            f"{store.place(job) / 'failure.txt'}{left}; the same command tries again"
        )
    if unwritten:
        raise InputError(f"not written, for what is said above: {', '.join(unwritten)}")
    print("complete" if outcome.complete else "incomplete, for what is said above")
