"""Runs a graph of tasks with Parsl.

Parsl decides where and when a task runs: it starts workers, passes them the tasks whose
dependencies are finished, and retries a task whose worker died. The store decides what is finished,
so an interrupted sweep resumes where it stopped. With `workers=0`, the tasks run one after another
in this process, for debugging.
"""

import gc
import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from cwdfm.errors import InputError, load_extra
from cwdfm.files import is_disk_full
from cwdfm.provenance import provenance
from experiments.parsl_config import make_config
from experiments.store import FAILURE, Store, StoreError
from experiments.tasks.base import Resources, Task, Unavailable, in_order

DEPENDENCY_FAILED = "a task it depends on failed"
DEPENDENCY_UNAVAILABLE = "a task it depends on cannot run here"


class TaskFailed(RuntimeError):
    """A task raised an error. The message is its last line."""


class OutOfTime(RuntimeError):
    """The time limit passed before the task started."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sweep: finished tasks, and the reasons why others are not."""

    finished: int
    unavailable: dict[Task, str] = field(default_factory=dict)  # cannot run here; the reason
    not_started: list[Task] = field(default_factory=list)  # because of the time limit
    failed: dict[Task, str] = field(default_factory=dict)  # will be tried again next time

    @property
    def complete(self) -> bool:
        return not (self.unavailable or self.not_started or self.failed)


def unfinished(store: Store, tasks: Iterable[Task]) -> list[Task]:
    """The tasks that have to run, in topological order.

    This includes a finished task only if an unfinished task needs its outputs and they were
    deleted, as in a folder where only results were kept.
    """
    order = in_order(tasks)
    found: set[Task] = set()
    needed: set[Task] = set()
    for task in reversed(order):
        if store.result(task) is None or (task in needed and not store.ready(task)):
            found.add(task)
            needed.update(task.dependencies)
    return [task for task in order if task in found]


def unavailable_tasks(tasks: Iterable[Task], resources: Resources) -> dict[Task, str]:
    """The tasks that cannot run here, with the reason. Raises `InputError` for wrong resources.

    tasks: unfinished tasks in topological order.
    """
    found: dict[Task, str] = {}
    for task in tasks:
        try:
            task.check(resources)
        except Unavailable as error:
            found[task] = str(error)
        if any(other in found for other in task.dependencies):
            found.setdefault(task, DEPENDENCY_UNAVAILABLE)
    return found


def run_tasks(
    store: Store,
    tasks: Iterable[Task],
    resources: Resources,
    *,
    workers: int = 0,
    config: Path | None = None,
    time_limit: float = math.inf,
    log: Callable[[str], object] = print,
) -> Outcome:
    """Run all unfinished tasks and return what is left.

    workers: processes on this machine; 0 runs the tasks in this process.
    config: a Python file with a Parsl configuration, instead of local workers.
    time_limit: seconds after which no further task starts.
    """
    order = in_order(tasks)
    todo = unfinished(store, order)
    unavailable = unavailable_tasks(todo, resources)
    runnable = [task for task in todo if task not in unavailable]
    deadline = time.time() + time_limit
    if not runnable or time_limit <= 0:
        return Outcome(len(order) - len(todo), unavailable, runnable)
    if config is None and workers == 0:
        finished = _run_here(store, runnable, resources, deadline)
    else:
        finished = _run_with_parsl(store, runnable, resources, deadline, workers, config)
    errors: dict[Task, BaseException] = {}
    done = len(order) - len(todo)
    for task, error in finished:
        if error is None:
            done += 1
            log(f"[{done}/{len(order)}] finished {task}  {task.summary}")
            continue
        errors[task] = error
        if isinstance(error, TaskFailed):
            log(f"failed: {task}  {task.summary}: {error}")
        if isinstance(error, StoreError | OSError):  # all further tasks would fail as well
            raise error
    return _outcome(runnable, errors, Outcome(done, unavailable))


def _outcome(
    order: Iterable[Task], errors: Mapping[Task, BaseException], start: Outcome
) -> Outcome:
    """Sort unfinished tasks by reason; a task inherits the reason of its dependencies."""
    unavailable, late, failed = dict(start.unavailable), dict[Task, None](), dict[Task, str]()
    for task in order:
        if task not in errors:
            continue
        error, needs = errors[task], task.dependencies
        if any(other in failed for other in needs):
            failed[task] = DEPENDENCY_FAILED
        elif any(other in unavailable for other in needs):
            unavailable[task] = DEPENDENCY_UNAVAILABLE
        elif isinstance(error, Unavailable):
            unavailable[task] = str(error)
        elif isinstance(error, OutOfTime) or any(other in late for other in needs):
            late[task] = None
        else:
            failed[task] = str(error) or type(error).__name__
    return Outcome(start.finished, unavailable, list(late), failed)


def _run_here(
    store: Store, order: Iterable[Task], resources: Resources, deadline: float
) -> Iterator[tuple[Task, BaseException | None]]:
    """Run tasks in this process, and yield each with its error."""
    errors: set[Task] = set()
    for task in order:
        error: Exception | None = None
        try:
            if any(other in errors for other in task.dependencies):
                raise TaskFailed(DEPENDENCY_FAILED)
            execute(task, store.root, resources, deadline)
        except Exception as raised:
            error = raised.with_traceback(None)  # its frames would keep tensors alive
            errors.add(task)
        yield task, error


def _run_with_parsl(
    store: Store,
    order: Iterable[Task],
    resources: Resources,
    deadline: float,
    workers: int,
    config: Path | None,
) -> Iterator[tuple[Task, BaseException | None]]:
    """Submit the graph to Parsl, and yield each task with its error as it finishes.

    Tasks that come first in the order run first, so that an interrupted sweep has complete results
    for its first cells. Otherwise every training would start before the first score.
    """
    parsl = load_extra("parsl", "experiments")
    resources = replace(resources, command=provenance()["command"])
    with parsl.load(make_config(workers, config, store.root.parent / "parsl")) as kernel:
        app = parsl.python_app(execute, data_flow_kernel=kernel)
        futures: dict[Task, Future[None]] = {}
        # Other executors, subclasses included, may reject priorities.
        ranked = all(type(x) is parsl.HighThroughputExecutor for x in kernel.config.executors)
        for rank, task in enumerate(order):
            waits = [futures[other] for other in task.dependencies if other in futures]
            options = {"parsl_resource_specification": {"priority": rank}} if ranked else {}
            futures[task] = app(task, store.root.absolute(), resources, deadline, *waits, **options)
        names = {future: task for task, future in futures.items()}
        for future in as_completed(names):
            yield names[future], future.exception()


def execute(
    task: Task,
    root: Path,
    resources: Resources,
    deadline: float,
    *_dependencies: object,
    parsl_resource_specification: object = None,
) -> None:
    """Run one task in a worker. Parsl passes the results of its dependencies and its own option."""
    if time.time() >= deadline:
        raise OutOfTime(task.name)
    store = Store(root)
    try:
        store.run(task, replace(resources, device=worker_device(resources.device)))
    except (Unavailable, StoreError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error.__cause__, OSError) and is_disk_full(error.__cause__):
            raise error.__cause__ from None
        (store.folder(task) / FAILURE).write_text(traceback.format_exc())
        # The message of an InputError is enough; for other errors, include the type.
        last = traceback.format_exception_only(error)[-1].splitlines()[0]
        message = str(error) if isinstance(error, InputError) else last
        raise TaskFailed(message + _remedy(store, task, message)) from None
    finally:
        _free_memory()


def worker_device(device: str) -> str:
    """The device of this worker: with "auto", workers take the visible GPUs in turn."""
    rank = os.environ.get("PARSL_WORKER_RANK")
    if device == "auto" and rank is not None and torch.cuda.is_available():
        return f"cuda:{int(rank) % torch.cuda.device_count()}"
    return device


def _remedy(store: Store, task: Task, message: str) -> str:
    """Say what to delete if a task failed because the output of a dependency is damaged."""
    damaged = [other for other in task.dependencies if str(store.folder(other)) in message]
    paths = [str(store.folder(other) / name) for other in damaged for name in other.outputs]
    return f"; delete {' and '.join(paths)} to create it again" if paths else ""


def _free_memory() -> None:
    """Return cached GPU memory, which other workers may need."""
    with suppress(RuntimeError):
        if torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()
