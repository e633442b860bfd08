"""What a trained network means, and how it comes to mean it.

A `Method` is kept with the model: it says how sequences are drawn from the network, and how likely
the network finds given ones. An `Objective` is needed in training alone: from sequences of data it
makes the network's input, and from the network's answer a loss. Everything else, the transformer,
the trainer, data, commands and metrics, is the same for all methods, so that a comparison of two
differs in the method alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from typing import NoReturn

from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.likelihood.bound import Bound
from cwdfm.model.transformer import DiTConfig, Read
from cwdfm.postprocess.base import Rework
from cwdfm.postprocess.reject import Accept
from cwdfm.schedule import Spacing
from cwdfm.solver import Samples
from cwdfm.solver.sample import Tick

# The network as the trainer calls it: input [B, M], times [B], and what to make of its last hidden
# vectors and its head. DDP and FSDP2 wrap exactly this.
Forward = Callable[[Tensor, Tensor, Read], Tensor]


@dataclass(frozen=True)
class DrawRequest:
    """Which sequences to draw, whatever the method. See `cwdfm.sample` for each."""

    shape: tuple[int, int]  # sequences, length
    steps: int
    seed: int = 0
    grid: Spacing | Tensor = "t"
    prompt: Tensor | None = None  # [N] or [B, N]: tokens to keep ...
    fixed: Tensor | None = None  # ... and where
    index: Tensor | None = None  # [B]: the samples' global numbers
    batch_size: int | None = None
    without: tuple[int, ...] = ()  # tokens never to draw
    after: tuple[Rework, ...] = ()  # what is done to them afterwards
    accept: Accept | None = None  # which of them are not drawn again
    tick: Tick | None = None

    def some(self, place_A: Tensor, seed: int) -> "DrawRequest":
        """The same of the sequences at some places [A], by another seed. Nothing is checked."""

        def theirs(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.dim() == 1 else x[place_A.to(x.device)]

        return replace(
            self,
            shape=(len(place_A), self.shape[1]),
            seed=seed,
            prompt=theirs(self.prompt),
            fixed=theirs(self.fixed),
            index=place_A if self.index is None else self.index[place_A.to(self.index.device)],
        )


class Method(ABC):
    """How a network is sampled and how it scores, for one vocabulary. A frozen dataclass."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """How many ids the network knows: the data's, and perhaps one more."""

    @property
    def exact(self) -> bool:
        """Whether `likelihood` is -log p itself, and no bound that hangs on times and noise."""
        return False

    @property
    def causal_block(self) -> int | None:
        """Tokens per block of a method that generates blocks from left to right, else None.

        Such a method predicts a block without the tokens after it.
        """
        return None

    def network(self, config: DiTConfig) -> DiTConfig:
        """The shape that the method needs of a transformer of a given size."""
        return replace(config, num_tokens=self.num_tokens)

    def steps(self, asked: int, length: int) -> int:
        """How many steps a sequence takes, of those asked for."""
        return asked

    @abstractmethod
    def draw(self, model: nn.Module, solver: object, asked: DrawRequest) -> Samples:
        """Sequences; `solver` None is the method's own. Others are refused with the reason."""

    @abstractmethod
    def likelihood(
        self,
        model: nn.Module,
        x_1: Tensor,
        *,
        seed: int = 0,
        draws: int = 16,
        fixed: Tensor | None = None,
        index: Tensor | None = None,
        batch_size: int = 256,
    ) -> Bound:
        """-log p(x_1) of sequences [B, N], or an upper bound on it: see `cwdfm.elbo`."""


@dataclass(frozen=True)
class DataBatch:
    """Clean sequences to train on, and everything that determines their corruption."""

    x_1: Tensor  # [B, N] int64
    t: Tensor  # [B]: uniform times, stratified over the global batch
    fixed: Tensor  # [B, N] bool: given tokens, which stay uncorrupted and carry no loss
    index: Tensor  # [B] int64: positions in the global batch
    seed: int
    step: int


@dataclass(frozen=True)
class TrainingBatch:
    """The network's input, and the loss as a function of its output."""

    x: Tensor  # [B, M] int64: input tokens
    t: Tensor  # [B]: times that the network is conditioned on
    loss_fn: Read  # (last hidden states, output head) -> loss

    def loss(self, forward: Forward) -> Tensor:
        """Run the network and return the loss, a scalar."""
        return forward(self.x, self.t, self.loss_fn)


class Objective(ABC):
    """A training objective. It holds no weights."""

    @abstractmethod
    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        """Corrupt a batch. The loss of the result is the batch mean, in nats per token."""

    def __call__(self, forward: Forward, batch: DataBatch) -> Tensor:
        """The mean loss of a batch, in nats per token."""
        return self.training_batch(batch).loss(forward)

    @property
    def worst_weight(self) -> float:
        """The largest weight of a token's cross-entropy: beyond ten times that, a run diverged."""
        return 1.0

    @property
    def held_out(self) -> "Objective":
        """What validations measure: the same throughout a run, whatever `adapted` changes."""
        return self

    def adapted(self, forward: Forward, x_1: Tensor, fixed: Tensor) -> "Objective":
        """The objective to go on with after a validation, and a look at held-out sequences."""
        return self

    def state(self) -> dict[str, float]:
        """What `adapted` has changed, numbers by name: checkpoints keep it, records show it."""
        return {}

    def restored(self, state: dict[str, float]) -> "Objective":
        """The objective as it was when `state` was written."""
        return self


def refuse_solver(method: Method, solver: object, allowed: str, reason: str) -> NoReturn:
    """The message for a solver that the method cannot follow."""
    name = type(solver).__name__ if is_dataclass(solver) else repr(solver)
    weight = getattr(solver, "weight", None)
    with_weight = "" if weight is None else f" with {weight}"
    raise InputError(
        f"{name}{with_weight} cannot sample from {type(method).__name__}: {reason}; use {allowed}"
    )
