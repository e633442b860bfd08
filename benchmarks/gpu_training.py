"""Training at GPT-2's vocabulary on a GPU: loss fused with the head against plain, in one run.

    python -m benchmarks.gpu_training --out results/gpu_training.json

Random data and weights, bf16 products, cross-entropy, compiled trunk, no dropout: corruption, loss,
gradients and the optimiser's step, the median of ten. The trunk is compiled a block at a time;
--whole compiles it in one, which takes minutes. With a mask source the loss is on masked
tokens, and the fused path asks the head for these alone. The arithmetic beside it is what training
multiplies at the rows the loss needs; computing logits again does not count as useful.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import cwdfm
from benchmarks.gpu_sampling import VOCAB, make_model, trunk_flops
from cwdfm.provenance import provenance, write_json
from cwdfm.times import stratified_times
from cwdfm.train.speed import peak_flops

SCHEDULE = cwdfm.Polynomial(2.0)
SIZES = {"40m": (128, 512), "base": (64, 1024)}
SOURCES: dict[str, tuple[cwdfm.Source, cwdfm.Loss]] = {
    "mask": (cwdfm.MaskSource(VOCAB), cwdfm.CrossEntropy("masked")),
    "uniform": (cwdfm.UniformSource(VOCAB), cwdfm.CrossEntropy()),
}
WARM, TIMED = 3, 10


@dataclass(frozen=True)
class Row:
    """One measured case."""

    size: str
    source: str
    mode: str
    ms: float
    tokens_per_second: float
    peak_gb: float
    rows: float  # a step, at which the loss needs the head
    tflop: float  # a step
    share: float | None  # of the device's bf16 peak
    loss: float  # of the last step: the same for both modes, up to rounding


def measure(size: str, source_name: str, mode: str, by_block: bool) -> Row:
    source, loss = SOURCES[source_name]
    batch_size, length = SIZES[size]
    model = make_model(size, source.num_tokens).train()
    per_token = trunk_flops(model, length)
    model.compile_trunk(by_block=by_block)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    path = cwdfm.MixturePath(source, SCHEDULE)
    place = torch.arange(batch_size)
    x_1 = torch.randint(0, VOCAB, (batch_size, length), generator=torch.manual_seed(0)).cuda()

    def step(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        t = stratified_times(0, k, place, batch_size).float().cuda()
        batch = path.sample(x_1, t, seed=0, step=k)
        with torch.autocast("cuda", torch.bfloat16):
            if mode == "fused":
                read = partial(loss.from_head, batch=batch, schedule=SCHEDULE)
                value = model(batch.x_t, batch.t, read)
            else:
                value = loss(model(batch.x_t, batch.t), batch, SCHEDULE)
        value.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return value.detach(), loss.needed(batch).sum()

    for k in range(WARM):
        step(k)
    torch.cuda.reset_peak_memory_stats()
    seconds, rows = [], []
    for k in range(WARM, WARM + TIMED):
        torch.cuda.synchronize()
        start = time.perf_counter()
        value, needed = step(k)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        rows.append(int(needed))
    median, tokens = statistics.median(seconds), batch_size * length
    needed_rows = statistics.mean(rows)
    flop = 3 * (per_token * tokens + 2.0 * model.config.width * VOCAB * needed_rows)
    peak = peak_flops(torch.device("cuda"))
    return Row(
        size=size,
        source=source_name,
        mode=mode,
        ms=median * 1e3,
        tokens_per_second=tokens / median,
        peak_gb=torch.cuda.max_memory_allocated() / 1e9,
        rows=needed_rows,
        tflop=flop / 1e12,
        share=None if peak is None else flop / median / peak,
        loss=float(value),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark training steps on a GPU.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    print(
        f"{'':24} {'ms a step':>9} {'tokens/s':>9} {'peak GB':>8} {'rows':>7} {'TFLOP':>7} "
        f"{'of peak':>8} {'loss':>8}"
    )
    rows = []
    for size in SIZES:
        for source in SOURCES:
            for mode in ("fused", "plain"):
                torch.cuda.empty_cache()
                try:
                    row = measure(size, source, mode, not options.whole)
                except torch.cuda.OutOfMemoryError:
                    print(f"{size} {source} {mode:24} out of memory")
                    continue
                share = "" if row.share is None else f"{row.share:.0%}"
                print(
                    f"{f'{size} {source} {mode}':24} {row.ms:>9.1f} {row.tokens_per_second:>9.0f} "
                    f"{row.peak_gb:>8.2f} {row.rows:>7.0f} {row.tflop:>7.2f} {share:>8} "
                    f"{row.loss:>8.4f}",
                    flush=True,
                )
                rows.append(row.__dict__)
    config = {"vocab": VOCAB, "timed_steps": TIMED, "shapes": SIZES, "whole": options.whole}
    write_json(options.out, provenance() | {"config": config, "cases": rows})


if __name__ == "__main__":
    main()
