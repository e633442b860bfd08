"""Rework: what is done to finished samples of a flow."""

from abc import ABC, abstractmethod
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_tokens
from cwdfm.model.predict import model_device
from cwdfm.model.protocol import Model
from cwdfm.ops.random import check_seed, sample_index
from cwdfm.schedule import Schedule, Spacing
from cwdfm.solver.base import Solver, given
from cwdfm.solver.sample import Samples, Tick
from cwdfm.source import Source


class Where(TypedDict):
    """Which samples, where and how many at once: see `cwdfm.sample`."""

    seed: int
    fixed: Tensor | None  # [B, N] or [N]: what stays
    index: Tensor | None
    batch_size: int | None
    progress: Tick | None


class Rework(ABC):
    """A way to make better samples of samples. A frozen dataclass."""

    @property
    @abstractmethod
    def ticks(self) -> int:
        """How often `progress` hears of a sequence."""

    def check(self, solver: Solver) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse a solver whose samples it cannot work on."""

    @abstractmethod
    def work(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        solver: Solver,
        grid: Spacing,
        tokens: Tensor,
        **where: Unpack[Where],
    ) -> Samples:
        """Better versions of `tokens` [B, N], and what they took.

        `solver` and `grid` are those by which they were drawn.
        """


def check_share(share: float, meaning: str, usual: float) -> None:
    """Refuse what is no share of tokens."""
    if not isinstance(share, int | float) or not 1e-6 <= share <= 1:
        raise InputError(
            f"share must lie between 1e-6 and 1, {meaning}, got {share!r}; try {usual}"
        )


def finished(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor,
    fixed: Tensor | None,
    index: Tensor | None,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences [B, N] where the model is, what stays of them [B, N], and their numbers [B]."""
    check_instance("source", source, Source, "MaskSource(vocab_size=30)")
    check_instance("schedule", schedule, Schedule, "Polynomial(2.0)")
    check_seed(seed)
    check_tokens("tokens", tokens, source.vocab_size)
    tokens = tokens.to(model_device(model) or tokens.device)
    index_B = sample_index(index, len(tokens), tokens.device)
    fixed = torch.zeros_like(tokens, dtype=torch.bool) if fixed is None else fixed
    shape = (len(tokens), tokens.shape[1])
    return tokens, given(source, shape, tokens, fixed, tokens.device)[1], index_B


def together(first: Samples, then: Samples) -> Samples:
    """What came of the second, and what both took."""
    return Samples(
        tokens=then.tokens,
        updates=first.updates + then.updates,
        loops=first.loops + then.loops,
        evaluations=first.evaluations + then.evaluations,
        rows=first.rows + then.rows,
    )
