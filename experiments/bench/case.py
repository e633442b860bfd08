"""A benchmark case: one workload with several implementations, each timed separately."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cwdfm.errors import NotInstalled
from experiments.bench.bounds import Work
from experiments.bench.settings import Settings, Shapes


@dataclass(frozen=True)
class Measured:
    """The timing of one implementation."""

    seconds: float  # for the whole workload
    work: Work  # operations and bytes of this implementation
    memory_gb: float | None = None  # None on a CPU
    facts: dict[str, float] = field(default_factory=dict)  # further measurements
    note: str = ""


Way = Callable[[Settings], Measured]


@dataclass(frozen=True)
class Outcome:
    """The result of one implementation, or the reason why it failed."""

    name: str
    seconds: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    memory_gb: float | None = None
    facts: dict[str, float] = field(default_factory=dict)
    note: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Record:
    """The results of a case; the first implementation is the reference."""

    what: str
    outcomes: tuple[Outcome, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Record":
        """The inverse of `dataclasses.asdict`."""
        return cls(data["what"], tuple(Outcome(**outcome) for outcome in data["outcomes"]))


@dataclass(frozen=True)
class Case:
    """A workload and its implementations."""

    name: str
    what: Callable[[Shapes], str]  # description of the workload
    ways: dict[str, Way]

    def measure(self, settings: Settings) -> Record:
        """Time every implementation. A failure is recorded and does not stop the others."""
        outcomes = []
        for name, way in self.ways.items():
            outcomes.append(_attempt(name, way, settings))
            free(settings)  # here, where no traceback keeps tensors alive
        return Record(self.what(settings.shapes), tuple(outcomes))


def _attempt(name: str, way: Way, settings: Settings) -> Outcome:
    try:
        found = way(settings)
    except NotInstalled as error:
        return Outcome(name, reason=str(error))
    except (torch.OutOfMemoryError, MemoryError):
        return Outcome(name, reason="out of memory")
    except Exception as error:  # must not stop the other cases
        first = (str(error).splitlines() or [""])[0]
        return Outcome(name, reason=f"{type(error).__name__}: {first[:200]}")
    return Outcome(
        name,
        seconds=found.seconds,
        flops=found.work.flops,
        bytes=found.work.bytes,
        memory_gb=found.memory_gb,
        facts=found.facts,
        note=found.note,
    )


def free(settings: Settings) -> None:
    """Free the tensors and the compiled code of the last implementation."""
    gc.collect()
    if settings.compiled:
        torch.compiler.reset()
    if settings.device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
