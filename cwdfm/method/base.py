"""Methods, objectives and their configs.

A `Method` is stored with the model. It defines how sequences are sampled from the network and how
their likelihood is computed. An `Objective` is used only in training: it corrupts data to obtain
the network's input, and computes the loss from the network's output. A `MethodConfig` holds the
settings of both. Everything else (transformer, trainer, data, commands, metrics) is shared by all
methods, so that compared models differ only in the method.

To add a method, write these classes in a new package, and add a line to `cwdfm.baselines.METHODS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, NoReturn, Unpack

from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.guidance import Guidance
from cwdfm.likelihood.bound import Bound, LikelihoodOptions
from cwdfm.model.transformer import DiTConfig, Read
from cwdfm.postprocess.base import Postprocess
from cwdfm.postprocess.reject import Reject
from cwdfm.schedule import Spacing
from cwdfm.solver import Samples
from cwdfm.solver.sample import Progress

# The network as called by the trainer, on input [B, M], times [B] and a function of the last hidden
# states and the output head, whose value it returns. DDP and FSDP2 wrap this call.
Forward = Callable[[Tensor, Tensor, Read], Tensor]


@dataclass(frozen=True)
class SampleRequest:
    """A request for samples, for any method. See `cwdfm.sample` for details."""

    shape: tuple[int, int]  # number of sequences, length
    steps: int
    seed: int = 0
    grid: Spacing | Tensor = "t"
    prompt: Tensor | None = None  # [N] or [B, N]: prompt tokens
    fixed: Tensor | None = None  # [N] or [B, N]: mask of the prompt tokens to keep
    index: Tensor | None = None  # [B]: global sample numbers
    batch_size: int | None = None
    banned_tokens: tuple[int, ...] = ()  # ids that are never drawn
    guidance: tuple[Guidance, ...] = ()  # applied to the network in this order
    postprocess: tuple[Postprocess, ...] = ()  # applied in this order
    reject: Reject | None = None  # rejection sampling, after postprocessing
    record: int = 0  # number of sequences to record
    progress: Progress | None = None

    @property
    def progress_steps(self) -> int:
        """The number of times that `progress` counts each sequence, per try."""
        return self.steps + sum(stage.progress_steps for stage in self.postprocess)

    @property
    def loop_options(self) -> dict[str, Any]:
        """The keyword arguments of `cwdfm.sample`."""
        excluded = ("banned_tokens", "guidance", "postprocess", "reject")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in excluded}

    def subset(self, index_A: Tensor, seed: int) -> "SampleRequest":
        """Request only the sequences at index_A [A], with a different seed."""

        def select(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.dim() == 1 else x[index_A.to(x.device)]

        shape = (len(index_A), self.shape[1])
        index = index_A if self.index is None else self.index[index_A.to(self.index.device)]
        prompt, fixed = select(self.prompt), select(self.fixed)
        return replace(self, shape=shape, seed=seed, prompt=prompt, fixed=fixed, index=index)


class Method(ABC):
    """Defines how a network is sampled and scored. Subclasses are frozen dataclasses."""

    default_solver: ClassVar[str]  # name in `cwdfm.solver_config.SOLVERS`
    step_per_token: ClassVar[bool] = False  # whether sampling takes one step per token, no grid

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """The number of token ids of the network: the vocabulary, plus special ids if any."""

    @property
    def exact(self) -> bool:
        """Whether `likelihood` is exact, rather than a stochastic bound."""
        return False

    @property
    def causal_block(self) -> int | None:
        """Tokens per block, if a block is predicted without the tokens after it; None otherwise."""
        return None

    def network(self, config: DiTConfig) -> DiTConfig:
        """Adapt the config of a transformer to this method."""
        return replace(config, num_tokens=self.num_tokens)

    def steps(self, requested: int, length: int) -> int:
        """The number of steps that sampling takes if `requested` steps are requested."""
        return requested

    def adapt(self, solver: Any, stop: int | None = None) -> Any:
        """Adapt a solver to this method. With `stop`, samples end at this token."""
        if stop is not None:
            raise InputError(
                "stop must be omitted with this model: only bd3lm samples block by block; other "
                "samples have their full length, and decoding truncates them at the end token",
                fields=("stop",),
            )
        return solver

    @abstractmethod
    def sample(self, model: nn.Module, solver: object, request: SampleRequest) -> Samples:
        """Sample sequences. If `solver` is None, the method's default solver is used."""

    @abstractmethod
    def likelihood(
        self, model: nn.Module, x_1: Tensor, **options: Unpack[LikelihoodOptions]
    ) -> Bound:
        """-log p(x_1) of sequences [B, N], or an upper bound: see `cwdfm.elbo`."""


@dataclass(frozen=True)
class DataBatch:
    """Clean sequences to train on, and everything that determines their corruption."""

    x_1: Tensor  # [B, N] int64
    t: Tensor  # [B]: uniform times, stratified over the global batch
    fixed: Tensor  # [B, N] bool: tokens that are neither corrupted nor part of the loss
    index: Tensor  # [B] int64: positions in the global batch
    seed: int
    step: int
    condition: Tensor | None = None  # [B, C]: encoded conditions, NaN where unspecified

    @property
    def noise(self) -> dict[str, Any]:
        """The keyword arguments of `Path.sample` that determine the random draws."""
        return {name: getattr(self, name) for name in ("seed", "step", "index", "fixed")}


@dataclass(frozen=True)
class TrainingBatch:
    """The network's input, and the loss as a function of its output."""

    x: Tensor  # [B, M] int64: input tokens
    t: Tensor  # [B]: times that the network is conditioned on, or [B, 1 + C] with conditions
    loss_fn: Read  # (last hidden states, output head) -> loss

    def loss(self, forward: Forward) -> Tensor:
        """Run the network and return the loss, a scalar."""
        return forward(self.x, self.t, self.loss_fn)


class Objective(ABC):
    """A training objective. It holds no weights."""

    @abstractmethod
    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        """Corrupt a batch. The loss of the returned batch is its mean, in nats per token."""

    def __call__(self, forward: Forward, batch: DataBatch) -> Tensor:
        """The mean loss of a batch, in nats per token."""
        return self.training_batch(batch).loss(forward)

    @property
    def worst_weight(self) -> float:
        """The largest weight of any token's cross-entropy, used to detect a diverged run."""
        return 1.0

    @property
    def held_out(self) -> "Objective":
        """The objective used for validation, which `adapted` does not change."""
        return self

    def adapted(self, forward: Forward, x_1: Tensor, fixed: Tensor) -> "Objective":
        """The objective to continue training with, adapted to held-out sequences."""
        return self

    def state(self) -> dict[str, float]:
        """The parameters changed by `adapted`, by name. Checkpoints and logs contain them."""
        return {}

    def restored(self, state: dict[str, float]) -> "Objective":
        """The objective with the parameters of a saved `state`."""
        return self


@dataclass(frozen=True)
class Task:
    """The objects that a config describes, for one vocabulary."""

    method: Method
    objective: Objective
    model: DiTConfig


@dataclass(frozen=True)
class MethodConfig(ABC):
    """The settings of a method, its objective, and its changes to the network's config."""

    method_class: ClassVar[type[Method]]  # the class that saved models store by name

    method: str  # the training method: flow, mdlm, sedd, bd3lm or ar; each has its own options

    @abstractmethod
    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        """Build the objects for `vocab_size` data tokens, a network size and a sequence length."""

    @classmethod
    @abstractmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        """The config fields that are taken from a trained model when it is fine-tuned.

        None if the model was trained by another method.
        """


def unsupported_solver(method: Method, solver: object, allowed: str, reason: str) -> NoReturn:
    """Raise the error for a solver that the method does not support."""
    name = repr(solver)
    if is_dataclass(solver) and not isinstance(solver, type):
        name = type(solver).__name__
    if (weight := getattr(solver, "weight", None)) is not None:
        name += f" with {weight}"
    raise InputError(f"{name} cannot sample from {type(method).__name__}: {reason}; use {allowed}")
