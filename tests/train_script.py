"""A training run, also in a process of its own to be killed: python -m tests.train_script OUT."""

import sys
from pathlib import Path

import numpy as np
import torch

from cwdfm.data import SmilesTokenizer, TokenData
from cwdfm.train.loop import fit
from cwdfm.train.recipe import Recipe
from cwdfm.train.run import Run

TOKENS = ("C", "N", "O", "F", "(", ")", "=", "1", "2")
VOCAB = len(TOKENS) + 3


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
        "elbo_rows": 4,
        "previews": 2,
        "preview_steps": 3,
    }
    return Recipe(**{**settings, **changes})  # type: ignore[arg-type]


def counting(offset: int = 0) -> TokenData:
    """Sequences that count upwards: 50 rows, so that epochs end inside batches."""
    rows = (np.arange(16) + np.arange(60)[:, None] * 5 + offset) % VOCAB
    rows = rows.astype(np.int16)
    return TokenData("counting", rows[:50], rows[50:], SmilesTokenizer(TOKENS), {}, {}, {})


def make_run(out: Path, settings: Recipe) -> Run:
    return Run(settings, counting(), out, torch.device("cpu"))


def train(out: Path, **changes: object) -> None:
    """From where a run stands to its end."""
    run = make_run(out, recipe(**changes))
    run.resume()
    fit(run)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
