"""Quick tasks to test the store and the engine with. Workers import this module."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import experiments.tasks.train as train_module
from experiments.experiment import Experiment, Plan
from experiments.store import Store
from experiments.table import Column, Row, Table, Value
from experiments.tasks.base import Resources, Task, Unavailable
from experiments.tasks.train import Snapshots, Train

Result = dict[str, Any]


def log_run(store: Store, number: int) -> None:
    """Append a line, so that running a task twice shows."""
    with (store.root / "ran.txt").open("a") as log:
        log.write(f"{number}\n")


def runs(store: Store) -> list[int]:
    """The numbers of all tasks that ran."""
    return sorted(int(number) for number in (store.root / "ran.txt").read_text().split())


@dataclass(frozen=True)
class Square(Task):
    number: int

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        log_run(store, self.number)
        return {"square": self.number**2}


@dataclass(frozen=True)
class Sum(Task):
    left: Task
    right: Task

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        found = [store.result(task) for task in self.dependencies]
        return {"sum": sum(each["square"] for each in found if each)}


@dataclass(frozen=True)
class Killed(Square):
    """The first attempt kills its worker in the middle of the task."""

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        if not (folder / "attempted").exists():
            (folder / "attempted").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(folder, store, resources)


@dataclass(frozen=True)
class KilledTrain(Train):
    """A training whose first attempt kills its worker after three steps."""

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        class Deadly(Snapshots):
            def step(self, step: int) -> None:
                with (folder / "steps.txt").open("a") as log:
                    log.write(f"{step}\n")
                if step == 3 and not (folder / "attempted").exists():
                    (folder / "attempted").touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        train_module.Snapshots = Deadly  # type: ignore[misc]
        try:
            return super().run(folder, store, resources)
        finally:
            train_module.Snapshots = Snapshots  # type: ignore[misc]


@dataclass(frozen=True)
class Slow(Square):
    """Waits until it is stopped."""

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(1200)
        return {}


@dataclass(frozen=True)
class Broken(Square):
    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        raise RuntimeError("out of luck\nwith details")


@dataclass(frozen=True)
class Evaluated(Task):
    """Requires an evaluator LM."""

    of: Task

    def check(self, resources: Resources) -> None:
        if resources.eval_model is None:
            raise Unavailable("requires an evaluator")

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        return {"evaluator": resources.eval_model}


@dataclass(frozen=True)
class Write(Task):
    """Writes a file that other tasks read."""

    number: int

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("made.txt",)

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        log_run(store, self.number)
        (folder / "made.txt").write_text(str(self.number))
        return {}


@dataclass(frozen=True)
class Read(Task):
    of: Write
    times: int = 1

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        path = store.folder(self.of) / "made.txt"
        if not path.read_text():
            raise ValueError(f"{path} is empty")
        return {"product": self.times * int(path.read_text())}


def squares(number: int, task: Task | None = None) -> Experiment:
    """An experiment with one task and one table."""
    of = task or Square(number)

    def tables(store: Store) -> list[Table]:
        found = store.result(of)
        value = Value(None if found is None else found["square"], None, 0)
        return [Table("Squares", ("number",), (Column("square"),), (Row(("n",), (value,)),))]

    plan = Plan((of,), tables)
    return Experiment(f"square-{number}", "a square", lambda _: plan)
