"""A sampling step at GPT-2's vocabulary on a GPU: fused head against plain, in one run.

    python -m benchmarks.gpu_sampling --out results/gpu_sampling.json

Random weights, bf16 products, float64 draws. Steps are the second quarter of a run of 64, begun
from noise, timed together between two synchronisations, the faster of two passes; peak memory is
what PyTorch allocated beyond weights and state. The arithmetic beside it counts what the step must
multiply: the trunk of every sequence that is asked for, and the head at the rows that are. With
--tune the head's first kernel is timed alone, over tiles.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import cwdfm
from cwdfm import kernel
from cwdfm.kernel.head_draw import Tile, statistics
from cwdfm.model.dit import DiT
from cwdfm.model.presets import preset
from cwdfm.provenance import provenance, write_json
from cwdfm.train.speed import peak_flops, training_flops

VOCAB, STEPS, FIRST, LAST = 50_257, 64, 16, 32
SCHEDULE = cwdfm.Polynomial(2.0)
SIZES = {"40m": (256, 512), "base": (32, 1024)}
SOURCES: dict[str, cwdfm.Source] = {
    "mask": cwdfm.MaskSource(VOCAB),
    "uniform": cwdfm.UniformSource(VOCAB),
}
SOLVERS = {
    "Euler": cwdfm.Euler(),
    "Neighbor": cwdfm.Euler(weight=cwdfm.Neighbor(1, 5.0)),
    "Entropy": cwdfm.Euler(weight=cwdfm.Entropy(1.0)),
}


@dataclass(frozen=True)
class Row:
    """One measured case."""

    size: str
    source: str
    solver: str
    mode: str
    ms: float
    peak_gb: float
    rows: float  # a step, at which the head was asked
    tflop: float  # a step
    share: float | None  # of the device's bf16 peak


def make_model(size: str, num_tokens: int) -> DiT:
    """Random weights whose gates and head are not zero."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = DiT(preset(size, num_tokens, dropout=0.0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def trunk_flops(model: DiT, length: int) -> float:
    """A token's forward pass without the head: a third of training's."""
    count = sum(p.numel() for p in model.parameters()) - model.readout.weight.numel()
    return training_flops(model.config, length, count) / 3


def measure(size: str, source_name: str, solver_name: str, mode: str) -> Row:
    source, solver = SOURCES[source_name], SOLVERS[solver_name]
    batch, length = SIZES[size]
    model = make_model(size, source.num_tokens)
    grid = [k / STEPS for k in range(STEPS + 1)]
    kernel.MODE = mode

    def walk(state: cwdfm.State, first: int, last: int) -> tuple[cwdfm.State, int, int]:
        rows = asked = 0
        for k in range(first, last):
            state, info = solver.step(model, source, SCHEDULE, state, grid[k], grid[k + 1])
            rows, asked = rows + info.rows, asked + int(info.asked.sum())
        return state, rows, asked

    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        state = solver.init(source, torch.arange(batch, device="cuda"), length)
        state, _, _ = walk(state, FIRST - 4, FIRST)  # warm: compiles, and some tokens are revealed
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(2):
            torch.cuda.synchronize()
            start = time.perf_counter()
            _, rows, asked = walk(state, FIRST, LAST)
            torch.cuda.synchronize()
            seconds.append((time.perf_counter() - start) / (LAST - FIRST))
    steps = LAST - FIRST
    trunk = trunk_flops(model, length) * asked * length / steps
    flop = trunk + 2.0 * model.config.width * VOCAB * rows / steps
    peak = peak_flops(torch.device("cuda"))
    return Row(
        size=size,
        source=source_name,
        solver=solver_name,
        mode="fused" if mode == "auto" else "plain",
        ms=min(seconds) * 1e3,
        peak_gb=(torch.cuda.max_memory_allocated() - before) / 1e9,
        rows=rows / steps,
        tflop=flop / 1e12,
        share=None if peak is None else flop / min(seconds) / peak,
    )


TILES = [
    Tile(rows=128, width=64, warps=8, stages=3),
    Tile(rows=128, width=64, warps=8, stages=4),
    Tile(rows=128, width=32, warps=8, stages=4),
    Tile(rows=64, width=64, warps=4, stages=3),
    Tile(rows=64, width=64, warps=4, stages=4),
    Tile(rows=64, width=64, warps=8, stages=4),
    Tile(rows=64, width=128, warps=4, stages=2),
]


def median_ms(work: Callable[[], object]) -> float:
    """The median of seven timed calls, by the device's own clock."""
    work()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(7)]
    for start, end in pairs:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return float(sorted(start.elapsed_time(end) for start, end in pairs)[3])


def tune() -> list[dict[str, object]]:
    """The first kernel alone: milliseconds and TFLOP/s of each tile, by rows and width."""
    found: list[dict[str, object]] = []
    for width in (512, 768):
        readout = torch.nn.Linear(width, VOCAB).to("cuda", torch.bfloat16).requires_grad_(False)
        for rows in (128, 2048, 32_768):
            hidden = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
            head = (hidden, readout.weight, readout.bias)
            for tile in TILES:
                ms = median_ms(partial(statistics, *head, VOCAB, 1.0, False, tile))
                speed = 2e-9 * rows * width * VOCAB / ms
                case = {"rows": rows, "width": width, "ms": ms, "tflops": speed}
                found.append({**case, "tile": tile._asdict()})
                print(f"{width:>5} {rows:>6} {tile!s:48} {ms:>8.3f} ms {speed:>6.0f} TFLOP/s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark sampling steps on a GPU.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    if options.tune:
        write_json(options.out, provenance() | {"tiles": tune()})
        return
    print(f"{'':36} {'ms a step':>9} {'peak GB':>8} {'rows':>8} {'TFLOP':>7} {'of peak':>8}")
    rows = []
    for size in SIZES:
        for source in SOURCES:
            for solver in SOLVERS:
                for mode in ("auto", "off"):
                    row = measure(size, source, solver, mode)
                    share = "" if row.share is None else f"{row.share:.0%}"
                    name = f"{size} {source} {solver} {row.mode}"
                    print(
                        f"{name:36} {row.ms:>9.2f} {row.peak_gb:>8.2f} {row.rows:>8.0f} "
                        f"{row.tflop:>7.2f} {share:>8}",
                        flush=True,
                    )
                    rows.append(row.__dict__)
    config = {"vocab": VOCAB, "steps": STEPS, "timed": [FIRST, LAST], "shapes": SIZES, "seed": 0}
    write_json(options.out, provenance() | {"config": config, "cases": rows})


if __name__ == "__main__":
    main()
