"""Recipes: named functions that return a complete training config.

A recipe lists its differences from the defaults of `TrainConfig`. The defaults are the paper's
values for QM9, except for the model size and the learning rate.
"""

from collections.abc import Callable
from typing import Any

from cwdfm.train.config import TrainConfig

# A few hundred steps on a CPU.
_SHORT: dict[str, Any] = {"warmup": 20, "log_every": 20, "validate_every": 100}
_SHORT |= {"checkpoint_every": 100}
_DEBUG: dict[str, Any] = {**_SHORT, "model": "debug", "steps": 200, "ema": 0.99}
_DEBUG |= {"learning_rate": 2e-3, "min_learning_rate": 2e-4, "preview_steps": 32}


def qm9_debug() -> TrainConfig:
    """A toy molecule model for quick trials (about a minute on two CPU cores)."""
    return TrainConfig.from_flat(
        **_DEBUG, batch_size=128, validation_rows=512, elbo_rows=128, previews=32
    )


def qm9_small() -> TrainConfig:
    """QM9 with 4 million parameters and our own hyperparameters, uniform source."""
    return TrainConfig.from_flat(
        steps=40_000,
        learning_rate=1e-3,
        min_learning_rate=1e-5,
        dropout=0.0,
        log_every=500,
        validate_every=2000,
        checkpoint_every=5000,
        compile=True,
    )


def moses_small() -> TrainConfig:
    """Drug-like molecules (MOSES) with 17 million parameters and our own hyperparameters."""
    return TrainConfig.from_flat(
        data="moses",
        length=56,  # the longest molecule, with <bos> and <eos>
        fix_first=True,
        model="17m",
        learned_positions=True,
        dropout=0.0,
        steps=20_000,
        learning_rate=6e-4,
        min_learning_rate=6e-6,
        ema=0.9995,
        log_every=200,
        validate_every=2000,
        validation_rows=4096,
        checkpoint_every=2000,
        keep=1,
        compile=True,
    )


def qm9_paper() -> TrainConfig:
    """QM9 with the paper's hyperparameters."""
    return TrainConfig.from_flat(model="base", learning_rate=3e-5, min_learning_rate=3e-7)


def text_debug() -> TrainConfig:
    """A toy text model over bytes for quick trials (about a minute on two CPU cores)."""
    text = {"data": "python-topics", "tokenizer": "bytes", "length": 128, "source": "mask"}
    small = {"batch_size": 32, "validation_rows": 64, "elbo_rows": 16, "previews": 4}
    return TrainConfig.from_flat(**_DEBUG, **text, **small, dropout=0.0)


def text_small() -> TrainConfig:
    """Text with 40 million parameters plus embeddings, for one GPU and your own corpus."""
    return TrainConfig.from_flat(
        data="wikitext-103",
        tokenizer="gpt2",
        length=512,
        source="mask",
        model="40m",
        steps=8_000,
        batch_size=128,
        learning_rate=6e-4,
        min_learning_rate=6e-6,
        warmup=400,
        weight_decay=0.03,
        ema=0.999,
        checkpoint_every=2000,
        validation_rows=256,
        elbo_rows=64,
        previews=8,
        compile=True,
    )


def owt_paper() -> TrainConfig:
    """OpenWebText with the paper's hyperparameters."""
    return TrainConfig.from_flat(
        data="openwebtext",
        tokenizer="gpt2",
        length=1024,
        model="base",
        batch_size=512,
        warmup=2500,
        weight_decay=0.03,
        steps=1_000_000,
        validate_every=10_000,
        checkpoint_every=5_000,
        validation_rows=512,
        elbo_rows=128,
        previews=8,
        compile=True,
    )


def finetune() -> TrainConfig:
    """Fine-tune a trained model (--init) on your own data (minutes on two CPU cores)."""
    return TrainConfig.from_flat(
        **_SHORT,
        init="qm9-uniform-small",
        steps=300,
        batch_size=64,
        learning_rate=2e-4,
        min_learning_rate=2e-5,
        ema=0.98,
        precision="float32",
        validation_rows=256,
        elbo_rows=64,
        previews=32,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        *(qm9_debug, qm9_small, qm9_paper, moses_small),
        *(text_debug, text_small, owt_paper, finetune),
    )
}
