"""Named recipes: functions that return a whole Recipe."""

from collections.abc import Callable

from cwdfm.train.recipe import Recipe


def qm9_debug() -> Recipe:
    """A toy model, to see everything run: under a minute on two CPU cores."""
    return Recipe(
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
    )


def qm9_small() -> Recipe:
    """Four million parameters, our own settings, a uniform source."""
    return Recipe(
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


def qm9_paper() -> Recipe:
    """The paper's table of hyperparameters for QM9, field by field."""
    return Recipe(
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


RECIPES: dict[str, Callable[[], Recipe]] = {
    "qm9-debug": qm9_debug,
    "qm9-small": qm9_small,
    "qm9-paper": qm9_paper,
}
