"""The interface of probability paths, which corrupt data x_1 to x_t, and the mixture path."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from cwdfm.errors import (
    InputError,
    check_mask,
    check_time_range,
    check_time_tensor,
    check_token_range,
    check_token_tensor,
    is_builtin,
)
from cwdfm.ops.host_copy import RangeChecks
from cwdfm.ops.random import (
    Purpose,
    check_index_range,
    check_index_tensor,
    check_seed,
    check_step,
    index_or_arange,
    uniform_BN,
)
from cwdfm.schedule import Schedule, check_schedule
from cwdfm.source import Source, check_source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class PathSample:
    """A sample from a path, the input of weights and losses.

    `revealed` is the reveal mask B_t, not value equality: with a uniform source x_t^i may equal
    x_1^i by chance without being revealed. `fixed` coordinates are conditioned on: always revealed,
    and excluded from the loss. `weight` is the context weight of the path, if any; the terms of the
    likelihood bound include it, and depend on the path's `schedule`.
    """

    x_0: Tensor  # [B, N] int64, noise
    x_1: Tensor  # [B, N] int64, data
    x_t: Tensor  # [B, N] int64, x_1 where revealed, else x_0
    t: Tensor  # [B] float, or [B, N] with a time for each coordinate
    revealed: Tensor  # [B, N] bool
    fixed: Tensor  # [B, N] bool
    source: Source
    weight: Weight | None = None
    schedule: Schedule | None = None


class RevealOptions(TypedDict):
    """The arguments that determine the random draws of a path; see `Path.sample`."""

    seed: int
    step: int
    index: Tensor | None
    fixed: Tensor | None


@dataclass(frozen=True)
class Path(ABC):
    """A path between a source and the data under a schedule."""

    source: Source
    schedule: Schedule

    def __post_init__(self) -> None:
        check_source(self.source)
        check_schedule(self.schedule)

    @property
    @abstractmethod
    def context_weight(self) -> Weight | None:
        """The context weight of the Markov chain with these marginals; None if unweighted."""

    @abstractmethod
    def reveal(self, kappa: Tensor, length: int, **options: Unpack[RevealOptions]) -> Tensor:
        """Draw the reveal mask B_t, bool [B, N], in which `fixed` coordinates are revealed.

        `kappa` is [B], or [B, N] on a path without a context weight. On a GPU, `kappa` and `index`
        are validated only after this call, so implementations must tolerate invalid values.
        """

    def sample(
        self,
        x_1: Tensor,
        t: Tensor,
        *,
        seed: int = 0,
        step: int = 0,
        index: Tensor | None = None,
        fixed: Tensor | None = None,
    ) -> PathSample:
        """Draw x_t ~ p_t(. | x_0, x_1) with x_0 ~ p_0, for data x_1 [B, N] at times t [B].

        On a path without a context weight, t may also be [B, N], with one time per coordinate.

        The draw is a function of (seed, step, index), where `index` [B] holds global sample indices
        (default 0..B-1) and `step` is the training step. In a training loop pass `step`: without
        it, every batch gets the same noise and the same thresholds for its reveals. Coordinates in
        `fixed` [B, N] keep their data token.
        """
        check_seed(seed)
        check_step(step)
        # On a GPU, values are validated after all kernels are launched, which tolerate bad ones.
        check_token_tensor("x_1", x_1)
        batch, length = x_1.shape
        checks = RangeChecks(x_1.device)
        checks.add(x_1, partial(check_token_range, "x_1", self.source.vocab_size))
        check_time_tensor(t, batch, length)
        checks.add(t, check_time_range)
        if t.dim() == 2 and self.context_weight is not None:
            raise InputError(
                f"t of shape ({batch}, {length}) needs a path that reveals coordinates "
                f"independently, which {self.context_weight} does not; pass t of shape "
                f"({batch},), or use MixturePath"
            )
        if fixed is not None:
            check_mask("fixed", fixed, (batch, length))
        if index is not None:
            check_index_tensor(index, batch)
            checks.add(index, check_index_range)
            index = index.to(x_1.device)
        kappa = self.schedule.kappa(t.double())
        revealed = self.reveal(kappa, length, seed=seed, step=step, index=index, fixed=fixed)
        if not is_builtin(self):
            name = f"{type(self).__name__}.reveal's result"
            check_mask(name, revealed, (batch, length))
            if fixed is not None and not bool(revealed[fixed].all()):
                raise InputError(f"{name} leaves fixed coordinates masked; return mask | fixed")
        # Launched after the reveals, which keep a GPU busy while the host launches the rest.
        checks.launch()
        index_B = index_or_arange(index, batch, x_1.device)
        x_0 = self.source.noise(index_B, length, seed=seed, step=step)
        x_t = torch.where(revealed, x_1, x_0)
        if fixed is None:
            fixed = torch.zeros_like(x_1, dtype=torch.bool)
        checks.wait()
        parts = self.source, self.context_weight, self.schedule
        return PathSample(x_0, x_1, x_t, t, revealed, fixed, *parts)


def independent_reveals(kappa: Tensor, length: int, **options: Unpack[RevealOptions]) -> Tensor:
    """Reveal each coordinate independently with probability kappa [B] or [B, N]; bool [B, N]."""
    index_B = index_or_arange(options["index"], len(kappa), kappa.device)
    u_BN = uniform_BN(options["seed"], Purpose.REVEAL, index_B, options["step"], length)
    revealed_BN = u_BN < (kappa if kappa.dim() == 2 else kappa[:, None])
    return revealed_BN if options["fixed"] is None else revealed_BN | options["fixed"]


@dataclass(frozen=True)
class MixturePath(Path):
    """p_t(x^i | x_0, x_1) = (1 - kappa_t) delta(x^i, x_0^i) + kappa_t delta(x^i, x_1^i)."""

    @property
    def context_weight(self) -> None:
        return None

    def reveal(self, kappa: Tensor, length: int, **options: Unpack[RevealOptions]) -> Tensor:
        return independent_reveals(kappa, length, **options)
