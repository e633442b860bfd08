"""A training run in a process of its own, for tests that kill it: python -m tests.train_script OUT.

Under torchrun it takes part in a group of processes.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from cwdfm.train.loop import fit
from cwdfm.train.recipe import Recipe
from cwdfm.train.run import Run

VOCAB = 12


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "model": "debug",
        "length": 16,
        "steps": 40,
        "batch_size": 16,
        "learning_rate": 1e-3,
        "warmup": 5,
        "ema": 0.9,
        "log_every": 5,
        "validate_every": 20,
        "checkpoint_every": 7,
    }
    return Recipe(**{**settings, **changes})  # type: ignore[arg-type]


def make_run(out: Path, settings: Recipe) -> Run:
    """Sequences that count upwards: 50 rows, so that epochs end inside batches."""
    rows = (torch.arange(16) + torch.arange(60)[:, None] * 5) % VOCAB
    return Run(settings, VOCAB, rows[:50].short(), rows[50:].short(), out, torch.device("cpu"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    changes = dict(pair.split("=") for pair in sys.argv[2:])
    fit(make_run(Path(sys.argv[1]), recipe(**{k: float(v) for k, v in changes.items()})))
    if dist.is_initialized():
        dist.destroy_process_group()
