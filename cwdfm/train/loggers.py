"""Loggers for JSON lines, TensorBoard and Weights & Biases, and the measurement of speed.

Speed is logged as tokens per second and as a fraction of the device's peak FLOP/s.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cwdfm.distributed import world_size
from cwdfm.errors import load_extra
from cwdfm.files import replacing, write_errors
from cwdfm.model.conditions import FREQUENCIES
from cwdfm.model.transformer import DiTConfig

# Dense bf16 matrix products in TFLOP/s, by device name (from the vendors' data sheets).
PEAK_TFLOPS = {"B200": 2250.0, "H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0}
PEAK_TFLOPS |= {"L40S": 362.0, "4090": 165.0, "3090": 71.0}


class Logger:
    """Receives the progress of a training run. The methods of this base class do nothing."""

    def step(self, step: int) -> None:
        """Called after every step."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Called with metrics to log, including `step`."""

    def close(self) -> None:
        """Called when the run ends or is interrupted."""


class JsonLines(Logger):
    """Writes metrics as JSON lines. Resuming drops the lines after the checkpoint."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        # A line with damaged bytes is invalid and therefore dropped.
        lines = path.read_text(errors="surrogateescape").splitlines() if path.exists() else []
        kept = [line for line in lines if _step(line) <= step]
        with replacing(path) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept))

    def record(self, record: Mapping[str, Any]) -> None:
        with write_errors(self.path, "the checkpoints are intact"), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _step(line: str) -> float:
    """The step of a record; infinity for a damaged line, such as after a power failure."""
    try:
        match json.loads(line.encode()):
            case {"step": int(step)}:
                return step
    except ValueError:
        pass
    return math.inf


class TensorBoard(Logger):
    """Writes TensorBoard event files. Resuming hides the events after the checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        board = load_extra("torch.utils.tensorboard", "tensorboard")
        self.writer = board.SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def record(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "step":
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases(Logger):
    """Logs to a Weights & Biases run, which keeps its id when training resumes."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        wandb = load_extra("wandb", "wandb")
        id_file = folder / "wandb.id"
        self.run = wandb.init(
            project=project,
            dir=str(folder),
            config=config,
            id=id_file.read_text() if id_file.exists() else None,
            resume="allow",
            allow_val_change=True,  # some settings may change when a run resumes
        )
        id_file.write_text(self.run.id)

    def record(self, record: Mapping[str, Any]) -> None:
        self.run.log(dict(record), step=record["step"])

    def close(self) -> None:
        self.run.finish()


class SpeedMeter:
    """Measures tokens per second since the last reading, excluding validation and checkpoints."""

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
        """Exclude the time spent in this context."""
        before = time.perf_counter()
        yield
        self.start += time.perf_counter() - before


def training_flops(config: DiTConfig, length: int, parameters: int) -> float:
    """Floating-point operations per token of training, forward and backward.

    Counts 6 per parameter of a matrix product (embeddings are looked up), and 12 length x width per
    block for the two attention products. The time embedding and the modulations run once per
    sequence and are not counted.
    """
    modulations = (6 * config.depth + 2) * config.width
    per_sequence = config.conditioning * (modulations + FREQUENCIES + config.conditioning)
    if config.time == "none":
        per_sequence = 0
    head = config.num_tokens * (config.width + 1)
    trunk = parameters - head - config.num_tokens * config.width - per_sequence
    # Block diffusion processes every token twice, noised and clean, but scores it once.
    passes = 2 if config.attention == "block" else 1
    return 6.0 * (passes * trunk + head) + passes * 12.0 * length * config.width * config.depth


def peak_flops(device: torch.device) -> float | None:
    """The device's peak FLOP/s in bf16; None if unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((1e12 * peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
