"""Training runs for tests, also one that sends itself a signal or has no space to save."""

import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import torch

import cwdfm
from cwdfm.data import SmilesTokenizer, TokenData
from cwdfm.train import checkpoint
from cwdfm.train.config import TrainConfig
from cwdfm.train.loggers import Logger
from cwdfm.train.loop import fit
from cwdfm.train.run import Run

TOKENS = ("C", "N", "O", "F", "(", ")", "=", "1", "2")
VOCAB = len(TOKENS) + 3


def recipe(**changes: object) -> TrainConfig:
    settings: dict[str, object] = {"model": "debug", "length": 16, "steps": 40, "batch_size": 16}
    settings |= {"learning_rate": 1e-3, "warmup": 5, "ema": 0.9, "elbo_rows": 4}
    settings |= {"log_every": 5, "validate_every": 20, "checkpoint_every": 7}
    settings |= {"previews": 2, "preview_steps": 3}
    return TrainConfig.from_flat(**{**settings, **changes})


def counting(offset: int = 0) -> TokenData:
    """Sequences that count upwards: 50 rows, so that epochs end inside batches."""
    rows = (np.arange(16) + np.arange(60)[:, None] * 5 + offset) % VOCAB
    rows = rows.astype(np.int16)
    return TokenData("counting", rows[:50], rows[50:], SmilesTokenizer(TOKENS), {}, {}, {})


def make_run(out: Path, settings: TrainConfig) -> Run:
    return Run(settings, counting(), out, torch.device("cpu"))


def train(out: Path, **changes: object) -> None:
    """Train from the last checkpoint to the end."""
    run = make_run(out, recipe(**changes))
    run.resume()
    fit(run)


class Send(Logger):
    """Sends a signal to this process after a step."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.at = number, step

    def step(self, step: int) -> None:
        if step == self.at:
            os.kill(os.getpid(), self.number)


def send_when_saving(number: int, step: int) -> None:
    """Send a signal to this process while a checkpoint is being written."""
    plain = checkpoint._sync

    def sync(path: Path) -> None:
        if path.parent.name == f".part-{step:08d}":
            os.kill(os.getpid(), number)
        plain(path)

    checkpoint._sync = sync


def train_and_send(out: Path, number: int, step: int, saving: bool) -> None:
    """Send a signal to this process: after a step, or within its checkpoint."""
    run = make_run(out, recipe())
    run.resume()
    if saving:
        send_when_saving(number, step)
    sys.exit(fit(run, [] if saving else [Send(number, step)]))


def save_on_a_full_disk(out: Path) -> None:
    """Limit files to 200 kB, and write the error message to the file `error`."""
    run = make_run(out, recipe(steps=7))
    run.resume()
    run.step = 8
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        run.save()
    except cwdfm.InputError as error:
        (out / "error").write_text(str(error))
