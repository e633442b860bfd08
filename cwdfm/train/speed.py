"""Training speed, and the fraction of the device's peak that it uses."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cwdfm.distributed import world_size
from cwdfm.model.transformer import FREQUENCIES, DiTConfig

# Dense bf16 matrix products in TFLOP/s, by device name (from the vendors' data sheets).
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "4090": 165.0,
    "3090": 71.0,
}


class SpeedMeter:
    """Tokens per second since the last reading, without validation and checkpoints."""

    def __init__(self, step: int, tokens_per_step: int, flops: float, peak: float | None) -> None:
        self.step, self.start = step, time.perf_counter()
        self.tokens_per_step, self.flops, self.peak = tokens_per_step, flops, peak

    def read(self, step: int) -> dict[str, float]:
        """Tokens per second up to `step`, and the fraction of the device's peak if known."""
        now = time.perf_counter()
        speed = (step - self.step) * self.tokens_per_step / (now - self.start)
        self.step, self.start = step, now
        record = {"tokens_per_second": speed}
        if self.peak is not None:
            record["flop_utilization"] = speed * self.flops / (self.peak * world_size())
        return record

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time spent inside."""
        before = time.perf_counter()
        yield
        self.start += time.perf_counter() - before


def training_flops(config: DiTConfig, length: int, parameters: int) -> float:
    """Floating-point operations per token of training, forward and backward.

    6 per parameter of a matrix product (embeddings are looked up), and 12 length x width per block
    for the two attention products. Time embedding and modulations run once per sequence.
    """
    modulations = (6 * config.depth + 2) * config.width
    per_sequence = config.conditioning * (modulations + FREQUENCIES + config.conditioning)
    if config.time == "none":
        per_sequence = 0
    head = config.num_tokens * (config.width + 1)
    trunk = parameters - head - config.num_tokens * config.width - per_sequence
    # Block diffusion reads every token twice, noised and clean, and scores one of the two.
    reads = 2 if config.attention == "block" else 1
    return 6.0 * (reads * trunk + head) + reads * 12.0 * length * config.width * config.depth


def peak_flops(device: torch.device) -> float | None:
    """The device's peak FLOP/s in bf16; None if unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((1e12 * peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
