"""Measurements for the studies: median run times and peak memory."""

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


def check_targets(targets: dict[str, bool]) -> None:
    """Print each target and whether it was met; exit with 1 if one was missed."""
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    if not all(targets.values()):
        sys.exit(1)


def peak_bytes(work: Callable[[], object]) -> int:
    """The rise of the resident set above its current size during a call (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the recorded peak
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")
