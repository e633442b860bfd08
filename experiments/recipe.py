"""The flat record of a training run, which identifies its recorded results.

Results are stored under a checksum of these fields in this form. Fields are therefore never renamed
or removed, and each run lists all of them, including those that its method does not use.
"""

from dataclasses import asdict, dataclass
from typing import Self

from cwdfm.config import added
from cwdfm.train.config import TrainConfig
from cwdfm.train.recipes import RECIPES


@dataclass(frozen=True)
class Recipe:
    """A training run. `TrainConfig` documents the fields."""

    data: str = "qm9"
    column: str | None = None
    tokenizer: str | None = None
    length: int = 32
    init: str | None = None
    method: str = "flow"
    source: str = "uniform"
    power: float = 2.0
    path: str = "mixture"
    path_radius: int = 1
    path_scale: float = 1.0
    time: str = "given"
    noise: str = "loglinear"
    block: int = 16
    clip_low: float = 0.0
    clip_high: float = 1.0
    clip_search: bool = True
    fix_first: bool = False
    loss: str = "ce"
    masked_only: bool = False
    loss_radius: int = 3
    loss_scale: float = 0.5
    revealed: str = "one"
    model: str = "4m"
    learned_positions: bool = False
    dropout: float = 0.1
    steps: int = 25_000
    batch_size: int = 2048
    accumulation: int = 1
    learning_rate: float = 3e-4
    min_learning_rate: float = 3e-6
    warmup: int = 1000
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float = 1.0
    ema: float = 0.9999
    precision: str = "bfloat16"
    compile: bool = False
    parallel: str = "ddp"
    seed: int = 0
    log_every: int = 100
    validate_every: int = 1000
    checkpoint_every: int = 1000
    keep: int = 2
    validation_rows: int = 2048
    elbo_rows: int = 256
    previews: int = 64
    preview_steps: int = 64
    train_rows: int = added(0)
    representation: str = added("smiles")
    documents: str | None = added(None)
    condition: tuple[str, ...] = added(())
    condition_dropout: float = added(0.1)
    loss_weight: str = added("exp")
    loss_center: bool = added(True)

    @classmethod
    def named(cls, name: str) -> Self:
        """The flat record of a recipe of the library."""
        return cls(**RECIPES[name]().flat())

    def config(self) -> TrainConfig:
        """The training config."""
        return TrainConfig.from_flat(**asdict(self))
