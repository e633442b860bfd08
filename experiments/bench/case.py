"""A case: one piece of work, done in a few ways, each timed on its own."""

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
    """One way of doing the work, timed."""

    seconds: float  # of the whole work as the case describes it
    work: Work  # as this way does it
    memory_gb: float | None = None  # None where it is not counted: on a CPU
    facts: dict[str, float] = field(default_factory=dict)  # what else there is to know
    note: str = ""


Way = Callable[[Settings], Measured]


@dataclass(frozen=True)
class Outcome:
    """What came of one way: numbers, or the reason why there are none."""

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
    """What came of a case; the first way is the one that others are compared with."""

    what: str
    outcomes: tuple[Outcome, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Record":
        """The inverse of `dataclasses.asdict`."""
        return cls(data["what"], tuple(Outcome(**outcome) for outcome in data["outcomes"]))


@dataclass(frozen=True)
class Case:
    """A line of the table, or a few."""

    name: str
    what: Callable[[Shapes], str]  # what the seconds are of
    ways: dict[str, Way]

    def measure(self, settings: Settings) -> Record:
        """Time every way; one that fails says why, and the others go on."""
        outcomes = []
        for name, way in self.ways.items():
            outcomes.append(_attempt(name, way, settings))
            free(settings)  # out here, where no traceback holds on to tensors
        return Record(self.what(settings.shapes), tuple(outcomes))


def _attempt(name: str, way: Way, settings: Settings) -> Outcome:
    try:
        found = way(settings)
    except NotInstalled as error:
        return Outcome(name, reason=str(error))
    except (torch.OutOfMemoryError, MemoryError):
        return Outcome(name, reason="out of memory")
    except Exception as error:  # whatever it is, the other ways and cases shall go on
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
    """Give back what the last way held: tensors, and compiled code, of which few are kept."""
    gc.collect()
    if settings.compiled:
        torch.compiler.reset()
    if settings.device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # a stream's, which outlive what it was used for
        torch.cuda.empty_cache()
