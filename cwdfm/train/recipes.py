"""Recipes: named functions that return a complete training config."""

from collections.abc import Callable

from cwdfm.train.config import TrainConfig


def qm9_debug() -> TrainConfig:
    """A toy model of molecules to try things out: about a minute on two CPU cores."""
    return TrainConfig.from_flat(
        model="debug",
        steps=200,
        batch_size=128,
        learning_rate=2e-3,
        min_learning_rate=2e-4,
        warmup=20,
        ema=0.99,
        log_every=20,
        validate_every=100,
        checkpoint_every=100,
        validation_rows=512,
        elbo_rows=128,
        previews=32,
        preview_steps=32,
    )


def qm9_small() -> TrainConfig:
    """Four million parameters, our own hyperparameters, uniform source."""
    return TrainConfig.from_flat(
        model="4m",
        steps=40_000,
        learning_rate=1e-3,
        min_learning_rate=1e-5,
        dropout=0.0,
        log_every=500,
        validate_every=2000,
        checkpoint_every=5000,
        compile=True,
    )


def qm9_paper() -> TrainConfig:
    """The paper's hyperparameters for QM9."""
    return TrainConfig.from_flat(
        model="base",
        length=32,
        batch_size=2048,
        learning_rate=3e-5,
        min_learning_rate=3e-7,
        warmup=1000,
        weight_decay=0.01,
        beta1=0.9,
        beta2=0.999,
        steps=25_000,
        power=2.0,
        dropout=0.1,
        ema=0.9999,
        clip=1.0,
    )


def text_debug() -> TrainConfig:
    """A toy model of text bytes to try things out: about a minute on two CPU cores."""
    return TrainConfig.from_flat(
        data="python-topics",
        tokenizer="bytes",
        length=128,
        source="mask",
        model="debug",
        steps=200,
        batch_size=32,
        learning_rate=2e-3,
        min_learning_rate=2e-4,
        warmup=20,
        dropout=0.0,
        ema=0.99,
        log_every=20,
        validate_every=100,
        checkpoint_every=100,
        validation_rows=64,
        elbo_rows=16,
        previews=4,
        preview_steps=32,
    )


def text_small() -> TrainConfig:
    """Forty million parameters without embeddings, for one GPU and your own corpus."""
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
        dropout=0.1,
        ema=0.999,
        log_every=100,
        validate_every=1000,
        checkpoint_every=2000,
        validation_rows=256,
        elbo_rows=64,
        previews=8,
        compile=True,
    )


def owt_paper() -> TrainConfig:
    """The paper's hyperparameters for OpenWebText."""
    return TrainConfig.from_flat(
        data="openwebtext",
        tokenizer="gpt2",
        length=1024,
        model="base",
        batch_size=512,
        learning_rate=3e-4,
        min_learning_rate=3e-6,
        warmup=2500,
        weight_decay=0.03,
        beta1=0.9,
        beta2=0.999,
        steps=1_000_000,
        power=2.0,
        dropout=0.1,
        ema=0.9999,
        clip=1.0,
        log_every=100,
        validate_every=10_000,
        checkpoint_every=5_000,
        validation_rows=512,
        elbo_rows=128,
        previews=8,
        compile=True,
    )


def finetune() -> TrainConfig:
    """Fine-tune a trained model (init) on your own data: minutes on two CPU cores."""
    return TrainConfig.from_flat(
        init="qm9-uniform-small",
        steps=300,
        batch_size=64,
        learning_rate=2e-4,
        min_learning_rate=2e-5,
        warmup=20,
        dropout=0.1,
        ema=0.98,
        precision="float32",
        log_every=20,
        validate_every=100,
        checkpoint_every=100,
        validation_rows=256,
        elbo_rows=64,
        previews=32,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "qm9-debug": qm9_debug,
    "qm9-small": qm9_small,
    "qm9-paper": qm9_paper,
    "text-debug": text_debug,
    "text-small": text_small,
    "owt-paper": owt_paper,
    "finetune": finetune,
}
