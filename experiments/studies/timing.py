"""How the benchmarks measure: medians of repeated runs, peaks of memory in a process of its own."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path


def median_seconds(work: Callable[[], object], repeats: int = 5, warmup: int = 1) -> float:
    """The median wall-clock time of one call."""
    for _ in range(warmup):
        work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def verdict(claims: dict[str, bool]) -> None:
    """Print what was to be shown and whether it was; a claim that fails fails the benchmark."""
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'FAILS'}: {claim}")
    if not all(claims.values()):
        sys.exit(1)


def peak_bytes(work: Callable[[], object]) -> int:
    """How much resident memory rose above its present level while working (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")
