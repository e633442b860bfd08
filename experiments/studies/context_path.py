"""Cost of Algorithm 1 on a CPU, by sequence length and against the naive loop.

    python -m experiments.studies.context_path --out context_path.json

Half of the coordinates of 64 sequences are revealed with Neighbor(radius=3, scale=1). Targets: in
each of ten runs the time at N = 8,192 is at most 8.5 times that at N = 1,024 (linear would be 8),
and the naive loop is at least 50 times slower at N = 1,024.

Times are CPU times of the process, because other processes affect wall-clock times. Each round
makes 8 calls with N = 1,024 and one with N = 8,192, and a run takes the best of its rounds for each
length. Both spans have the same duration, so the clock's resolution and interruptions affect them
equally.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import cwdfm
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.path.algorithm1 import reveal_in_order, reveal_naive
from experiments.studies.command import save, study_parser

BATCH = 64
LENGTHS = (256, 1024, 4096, 8192)
RUNS, ROUNDS = 10, 4
WEIGHT = cwdfm.Neighbor(radius=3, scale=1.0)


def example(length: int) -> tuple[cwdfm.Weight, Tensor, Tensor, Tensor]:
    start = torch.zeros(BATCH, length, dtype=torch.bool)
    u = uniform_BN(0, Purpose.ORDER, torch.arange(BATCH), 0, length)
    return WEIGHT, start, torch.full((BATCH,), length // 2), u


def best_seconds(work: dict[int, Callable[[], object]], rounds: int) -> dict[int, float]:
    """The minimum CPU time per call by length, over interleaved spans of equal size."""
    best = dict.fromkeys(work, math.inf)
    for _ in range(rounds):
        for length, call in work.items():
            calls = max(work) // length
            start = time.process_time()
            for _ in range(calls):
                call()
            best[length] = min(best[length], (time.process_time() - start) / calls)
    return best


def median_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The median CPU time of a call, after one warm-up call."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def main() -> None:
    out = study_parser(__doc__).parse_args().out
    torch.set_num_threads(1)  # the loop has one thread, and CPU time would count other threads
    work = {length: example(length) for length in LENGTHS}
    calls: dict[int, Callable[[], object]] = {
        length: partial(reveal_in_order, *work[length]) for length in LENGTHS
    }
    best_seconds(calls, rounds=1)  # to warm up
    runs = [best_seconds(calls, ROUNDS) for _ in range(RUNS)]
    rows = {n: {"buckets": statistics.median(run[n] for run in runs)} for n in LENGTHS}
    for length in (256, 1024):
        rows[length]["naive"] = median_seconds(partial(reveal_naive, *work[length]), repeats=3)
    path = cwdfm.ContextPath(cwdfm.MaskSource(50_257), cwdfm.Polynomial(2.0), WEIGHT)
    x_1, t = torch.zeros(BATCH, 1024, dtype=torch.int64), torch.full((BATCH,), 0.5**0.5)
    whole = median_seconds(partial(path.sample, x_1, t))

    print(f"{'N':>6} {'buckets ms':>11} {'naive ms':>9}")
    for length, row in rows.items():
        naive_ms = f"{row['naive'] * 1e3:9.1f}" if "naive" in row else ""
        print(f"{length:>6} {row['buckets'] * 1e3:>11.2f} {naive_ms}")
    growth = [run[8192] / run[1024] for run in runs]
    speedup = rows[1024]["naive"] / rows[1024]["buckets"]
    targets = {
        f"N = 8192 costs {min(growth):.2f} to {max(growth):.2f} times N = 1024 in {RUNS} runs, at "
        f"most 8.5": max(growth) <= 8.5,
        f"the naive loop costs {speedup:.0f} times the buckets, at least 50": speedup >= 50,
    }
    print(f"ContextPath.sample, 64 x 1024, kappa = 0.5, randomness included: {whole * 1e3:.1f} ms")
    config = {"batch": BATCH, "weight": str(WEIGHT), "revealed": "N/2", "seed": 0}
    config |= {"runs": RUNS, "rounds": ROUNDS, "clock": "CPU time of the process, best of rounds"}
    save(
        out,
        config=config,
        seconds={str(length): row for length, row in rows.items()},
        path_sample_seconds=whole,
        growth_by_run=growth,
        naive_over_buckets_1024=speedup,
        claims=targets,
    )
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")
    sys.exit(not all(targets.values()))


if __name__ == "__main__":
    main()
