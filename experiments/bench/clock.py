"""Median time and peak memory of repeated calls."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


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
    """The time by CUDA events, starting and ending with an idle device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3
