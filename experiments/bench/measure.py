"""Measurements: the time of a call, the peak speed of the machine, and benchmark cases.

A case is one workload with several implementations, each of which is timed separately.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from cwdfm.errors import NotInstalled
from experiments.bench.bounds import Ceilings, Work
from experiments.bench.settings import Settings, Shapes


@dataclass(frozen=True)
class Timing:
    """Time and memory of one call."""

    seconds: float  # median
    memory_gb: float | None  # peak GPU memory of PyTorch, including weights


def timed(
    work: Callable[[], object], device: torch.device, *, repeats: int = 5, warmup: int = 1
) -> Timing:
    """Call `work` `warmup` times, then `repeats` times, and return the median."""
    for _ in range(warmup):
        work()
    if device.type != "cuda":
        return Timing(statistics.median(_wall(work) for _ in range(repeats)), None)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    seconds = statistics.median(_events(work) for _ in range(repeats))
    return Timing(seconds, torch.cuda.max_memory_allocated(device) / 1e9)


def _wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _events(work: Callable[[], object]) -> float:
    """Time calls with CUDA events, starting and ending with an idle device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def measure_ceilings(settings: Settings) -> Ceilings:
    """Time products of n x n matrices (2 n^3 operations) and a copy (each byte moves twice)."""
    best = 0.0
    device, repeats = settings.device, settings.shapes.repeats
    for n in settings.shapes.matrices if device.type == "cuda" else _cpu_sizes(settings):
        left, right = (torch.randn(n, n, device=device, dtype=settings.dtype) for _ in range(2))
        out = torch.empty_like(left)
        multiply = partial(torch.mm, left, right, out=out)
        best = max(best, 2.0 * n**3 / timed(multiply, device, repeats=repeats, warmup=2).seconds)
    size = min(settings.shapes.copied, 2**28) if device.type == "cpu" else settings.shapes.copied
    here = torch.zeros(size, dtype=torch.uint8, device=device)
    there = torch.empty_like(here)
    copy = timed(lambda: there.copy_(here), device, repeats=repeats, warmup=2)
    name = str(settings.dtype).removeprefix("torch.")
    return Ceilings(flops=best, bytes=2.0 * size / copy.seconds, dtype=name)


def _cpu_sizes(settings: Settings) -> tuple[int, ...]:
    """Sizes for a CPU: an eighth of the large ones."""
    return tuple(n // 8 if n >= 4096 else n for n in settings.shapes.matrices)


NOTHING = Work(0.0, 0.0)


@dataclass(frozen=True)
class Measured:
    """The timing of one implementation; if `seconds` is None, the note says why it failed."""

    seconds: float | None  # for the whole workload
    work: Work = NOTHING  # operations and bytes of this implementation
    memory_gb: float | None = None  # None on a CPU
    facts: dict[str, float] = field(default_factory=dict)  # further measurements
    note: str = ""


Way = Callable[[Settings], Measured]


@dataclass(frozen=True)
class Record:
    """The results of a case; the first implementation is the reference."""

    what: str
    ways: dict[str, Measured]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Record":
        """The inverse of `dataclasses.asdict`."""
        ways = data["ways"].items()
        return cls(data["what"], {k: Measured(**v | {"work": Work(**v["work"])}) for k, v in ways})


@dataclass(frozen=True)
class Case:
    """A workload and its implementations."""

    name: str
    what: str  # description of the workload; fields of Shapes in braces
    ways: dict[str, Way]

    def title(self, shapes: Shapes) -> str:
        """The description with the sizes."""
        return self.what.format(**vars(shapes))

    def measure(self, settings: Settings) -> Record:
        """Time every implementation. A failure is recorded and does not stop the others."""
        found = {}
        for name, way in self.ways.items():
            found[name] = _attempt(way, settings)
            free(settings)  # not in the except block, where the traceback keeps tensors alive
        return Record(self.title(settings.shapes), found)


def _attempt(way: Way, settings: Settings) -> Measured:
    try:
        return way(settings)
    except NotInstalled as error:
        return Measured(None, note=str(error))
    except (torch.OutOfMemoryError, MemoryError):
        return Measured(None, note="out of memory")
    except Exception as error:  # must not stop the other cases
        first = (str(error).splitlines() or [""])[0]
        return Measured(None, note=f"{type(error).__name__}: {first[:200]}")


def free(settings: Settings) -> None:
    """Free the tensors and the compiled code of the last implementation."""
    gc.collect()
    if settings.compiled:
        torch.compiler.reset()
    if settings.device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
