"""Probability paths: from (x_1, t) to a partly revealed x_t."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cwdfm.errors import (
    InputError,
    check_instance,
    check_mask,
    check_time_range,
    check_time_tensor,
    check_token_range,
    check_token_tensor,
)
from cwdfm.ops.host_copy import RangeChecks
from cwdfm.ops.random import (
    Purpose,
    check_index_range,
    check_index_tensor,
    index_or_arange,
    uniform_BN,
)
from cwdfm.schedule import Schedule
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class PathSample:
    """What a path hands to weights and losses.

    `revealed` is the reveal mask B_t, not value equality: under a uniform source a coordinate may
    hold x_1^i by chance without having been revealed. `fixed` coordinates are given, always
    revealed, and carry no loss. `weight` is the context weight that the path followed, if any: the
    likelihood bound's terms carry it.
    """

    x_0: Tensor  # [B, N] int64, noise
    x_1: Tensor  # [B, N] int64, data
    x_t: Tensor  # [B, N] int64, x_1 where revealed, else x_0
    t: Tensor  # [B] float, or [B, N] where coordinates have times of their own
    revealed: Tensor  # [B, N] bool
    fixed: Tensor  # [B, N] bool
    source: Source
    weight: Weight | None = None


@dataclass(frozen=True)
class Path(ABC):
    """A path between a source and the data under a schedule."""

    source: Source
    schedule: Schedule

    def __post_init__(self) -> None:
        check_instance("source", self.source, Source, "MaskSource(vocab_size=30)")
        check_instance("schedule", self.schedule, Schedule, "Polynomial(2.0)")

    @property
    @abstractmethod
    def context_weight(self) -> Weight | None:
        """The weight of the chain whose marginals these are; None for the plain chain."""

    @abstractmethod
    def reveal(
        self,
        kappa: Tensor,
        length: int,
        *,
        seed: int,
        step: int,
        index: Tensor | None,
        fixed: Tensor | None,
    ) -> Tensor:
        """The reveal mask B_t [B, N]; the rest of the arguments is as in `sample`.

        `kappa` is [B]; or [B, N], which a path with a context weight is never asked. On a GPU bad
        values of `kappa` and `index` may come here, and must do no harm: they are refused later.
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
        """x_t ~ p_t(. | x_0, x_1) with x_0 ~ p_0, for data x_1 [B, N] at times t [B].

        On a path without a context weight, t may also be [B, N]: a time for each coordinate.

        The draw is a function of (seed, step, index): `index` [B] numbers the samples globally
        (default 0..B-1), `step` is the training step. `fixed` [B, N] marks given coordinates.
        """
        # On a GPU nobody waits for values before the work is launched: bad ones are harmless in it.
        check_token_tensor("x_1", x_1)
        batch, length = x_1.shape
        checks = RangeChecks(x_1.device)
        checks.add(x_1, partial(check_token_range, "x_1", self.source.vocab_size))
        check_time_tensor(t, batch, length)
        checks.add(t, check_time_range)
        if t.dim() == 2 and self.context_weight is not None:
            raise InputError(
                f"coordinates with times of their own need a path that reveals each on its own: "
                f"{self.context_weight} places the reveals of one time; give t of shape "
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
        # After the reveals, which take a GPU long enough to launch the rest meanwhile.
        checks.launch()
        index_B = index_or_arange(index, batch, x_1.device)
        x_0 = self.source.noise(index_B, length, seed=seed, step=step)
        x_t = torch.where(revealed, x_1, x_0)
        if fixed is None:
            fixed = torch.zeros_like(x_1, dtype=torch.bool)
        checks.wait()
        return PathSample(x_0, x_1, x_t, t, revealed, fixed, self.source, self.context_weight)


def independent_reveals(
    kappa: Tensor,
    length: int,
    *,
    seed: int,
    step: int,
    index: Tensor | None,
    fixed: Tensor | None,
) -> Tensor:
    """Each coordinate revealed with probability kappa [B] or [B, N] on its own, bool [B, N]."""
    index_B = index_or_arange(index, len(kappa), kappa.device)
    u_BN = uniform_BN(seed, Purpose.REVEAL, index_B, step, length)
    revealed_BN = u_BN < (kappa if kappa.dim() == 2 else kappa[:, None])
    return revealed_BN if fixed is None else revealed_BN | fixed
