"""Sampling block by block: any solver inside a block, behind a cache of the blocks before it.

Shapes: B batch, A sequences that have not stopped, N length, L tokens a block, C of context.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from cwdfm.baselines.bd3lm.checks import check_given, check_length
from cwdfm.baselines.bd3lm.network import OneBlock
from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.method.base import DrawRequest
from cwdfm.model.attention import KVCache
from cwdfm.model.predict import evaluating, model_device
from cwdfm.model.transformer import DiT
from cwdfm.model.wrappers import BannedTokens
from cwdfm.ops.random import check_seed, sample_index
from cwdfm.schedule import Schedule, Spacing, time_grid
from cwdfm.solver import Euler, Samples, Solver
from cwdfm.solver.base import given
from cwdfm.solver.sample import batches
from cwdfm.source import MaskSource
from cwdfm.weight.base import terms

ANCESTRAL = Euler(hazard="integrated")


@dataclass(frozen=True)
class BlockSolver:
    """How blocks are made.

    - `inner`: the solver inside a block. The default is BD3LM's ancestral sampler.
    - `stop`: an end token. A sequence that has drawn it ends there: behind it, all is filled with
      it, and once its block is finished the sequence costs nothing more.

    A context weight with a radius sees as many of the clean tokens before the block, which are
    revealed. Behind the block there is nothing yet, so that windows must be cut there and not go
    round: boundary="cut".
    """

    inner: Solver = ANCESTRAL
    stop: int | None = None

    def __post_init__(self) -> None:
        check_instance("inner", self.inner, Solver, 'Euler(hazard="integrated")')
        if self.stop is not None:
            check_integer("stop", self.stop, 0)

    @torch.no_grad()
    def sample(
        self, model: DiT, source: MaskSource, schedule: Schedule, block: int, asked: DrawRequest
    ) -> Samples:
        """Sequences. `asked.steps` are in all, split evenly over blocks, at least one for each.

        Draws are counted as everywhere (seed, sample, step, place), and the steps of a block have
        numbers that no other block's have: a sample does not hang on the batch it is drawn in. Of
        the samples' `evaluations`, each is of one block, and reading it into the cache is one.
        """
        batch, length = asked.shape
        check_integer("the number of samples", batch)
        check_integer("the length", length)
        check_length(length, block)
        check_seed(asked.seed)
        if self.stop is not None and self.stop >= source.vocab_size:
            raise InputError(f"stop must be a data token < {source.vocab_size}, got {self.stop}")
        grids = block_grids(schedule, asked.steps, length // block, asked.grid)
        context = 0 if block == length else reach(self.inner)
        device = model_device(model) or torch.device("cpu")
        places = batches(batch, asked.batch_size, device)
        index_B = sample_index(asked.index, batch, device)
        prompt_BN, fixed_BN = given(source, asked.shape, asked.prompt, asked.fixed, device)
        check_given(fixed_BN, block)
        if bool(fixed_BN.all()):
            raise InputError("all positions are fixed: nothing is left to sample; unfix some")
        tokens_BN = torch.where(fixed_BN, prompt_BN, source.mask_id)
        parts: list[Samples] = []
        with evaluating(model), model.uncompiled():
            for rows in places:
                walk = _Walk(
                    solver=self,
                    network=OneBlock(model, KVCache(length)),
                    source=source,
                    schedule=schedule,
                    block=block,
                    context=context,
                    grids=grids,
                    asked=asked,
                    tokens=tokens_BN[rows],
                    fixed=fixed_BN[rows],
                    index=index_B[rows],
                )
                parts.append(walk.run())
        return Samples.joined(parts)


@dataclass
class _Walk:
    """One batch from its first block to its last."""

    solver: BlockSolver
    network: OneBlock
    source: MaskSource
    schedule: Schedule
    block: int
    context: int
    grids: list[list[float]]
    asked: DrawRequest
    tokens: Tensor  # [B, N]
    fixed: Tensor  # [B, N]
    index: Tensor  # [B]

    def __post_init__(self) -> None:
        self.updates = torch.zeros_like(self.tokens, dtype=torch.int32)
        self.loops = torch.zeros_like(self.tokens, dtype=torch.int32)
        self.evaluations_B = torch.zeros_like(self.index)
        self.alive_A = torch.arange(len(self.index), device=self.index.device)
        self.rows, self.steps, self.told = 0, 0, 0

    def run(self) -> Samples:
        """Make all blocks."""
        for k, times in enumerate(self.grids):
            end = self.steps + len(times) - 1
            if len(self.alive_A):
                self._make(k, times)
                self._stop(k)
            if len(self.alive_A) and k + 1 < len(self.grids):
                self.network.remember(self.tokens[self.alive_A, self._place(k)])
                self.evaluations_B[self.alive_A] += 1
            self._tick(end)
        return Samples(self.tokens, self.updates, self.loops, self.evaluations_B, self.rows)

    def _place(self, k: int) -> slice:
        return slice(k * self.block, (k + 1) * self.block)

    def _make(self, k: int, times: list[float]) -> None:
        """Walk block k along its grid, for the sequences that are left."""
        alive_A, place = self.alive_A, self._place(k)
        self.network.context = context = min(self.context, place.start)
        window = slice(place.start - context, place.stop)
        fixed_AM = self.fixed[alive_A, window]
        fixed_AM[:, :context] = True
        if bool(fixed_AM.all()):
            return
        state = self.solver.inner.init(
            self.source,
            self.index[alive_A],
            window.stop - window.start,
            seed=self.asked.seed,
            prompt=self.tokens[alive_A, window],
            fixed=fixed_AM,
        )
        # The first block's grid is the longest, so that no two blocks share a step's number.
        state = replace(state, step=k * (len(self.grids[0]) - 1))
        without = self.asked.without
        network = BannedTokens(self.network, without) if without else self.network
        for t, t_next in pairwise(times):
            state, info = self.solver.inner.step(
                network, self.source, self.schedule, state, t, t_next
            )
            self.evaluations_B[alive_A] += info.asked
            self.rows += info.rows
            self._tick(self.steps + 1)
        self.tokens[alive_A, place] = state.tokens[:, context:]
        self.updates[alive_A, place] = state.updates[:, context:]
        self.loops[alive_A, place] = state.loops[:, context:]

    def _stop(self, k: int) -> None:
        """End the sequences that have drawn the end token, and forget what they remember."""
        stop = self.solver.stop
        if stop is None:
            return
        place = self._place(k)
        tokens_AL, free_AL = self.tokens[self.alive_A, place], ~self.fixed[self.alive_A, place]
        ended_AL = (tokens_AL == stop) & free_AL
        behind_AL = (ended_AL.cumsum(1) > 0) & free_AL
        self.tokens[self.alive_A, place] = tokens_AL.masked_fill(behind_AL, stop)
        over_A = ended_AL.any(1)
        if bool(over_A.any()):
            self.tokens[self.alive_A[over_A], place.stop :] = stop
            self.alive_A = self.alive_A[~over_A]
            self.network.cache = self.network.cache.select(~over_A)

    def _tick(self, steps: int) -> None:
        """Tell of steps done, out of as many as were asked for."""
        self.steps = steps
        due = steps * self.asked.steps // sum(len(times) - 1 for times in self.grids)
        if self.asked.tick is not None and due > self.told:
            self.asked.tick((due - self.told) * len(self.index))
        self.told = due


def block_grids(
    schedule: Schedule, steps: int, blocks: int, grid: Spacing | Tensor
) -> list[list[float]]:
    """The times that each block walks along; what does not divide goes to the first blocks."""
    check_integer("steps", steps)
    if isinstance(grid, Tensor) and steps % blocks:
        raise InputError(
            f"a custom grid is walked by each of the {blocks} blocks, so that steps must be a "
            f"multiple of {blocks}, got {steps}"
        )
    share, more = divmod(steps, blocks)
    counts = [max(1, share + (k < more)) for k in range(blocks)]
    return [time_grid(schedule, count, grid).tolist() for count in counts]


def reach(solver: Solver) -> int:
    """How many tokens before a block the solver's weight looks at."""
    radius = 0
    for weight in terms(getattr(solver, "weight", None)):
        if getattr(weight, "grid", None) is not None:
            raise InputError(
                f"{weight} looks around on a 2-D grid, and a block is a piece of a line; use a "
                f"weight without a grid"
            )
        if getattr(weight, "boundary", "cut") != "cut":
            raise InputError(
                f"{weight} goes round the ends of what it weighs, here of a block, whose first and "
                f"last token are no neighbours; use boundary='cut', which sees the finished tokens "
                f"before the block and nothing behind it"
            )
        radius = max(radius, getattr(weight, "radius", 0))
    return radius
