"""BD3LM's training: every block noised at a time of its own, and a clipped range of noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from cwdfm.baselines.bd3lm.checks import check_length
from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.loss import NELBO
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.method.base import DataBatch, Forward, Objective, TrainingBatch
from cwdfm.model.positions import Positions
from cwdfm.path import MixturePath, PathSample
from cwdfm.schedule import Linear, Schedule, stratified_times
from cwdfm.source import MaskSource

LOSS = NELBO("masked")
# The clip ranges that the search compares: all windows of these widths on a grid of GRID, and no
# clipping at all. As BD3LM's.
WIDTHS = (0.5, 0.6, 0.7, 0.8, 0.9)
GRID = 0.05
# Of the search's own counted randomness: no training step has this number.
SEARCH_STEP = 2**31 + 1
SEARCH_TOKENS = 2**18  # looked at for each range ...
CHUNK_TOKENS = 2**16  # ... so many at once


@dataclass(frozen=True)
class BlockObjective(Objective):
    """L = E sum_k lambda_{t_k} sum_{i masked in block k} -log p(x_1^i | x_{t_k}, clean x_<k).

    One t gives each of the K blocks its own, t_k = (t + k/K) mod 1, so that a sequence's times are
    spread evenly. The network reads [x_t, x_1], 2N tokens, and its first half is scored.

    `low`, `high` clip the probability of a mask. By its inverse the terms of the linear schedule
    are weighted: little noise makes for rare, huge terms, and the most noise for terms that teach
    little. Times are uniform over the rest, and terms scaled so that a constant cross-entropy is
    its own mean; low = high is noise at one level alone. What is minimised is then no bound, and
    losses under different ranges do not compare: `BlockDiffusion.likelihood` covers all.

    `search`: look for the range of lowest variance at each validation.
    """

    source: MaskSource
    schedule: Schedule
    block: int
    low: float = 0.0
    high: float = 1.0
    search: bool = False

    def __post_init__(self) -> None:
        check_instance("source", self.source, MaskSource, "MaskSource(vocab_size=30)")
        check_instance("schedule", self.schedule, Schedule, "Linear()")
        check_integer("block", self.block)
        if not 0 <= self.low <= self.high <= 1 or self.high == 0:
            raise InputError(
                f"the mask probability is clipped to low..high with 0 <= low <= high <= 1 and "
                f"high > 0, got {self.low}..{self.high}; 0..1 clips nothing"
            )

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        noised = self.corrupted(batch)
        rows = Positions.of(LOSS.needed(noised))
        read = partial(self._read, batch=noised, rows=rows, per_token=False)
        return TrainingBatch(torch.cat([noised.x_t, batch.x_1], dim=1), batch.t, read)

    def corrupted(self, batch: DataBatch) -> PathSample:
        """x_t with one time a block, from one uniform t [B] a sequence."""
        length = batch.x_1.shape[1]
        check_length(length, self.block)
        return MixturePath(self.source, self._clock).sample(
            batch.x_1,
            self.times(batch.t, length),
            seed=batch.seed,
            step=batch.step,
            index=batch.index,
            fixed=batch.fixed,
        )

    def times(self, t_B: Tensor, length: int) -> Tensor:
        """The time [B, N] of each token, the same throughout a block, float64."""
        blocks = length // self.block
        offset_K = torch.arange(blocks, device=t_B.device, dtype=torch.float64) / blocks
        u_BK = (t_B.double()[:, None] + offset_K) % 1.0
        first, last = self._ends
        return (first + (last - first) * u_BK).repeat_interleave(self.block, dim=1)

    @property
    def _clock(self) -> Schedule:
        # At one level of noise alone all clocks are the same, and this one never stands still.
        return Linear() if self.low == self.high else self.schedule

    @property
    def _ends(self) -> tuple[float, float]:
        """The first time and the last."""
        clock = self._clock
        return float(clock.inverse(1.0 - self.high)), float(clock.inverse(1.0 - self.low))

    @property
    def _scale(self) -> float:
        """1 / mean of kappa' over the range: 1 for a linear schedule, or without clipping."""
        first, last = self._ends
        return 1.0 if self.low == self.high else (last - first) / (self.high - self.low)

    def _read(
        self,
        hidden_BMD: Tensor,
        readout: nn.Linear,
        *,
        batch: PathSample,
        per_token: bool,
        rows: Positions | None = None,
    ) -> Tensor:
        """The loss, or its terms [B, N], from the hidden vectors of both halves."""
        noised_BND = hidden_BMD[:, : batch.x_1.shape[1]]
        loss = LOSS.from_head(
            noised_BND, readout, batch, self._clock, rows=rows, per_token=per_token
        )
        return self._scale * loss

    @property
    def worst_weight(self) -> float:
        last = min(self._ends[1], 1 - TIME_EPSILON)
        return self._scale * float(self._clock.hazard(last))

    @property
    def held_out(self) -> "BlockObjective":
        """With all of the noise: losses under different ranges do not compare."""
        return replace(self, low=0.0, high=1.0)

    def adapted(self, forward: Forward, x_1: Tensor, fixed: Tensor) -> "BlockObjective":
        """With the clip range of lowest variance, if `search`; every range sees the same noise."""
        if not self.search:
            return self
        ranges = [replace(self, low=low, high=high) for low, high in clip_ranges(self.block)]
        return min(ranges, key=lambda objective: objective.variance(forward, x_1, fixed))

    @torch.no_grad()
    def variance(self, forward: Forward, x_1: Tensor, fixed: Tensor) -> float:
        """The variance of a block's loss, nats a token, over data, times and noise.

        Of blocks and not of sequences, since sequences average over many blocks, and what is left
        is mostly how they differ from each other, whatever the range.
        """
        length = x_1.shape[1]
        x_1, fixed = (x[: max(1, SEARCH_TOKENS // length)] for x in (x_1, fixed))
        index_B = torch.arange(len(x_1), device=x_1.device)
        t_B = stratified_times(0, SEARCH_STEP, index_B, len(x_1))
        blocks: list[Tensor] = []
        for rows in index_B.split(max(1, CHUNK_TOKENS // length)):
            batch = self.corrupted(
                DataBatch(x_1[rows], t_B[rows], fixed[rows], rows, seed=0, step=SEARCH_STEP)
            )
            read: Callable[..., Tensor] = partial(self._read, batch=batch, per_token=True)
            clean = batch.x_1
            terms_BN = forward(torch.cat([batch.x_t, clean], dim=1), t_B[rows].float(), read)
            terms_BK = terms_BN.double().unflatten(1, (-1, self.block)).sum(2)
            free_BK = (~batch.fixed).unflatten(1, (-1, self.block)).sum(2)
            blocks.append((terms_BK / free_BK)[free_BK > 0])
        return float(torch.cat(blocks).var())

    def state(self) -> dict[str, float]:
        return {"clip_low": self.low, "clip_high": self.high}

    def restored(self, state: dict[str, float]) -> "BlockObjective":
        low, high = state.get("clip_low", self.low), state.get("clip_high", self.high)
        return replace(self, low=low, high=high)


def clip_ranges(block: int) -> list[tuple[float, float]]:
    """The ranges of the mask probability that the search compares.

    For blocks of one token, which carry no loss unless masked: all, or masked always.
    """
    if block == 1:
        return [(0.0, 1.0), (1.0, 1.0)]
    steps = round(1 / GRID)
    windows = [
        (first / steps, (first + round(width * steps)) / steps)
        for width in WIDTHS
        for first in range(steps - round(width * steps) + 1)
    ]
    return [(0.0, 1.0), *windows]
