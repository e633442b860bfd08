"""The base class of tasks: the nodes of an experiment's graph."""

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cwdfm.config import to_config
from cwdfm.device import find_device
from cwdfm.errors import InputError

if TYPE_CHECKING:
    import torch

    from experiments.store import Store

Corpus = Literal["molecules", "text"]
Result = dict[str, Any]


class Unavailable(InputError):
    """This machine has no corpus, evaluator or package that the task needs."""


@dataclass(frozen=True)
class Resources:
    """What a machine provides: paths and a device. They are not part of a task's key."""

    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    molecules: str = "qm9"  # path or name of the molecule corpus
    text: str | None = None  # path or name of the text corpus
    eval_model: str | None = None  # path or hub name of the evaluator LM
    tests: tuple[tuple[str, str], ...] = ()  # names of test corpora, each with its path
    command: str | None = None  # command line for the records; None: that of this process

    def corpus(self, kind: Corpus) -> str:
        path: str | None = getattr(self, kind)
        if path is None:
            raise Unavailable(f"requires a {kind} corpus: pass --{kind}")
        return path

    def test(self, name: str) -> str:
        path = dict(self.tests).get(name)
        if path is None:
            raise Unavailable(f"requires the test corpus {name}: pass --tests {name}=PATH")
        return path

    def torch_device(self) -> "torch.device":
        return find_device(self.device)


@dataclass(frozen=True)
class Task(ABC):
    """A node of the graph. For a given version of the code, its fields determine its result."""

    version: ClassVar[int] = 1  # increase it when the same fields lead to a different result

    @property
    def dependencies(self) -> "tuple[Task, ...]":
        """The tasks whose outputs this one reads, which are the tasks among its fields."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return tuple(value for value in values if isinstance(value, Task))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Files and folders that other tasks read, relative to the task's folder."""
        return ()

    @property
    def kind(self) -> str:
        """The class name in lower case, such as "train"."""
        return type(self).__name__.lower()

    @cached_property
    def name(self) -> str:
        """The key of the task, and the name of its folder: kind and checksum of the fields."""
        description = json.dumps([self.version, to_config(self)], sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(description.encode()).hexdigest()[:16]}"

    @property
    def summary(self) -> str:
        return next((other.summary for other in self.dependencies), "")

    @property
    def label(self) -> str:
        """Kind and summary, for messages."""
        return f"{self.kind} ({self.summary})" if self.summary else self.kind

    @property
    def corpus_kind(self) -> Corpus | None:
        """The corpus of this task, or of the tasks it depends on."""
        own: Corpus | None = getattr(self, "corpus", None)
        return own or next((other.corpus_kind for other in self.dependencies), None)

    def check(self, resources: Resources) -> None:  # noqa: B027 (optional)
        """Raise `InputError` for wrong resources, and `Unavailable` for missing ones."""

    @abstractmethod
    def run(self, folder: Path, store: "Store", resources: Resources) -> Result:
        """Do the work in `folder` and return the result as JSON.

        The folder may contain files of an earlier attempt that was killed, such as checkpoints.
        """

    def __str__(self) -> str:
        return self.name


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """The tasks and all their dependencies in topological order, without duplicates."""
    found: dict[Task, None] = {}

    def visit(task: Task) -> None:
        if task not in found:
            for other in task.dependencies:
                visit(other)
            found[task] = None

    for task in tasks:
        visit(task)
    return list(found)
