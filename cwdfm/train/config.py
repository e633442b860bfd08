"""The configuration of a training run.

`TrainConfig` nests one config per concern. All field names are distinct, so there is also a flat
form: `TrainConfig.from_flat(steps=100, loss="sce")`, `config.updated(learning_rate=1e-3)`. The
comment at a field is its help text on the command line.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

from cwdfm.baselines import METHODS
from cwdfm.config import check_applies, flatten, from_flat, leaf_names, one_of
from cwdfm.data.loader import Representation
from cwdfm.data.smiles import REPRESENTATIONS
from cwdfm.data.text.files import Unit
from cwdfm.errors import (
    MAX_LENGTH,
    InputError,
    check_bool,
    check_choice,
    check_integer,
    check_positive,
    check_strings,
    require,
)
from cwdfm.method.base import MethodConfig, Task
from cwdfm.method.flow import Flow
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops.random import check_seed
from cwdfm.pretrained import Pretrained
from cwdfm.train.execution import Parallel

MAX_COUNT = 10**9  # steps, sequences, samples: steps x batch_size must fit into 64 bits


def _check_counts(config: object, *names: str, minimum: int = 1) -> None:
    for name in names:
        check_integer(name, getattr(config, name), minimum, MAX_COUNT)


def _check_fraction(name: str, value: float) -> None:
    require(0 <= value < 1, name, "lie in [0, 1)", value)


@dataclass(frozen=True)
class DataConfig:
    """The training data."""

    data: str = "qm9"  # a dataset name, your own file, or the output of `cwdfm prepare`
    column: str | None = None  # column to read from a table; default: `smiles` or `text`
    tokenizer: str | None = None  # for text: gpt2, bytes, chars, a folder or a hub name
    # What one document of plain text is; default: the whole file. With rows, each line, record or
    # table row becomes its own sequence.
    documents: Unit | None = None
    representation: Representation = "smiles"  # representation of molecules
    length: int = 32  # tokens per sequence
    fix_first: bool = False  # treat the first token as given: neither corrupt nor sample it
    # Properties to condition the model on: columns of the data, or computed properties of molecules
    # (logp, qed, sa, tpsa, rings, weight).
    condition: tuple[str, ...] = ()
    # Probability of dropping all conditions of a sequence; each remaining condition is then dropped
    # with this probability, too.
    condition_dropout: float = 0.1
    train_rows: int = 0  # train on a random subset of this many sequences; 0 for all

    def __post_init__(self) -> None:
        if self.documents is not None:
            check_choice("documents", self.documents, get_args(Unit))
        check_integer("length", self.length, 3, MAX_LENGTH)
        _check_counts(self, "train_rows", minimum=0)
        check_choice("representation", self.representation, tuple(REPRESENTATIONS))
        check_bool("fix_first", self.fix_first)
        if self.condition:
            check_strings("condition", self.condition, "names")
        object.__setattr__(self, "condition", tuple(self.condition))  # JSON gives a list
        _check_fraction("condition_dropout", self.condition_dropout)


@dataclass(frozen=True)
class ModelConfig:
    """The transformer."""

    model: Literal["debug", "4m", "17m", "40m", "base"] = "4m"  # size of the transformer
    # Trained model to fine-tune; sets the network, method and vocabulary.
    init: str | None = None
    learned_positions: bool = False  # add learned position embeddings
    dropout: float = 0.1  # dropout probability

    def __post_init__(self) -> None:
        check_bool("learned_positions", self.learned_positions)
        _check_fraction("dropout", self.dropout)

    def size(self, vocab_size: int, length: int) -> DiTConfig:
        """The config of the transformer for `vocab_size` data tokens."""
        positions = length if self.learned_positions else 0
        return preset(self.model, vocab_size, dropout=self.dropout, positions=positions)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warmup, cosine decay and averaged weights."""

    steps: int = 25_000  # optimizer steps
    batch_size: int = 2048  # sequences per step, in all processes together
    learning_rate: float = 3e-4  # peak learning rate, at the end of the warmup
    min_learning_rate: float = 3e-6  # learning rate at the last step
    warmup: int = 1000  # steps of linear warmup
    weight_decay: float = 0.01  # weight decay of AdamW
    beta1: float = 0.9  # decay of AdamW's first moment
    beta2: float = 0.999  # decay of AdamW's second moment
    clip: float = 1.0  # maximum gradient norm; larger gradients are scaled down to it
    ema: float = 0.9999  # decay of the exponential moving average of the weights

    def __post_init__(self) -> None:
        _check_counts(self, "steps", "batch_size")
        _check_counts(self, "warmup", minimum=0)
        check_positive("learning_rate", self.learning_rate)
        check_positive("clip", self.clip)
        for name in ("ema", "beta1", "beta2"):
            _check_fraction(name, getattr(self, name))
        for name in ("weight_decay", "min_learning_rate"):
            value = getattr(self, name)
            require(0 <= value < math.inf, name, "be a finite number >= 0", value)


@dataclass(frozen=True)
class RuntimeConfig:
    """How steps are computed. Except for rounding and dropout, this does not affect the result."""

    accumulation: int = 1  # micro-batches per step (gradient accumulation)
    # Precision of matrix products on a GPU.
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    compile: bool = False  # use torch.compile on the model
    parallel: Parallel = "ddp"  # with torchrun: replicate (ddp) or shard (fsdp) the model

    def __post_init__(self) -> None:
        _check_counts(self, "accumulation")
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        check_choice("parallel", self.parallel, get_args(Parallel))
        check_bool("compile", self.compile)


@dataclass(frozen=True)
class EvaluationConfig:
    """Logging and validation."""

    log_every: int = 100  # steps between log records of loss and speed
    validate_every: int = 1000  # steps between validations
    validation_rows: int = 2048  # held-out sequences for the validation loss
    elbo_rows: int = 256  # held-out sequences for the likelihood or its bound; 0 for none
    previews: int = 64  # samples drawn at each validation; 0 for none
    preview_steps: int = 64  # sampling steps for these samples

    def __post_init__(self) -> None:
        _check_counts(self, "log_every", "validate_every", "validation_rows", "preview_steps")
        _check_counts(self, "elbo_rows", "previews", minimum=0)


@dataclass(frozen=True)
class CheckpointConfig:
    """When to write checkpoints. One is also written when the validation loss improves."""

    checkpoint_every: int = 1000  # steps between checkpoints
    keep: int = 2  # number of latest checkpoints to keep, in addition to the best one

    def __post_init__(self) -> None:
        _check_counts(self, "checkpoint_every", "keep")


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    data: DataConfig = field(default_factory=DataConfig)
    method: MethodConfig = one_of(METHODS, "flow")
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    seed: int = 0  # seed for weights, data order, times, noise and dropout

    def __post_init__(self) -> None:
        check_seed(self.seed)
        batch_size, accumulation = self.optimizer.batch_size, self.runtime.accumulation
        if batch_size % accumulation:
            raise InputError(
                f"batch_size {batch_size} must be a multiple of accumulation {accumulation}",
                fields=("batch_size", "accumulation"),
            )

    def flat(self) -> dict[str, Any]:
        """All fields by name, including those of the method, path and loss."""
        return flatten(self)

    @classmethod
    def from_flat(cls, **fields: Any) -> Self:
        """Build a config from fields by name. Fields of methods that are not selected are ignored.

        Also reads the flat records in checkpoints and model cards of earlier versions.
        """
        if unknown := sorted(fields.keys() - leaf_names(cls)):
            known = ", ".join(sorted(leaf_names(cls)))
            raise InputError(f"unknown field {', '.join(unknown)}; choose from {known}")
        return from_flat(cls, fields)

    def updated(self, **fields: Any) -> Self:
        """Return a copy with some fields changed; each must apply to the selected method."""
        config = self.from_flat(**self.flat() | fields)
        for name in fields:
            check_applies(config, name)
        return config

    def build(self, vocab_size: int, init: Pretrained | None = None) -> Task:
        """Build the method, objective and network config for `vocab_size` data tokens.

        With `init`, the network has the shape of that model.
        """
        length = self.data.length
        task = self.method.build(vocab_size, self.model.size(vocab_size, length), length)
        if self.data.condition and not isinstance(task.method, Flow):
            raise InputError(
                f"condition requires method flow or mdlm, got {self.method.method}; omit it",
                fields=("condition", "method"),
            )
        if init is None:
            return task
        if init.method != task.method:
            raise InputError(
                f"the initial model was trained with {init.method}, but the config describes "
                f"{task.method}; use `config.continued_from(model)`"
            )
        return replace(task, model=replace(init.model.config, dropout=self.model.dropout))

    def continued_from(self, init: Pretrained) -> Self:
        """Return a copy that takes all settings fixed by a trained model from that model."""
        return self.from_flat(**self.flat() | settings_of(init))


def settings_of(trained: Pretrained) -> dict[str, Any]:
    """The flat config fields that are taken from a trained model when it is fine-tuned."""
    if not isinstance(trained.model, DiT):
        name = type(trained.model).__name__
        raise InputError(
            f"training can continue only from a DiT, but this network is a {name}; choose a model "
            f"with a network of cwdfm"
        )
    model = trained.model.config
    candidates = (cls.settings_of(trained.method, model) for cls in METHODS.values())
    settings = next((fields for fields in candidates if fields is not None), None)
    if settings is None:
        raise InputError(
            f"training cannot continue from a model trained with {trained.method}: no training "
            f"method matches it (flows must have a schedule kappa = t^power)"
        )
    settings |= {"length": trained.length, "fix_first": trained.fix_first}
    settings["learned_positions"] = model.positions > 0
    if model.conditions:  # a network without conditions may get new ones
        settings["condition"] = tuple(condition.name for condition in model.conditions)
    trained_with = flatten(trained.card.get("config", trained.card.get("recipe", {})))
    if "masked_only" in trained_with:
        settings["masked_only"] = trained_with["masked_only"]
    return settings
