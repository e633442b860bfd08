"""Training of BD3LM: the objective, one time per block and a clipped noise range, and its config.

Shapes: B batch, N length, M = 2 N, K blocks, D width.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.baselines.bd3lm.method import BlockDiffusion
from cwdfm.baselines.bd3lm.solver import check_length
from cwdfm.errors import MAX_LENGTH, InputError, check_bool, check_integer
from cwdfm.loss import NELBO
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.method.base import (
    DataBatch,
    Forward,
    Method,
    MethodConfig,
    Objective,
    Task,
    TrainingBatch,
)
from cwdfm.model.positions import Positions
from cwdfm.model.transformer import DiTConfig
from cwdfm.path import MixturePath, PathSample
from cwdfm.schedule import Linear, Schedule, stratified_times
from cwdfm.source import MaskSource

LOSS = NELBO("masked")
# The search compares all ranges of these widths on a grid of GRID, and no clipping, as BD3LM does.
WIDTHS = (0.5, 0.6, 0.7, 0.8, 0.9)
GRID = 0.05
SEARCH_STEP = 2**31 + 1  # step number of the search's randomness, beyond all training steps
SEARCH_TOKENS = 2**18  # tokens evaluated per range
CHUNK_TOKENS = 2**16  # tokens per forward pass of the search


@dataclass(frozen=True)
class BlockObjective(Objective):
    """L = E sum_k lambda_{t_k} sum_{i masked in block k} -log p(x_1^i | x_{t_k}, clean x_<k).

    A time t per sequence gives block k of K the time t_k = (t + k/K) mod 1, so the times of a
    sequence are spread evenly. The network reads [x_t, x_1], 2N tokens, and the loss is taken on
    the first half.

    - `low`, `high`: the range of the mask probability. Terms of the linear schedule are weighted by
      its inverse: low noise gives rare, huge terms, and the highest noise gives terms with little
      information. Times are uniform over the range, and terms are scaled such that a constant
      cross-entropy keeps its value. low = high trains at a single noise level. A clipped loss is
      not a bound, and losses with different ranges are not comparable;
      `BlockDiffusion.likelihood` covers the whole range.
    - `search`: choose the range with the lowest variance at each validation.
    """

    method: BlockDiffusion
    low: float = 0.0
    high: float = 1.0
    search: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1 or self.high == 0:
            raise InputError(
                f"the clip range low..high of the mask probability needs 0 <= low <= high <= 1 and "
                f"high > 0, got {self.low}..{self.high}; 0..1 disables clipping"
            )

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        noised = self.corrupt(batch)
        rows = Positions.of(LOSS.needed(noised))
        loss = partial(self._loss, batch=noised, rows=rows, per_token=False)
        return TrainingBatch(torch.cat([noised.x_t, batch.x_1], dim=1), batch.t, loss)

    def corrupt(self, batch: DataBatch) -> PathSample:
        """Sample x_t with one time per block."""
        length = batch.x_1.shape[1]
        check_length(length, self.method.block)
        path = MixturePath(self.method.source, self._schedule)
        return path.sample(batch.x_1, self.times(batch.t, length), **batch.noise)

    def times(self, t_B: Tensor, length: int) -> Tensor:
        """The time of each token [B, N] float64, constant within a block, from t [B]."""
        blocks = length // self.method.block
        offset_K = torch.arange(blocks, device=t_B.device, dtype=torch.float64) / blocks
        u_BK = (t_B.double()[:, None] + offset_K) % 1.0
        first, last = self._ends
        return (first + (last - first) * u_BK).repeat_interleave(self.method.block, dim=1)

    @property
    def _schedule(self) -> Schedule:
        # At a single noise level all schedules agree, and this one has a positive derivative.
        return Linear() if self.low == self.high else self.method.schedule

    @property
    def _ends(self) -> tuple[float, float]:
        """The first and the last time."""
        schedule = self._schedule
        return float(schedule.inverse(1.0 - self.high)), float(schedule.inverse(1.0 - self.low))

    @property
    def _scale(self) -> float:
        """1 / (mean of kappa' over the range): 1 for a linear schedule or without clipping."""
        first, last = self._ends
        return 1.0 if self.low == self.high else (last - first) / (self.high - self.low)

    def _loss(
        self,
        hidden_BMD: Tensor,
        readout: nn.Linear,
        *,
        batch: PathSample,
        per_token: bool,
        rows: Positions | None = None,
    ) -> Tensor:
        """The loss, or its terms [B, N], from the hidden states of [x_t, x_1]."""
        noised_BND = hidden_BMD[:, : batch.x_1.shape[1]]
        loss = LOSS.from_head(
            noised_BND, readout, batch, self._schedule, rows=rows, per_token=per_token
        )
        return self._scale * loss

    @property
    def worst_weight(self) -> float:
        last = min(self._ends[1], 1 - TIME_EPSILON)
        return self._scale * float(self._schedule.hazard(last))

    @property
    def held_out(self) -> "BlockObjective":
        """The objective without clipping, since losses with different ranges are not comparable."""
        return replace(self, low=0.0, high=1.0)

    def adapted(self, forward: Forward, x_1: Tensor, fixed: Tensor) -> "BlockObjective":
        """With `search`, the clip range of lowest variance; all ranges use the same noise."""
        if not self.search:
            return self
        ends = clip_ranges(self.method.block)
        ranges = [replace(self, low=low, high=high) for low, high in ends]
        return min(ranges, key=lambda objective: objective.variance(forward, x_1, fixed))

    @torch.no_grad()
    def variance(self, forward: Forward, x_1: Tensor, fixed: Tensor) -> float:
        """The variance of the loss of a block, in nats per token, over data, times and noise.

        It is taken over blocks and not over sequences. A sequence averages over many blocks, so the
        variance between sequences mostly reflects the data and hardly depends on the range.
        """
        length, block = x_1.shape[1], self.method.block
        x_1, fixed = (x[: max(1, SEARCH_TOKENS // length)] for x in (x_1, fixed))
        index_B = torch.arange(len(x_1), device=x_1.device)
        t_B = stratified_times(0, SEARCH_STEP, index_B, len(x_1))
        blocks: list[Tensor] = []
        for index in index_B.split(max(1, CHUNK_TOKENS // length)):
            batch = self.corrupt(
                DataBatch(x_1[index], t_B[index], fixed[index], index, seed=0, step=SEARCH_STEP)
            )
            loss = partial(self._loss, batch=batch, per_token=True)
            input_BM = torch.cat([batch.x_t, batch.x_1], dim=1)
            terms_BN = forward(input_BM, t_B[index].float(), loss)
            terms_BK = terms_BN.double().unflatten(1, (-1, block)).sum(2)
            free_BK = (~batch.fixed).unflatten(1, (-1, block)).sum(2)
            blocks.append((terms_BK / free_BK)[free_BK > 0])
        return float(torch.cat(blocks).var())

    def state(self) -> dict[str, float]:
        return {"clip_low": self.low, "clip_high": self.high}

    def restored(self, state: dict[str, float]) -> "BlockObjective":
        low, high = state.get("clip_low", self.low), state.get("clip_high", self.high)
        return replace(self, low=low, high=high)


def clip_ranges(block: int) -> list[tuple[float, float]]:
    """The ranges of the mask probability that the search compares.

    A block of one token has a loss only if it is masked, so there the choice is between the full
    range and always masking.
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


@dataclass(frozen=True)
class BD3LMConfig(MethodConfig):
    """Block diffusion: MDLM within blocks of `block` tokens, autoregressive between them."""

    method_class = BlockDiffusion

    method: str = "bd3lm"  # the training method: flow, mdlm, sedd, bd3lm or ar
    block: int = 16  # tokens per block
    clip_low: float = 0.0  # smallest mask probability in training
    clip_high: float = 1.0  # largest mask probability in training
    clip_search: bool = True  # search for the clip range of lowest variance at each validation

    def __post_init__(self) -> None:
        check_integer("block", self.block, most=MAX_LENGTH)
        check_bool("clip_search", self.clip_search)

    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        if length % self.block:
            raise InputError(
                f"length {length} must be a multiple of block {self.block}; change length or block",
                fields=("length", "block"),
            )
        method = BlockDiffusion(MaskSource(vocab_size), Linear(), self.block)
        objective = BlockObjective(method, self.clip_low, self.clip_high, self.clip_search)
        return Task(method, objective, method.network(size))

    @classmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        if not isinstance(method, BlockDiffusion):
            return None
        return {"method": "bd3lm", "block": method.block}
