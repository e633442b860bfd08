"""Cost of Algorithm 1 on a CPU, by sequence length and against the naive loop.

    python -m experiments.studies.context_path --out context_path.json

Half of the coordinates of 64 sequences are revealed with Neighbor(radius=3, scale=1). Targets: the
time at N = 8,192 is at most 10 times that at N = 1,024 (linear would be 8), and the naive loop is
at least 50 times slower at N = 1,024.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import cwdfm
from cwdfm.files import write_json
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.path.algorithm1 import reveal_in_order, reveal_naive
from cwdfm.provenance import provenance

BATCH = 64
WEIGHT = cwdfm.Neighbor(radius=3, scale=1.0)


def example(length: int) -> tuple[cwdfm.Weight, Tensor, Tensor, Tensor]:
    start = torch.zeros(BATCH, length, dtype=torch.bool)
    u = uniform_BN(0, Purpose.ORDER, torch.arange(BATCH), 0, length)
    return WEIGHT, start, torch.full((BATCH,), length // 2), u


def median_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The median wall-clock time of a call, after one warm-up call."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark the context-weighted path.")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    lengths = (256, 1024, 4096, 8192)
    work = {length: example(length) for length in lengths}
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(21):  # interleaved, so that drift of the machine affects all lengths equally
        for length in lengths:
            start = time.perf_counter()
            reveal_in_order(*work[length])
            times[length].append(time.perf_counter() - start)
    rows = {length: {"buckets": statistics.median(times[length][1:])} for length in lengths}
    for length in (256, 1024):
        rows[length]["naive"] = median_seconds(partial(reveal_naive, *work[length]), repeats=3)
    path = cwdfm.ContextPath(cwdfm.MaskSource(50_257), cwdfm.Polynomial(2.0), WEIGHT)
    x_1, t = torch.zeros(BATCH, 1024, dtype=torch.int64), torch.full((BATCH,), 0.5**0.5)
    whole = median_seconds(partial(path.sample, x_1, t))

    print(f"{'N':>6} {'buckets ms':>11} {'naive ms':>9}")
    for length, row in rows.items():
        naive_ms = f"{row['naive'] * 1e3:9.1f}" if "naive" in row else ""
        print(f"{length:>6} {row['buckets'] * 1e3:>11.2f} {naive_ms}")
    growth = rows[8192]["buckets"] / rows[1024]["buckets"]
    speedup = rows[1024]["naive"] / rows[1024]["buckets"]
    targets = {
        f"N = 8192 costs {growth:.1f} times N = 1024, at most 10": growth <= 10,
        f"the naive loop costs {speedup:.0f} times the buckets, at least 50": speedup >= 50,
    }
    print(f"ContextPath.sample, 64 x 1024, kappa = 0.5, randomness included: {whole * 1e3:.1f} ms")
    write_json(
        out,
        provenance()
        | {
            "config": {"batch": BATCH, "weight": str(WEIGHT), "revealed": "N/2", "seed": 0},
            "seconds": {str(length): row for length, row in rows.items()},
            "path_sample_seconds": whole,
            "growth_8192_over_1024": growth,
            "naive_over_buckets_1024": speedup,
            "claims": targets,
        },
    )
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    sys.exit(not all(targets.values()))


if __name__ == "__main__":
    main()
