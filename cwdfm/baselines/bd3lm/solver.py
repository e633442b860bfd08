"""Sampling block by block: any solver inside a block, with a cache of the blocks before it.

Shapes: B batch, A active sequences, N length, L tokens per block, C context tokens before it,
M = C + L.
"""

from dataclasses import dataclass, is_dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from cwdfm.baselines.left_to_right import CachedModel, Chunk
from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.method.base import SampleRequest
from cwdfm.model.attention import KVCache
from cwdfm.model.predict import evaluating
from cwdfm.model.transformer import DiT
from cwdfm.model.wrappers import BannedTokens
from cwdfm.schedule import Schedule, Spacing, time_grid
from cwdfm.solver import Euler, Samples, Solver
from cwdfm.solver.sample import ScaledProgress
from cwdfm.source import MaskSource
from cwdfm.weight import Weight
from cwdfm.weight.base import terms

ANCESTRAL = Euler(hazard="integrated")


@dataclass(frozen=True)
class BlockSolver:
    """Generates blocks from left to right.

    - `inner`: the solver inside a block. The default is BD3LM's ancestral sampler.
    - `stop`: an end token. A sequence that has drawn it ends there: the rest is filled with the end
      token, and later blocks are not evaluated.

    A context weight of radius r also uses the r clean tokens before the block, which count as
    revealed. Nothing after the block has been generated, so windows are cut at its end.
    """

    inner: Solver = ANCESTRAL
    stop: int | None = None

    def __post_init__(self) -> None:
        check_instance("inner", self.inner, Solver, 'Euler(hazard="integrated")')
        if self.stop is not None:
            check_integer("stop", self.stop, 0)

    @torch.no_grad()
    def sample(
        self, model: DiT, source: MaskSource, schedule: Schedule, block: int, request: SampleRequest
    ) -> Samples:
        """Sample sequences. `request.steps` is the total, split evenly, at least one per block.

        Random draws are functions of (seed, sample, step, position), and no two blocks share a step
        number, so a sample does not depend on its batch. The `evaluations` of the result count
        passes over one block, including the pass that adds it to the cache.
        """
        every = Chunk.of(model, source, request)
        length = request.shape[1]
        check_length(length, block)
        if self.stop is not None and self.stop >= source.vocab_size:
            raise InputError(f"stop must be a data token < {source.vocab_size}, got {self.stop}")
        grids = block_grids(schedule, request.steps, length // block, request.grid)
        whole = block == length
        solver = self if whole else replace(self, inner=cut_windows(self.inner))
        context = 0 if whole else weight_radius(solver.inner)
        check_fixed(every.fixed, block)
        with evaluating(model), model.uncompiled():
            parts = []
            for chunk in every.split(request.batch_size):
                network = CachedModel(model, KVCache(length))
                flow = (source, schedule, block, context, grids)
                parts.append(_BlockSampler(solver, network, *flow, request, chunk).run())
        return Samples.cat(parts)


@dataclass
class _BlockSampler:
    """Samples one batch from its first block to its last."""

    solver: BlockSolver
    network: CachedModel
    source: MaskSource
    schedule: Schedule
    block: int
    context: int
    grids: list[list[float]]
    request: SampleRequest
    chunk: Chunk

    def __post_init__(self) -> None:
        self.tokens, self.fixed, self.index = self.chunk.tokens, self.chunk.fixed, self.chunk.index
        self.updates = torch.zeros_like(self.tokens, dtype=torch.int32)
        self.loops = torch.zeros_like(self.tokens, dtype=torch.int32)
        self.evaluations_B = torch.zeros_like(self.index)
        self.active_A = torch.arange(len(self.index), device=self.index.device)
        self.rows, self.steps = 0, 0
        total = sum(len(times) - 1 for times in self.grids)
        request, batch = self.request, len(self.index)
        self.progress = ScaledProgress(request.progress, batch, request.steps, total)

    def run(self) -> Samples:
        """Sample all blocks."""
        for k, times in enumerate(self.grids):
            end = self.steps + len(times) - 1
            if len(self.active_A):
                self._sample_block(k, times)
                self._stop(k)
            if len(self.active_A) and k + 1 < len(self.grids):
                self.network.append(self.tokens[self.active_A, self._span(k)])
                self.evaluations_B[self.active_A] += 1
            self.steps = end
            self.progress.update(end)
        return Samples(self.tokens, self.updates, self.loops, self.evaluations_B, self.rows)

    def _span(self, k: int) -> slice:
        return slice(k * self.block, (k + 1) * self.block)

    def _sample_block(self, k: int, times: list[float]) -> None:
        """Step block k along its time grid, for the active sequences."""
        active_A, span = self.active_A, self._span(k)
        self.network.context = context = min(self.context, span.start)
        window = slice(span.start - context, span.stop)
        fixed_AM = self.fixed[active_A, window]
        fixed_AM[:, :context] = True
        if bool(fixed_AM.all()):
            return
        solver, prompt_AM = self.solver.inner, self.tokens[active_A, window]
        noise = (self.source, self.index[active_A], fixed_AM.shape[1])
        state = solver.init(*noise, seed=self.request.seed, prompt=prompt_AM, fixed=fixed_AM)
        # The first block has the longest grid, so no two blocks share a step number.
        state = replace(state, step=k * (len(self.grids[0]) - 1))
        banned = self.request.banned_tokens
        network = BannedTokens(self.network, banned) if banned else self.network
        for t, t_next in pairwise(times):
            state, info = solver.step(network, self.source, self.schedule, state, t, t_next)
            self.evaluations_B[active_A] += info.evaluated
            self.rows += info.logit_evaluations
            self.steps += 1
            self.progress.update(self.steps)
        self.tokens[active_A, span] = state.tokens[:, context:]
        self.updates[active_A, span] = state.updates[:, context:]
        self.loops[active_A, span] = state.loops[:, context:]

    def _stop(self, k: int) -> None:
        """End the sequences that have drawn the end token, and drop them from the cache."""
        stop = self.solver.stop
        if stop is None:
            return
        span = self._span(k)
        tokens_AL, free_AL = self.tokens[self.active_A, span], ~self.fixed[self.active_A, span]
        end_AL = (tokens_AL == stop) & free_AL
        after_AL = (end_AL.cumsum(1) > 0) & free_AL
        self.tokens[self.active_A, span] = tokens_AL.masked_fill(after_AL, stop)
        ended_A = end_AL.any(1)
        if bool(ended_A.any()):
            self.tokens[self.active_A[ended_A], span.stop :] = stop
            self.active_A = self.active_A[~ended_A]
            self.network.cache = self.network.cache.select(~ended_A)


def block_grids(
    schedule: Schedule, steps: int, blocks: int, grid: Spacing | Tensor
) -> list[list[float]]:
    """The time grid of each block; a remainder of `steps` goes to the first blocks."""
    check_integer("steps", steps)
    if isinstance(grid, Tensor) and steps % blocks:
        raise InputError(
            f"each of the {blocks} blocks uses the whole custom grid, so steps must be a multiple "
            f"of {blocks}, got {steps}"
        )
    share, remainder = divmod(steps, blocks)
    counts = [max(1, share + (k < remainder)) for k in range(blocks)]
    return [time_grid(schedule, count, grid).tolist() for count in counts]


def cut_windows(solver: Solver) -> Solver:
    """The solver with windows of boundary "auto" cut off at the ends of a block."""
    if isinstance(inner := getattr(solver, "solver", None), Solver) and is_dataclass(solver):
        return replace(solver, solver=cut_windows(inner))
    for name in ("score", "error"):
        if isinstance(value := getattr(solver, name, None), Weight):
            raise InputError(
                f"{type(solver).__name__} with {name}={value} does not support blocks; use a "
                f"solver with a weight= of its own, or a score"
            )
    weight = getattr(solver, "weight", None)
    if weight is None or not is_dataclass(solver):
        return solver
    return replace(solver, weight=weight.with_prompt())


def weight_radius(solver: Solver) -> int:
    """How many tokens before a block the solver's weight depends on."""
    if isinstance(inner := getattr(solver, "solver", None), Solver):
        return weight_radius(inner)
    radius = 0
    for weight in terms(getattr(solver, "weight", None)):
        if getattr(weight, "grid", None) is not None:
            raise InputError(
                f"{weight} has neighbors on a 2-D grid, and a block is one-dimensional; use a "
                f"weight without a grid"
            )
        if getattr(weight, "boundary", "cut") != "cut":
            raise InputError(
                f"{weight} wraps around the ends of a block, whose first and last tokens are not "
                f"neighbors; use boundary='cut', which sees the finished tokens before the block "
                f"and none after it",
                fields=("boundary",),
            )
        radius = max(radius, getattr(weight, "radius", 0))
    return radius


def check_length(length: int, block: int) -> None:
    """Check that a sequence divides into blocks."""
    if length % block:
        raise InputError(
            f"a sequence of {length} tokens does not divide into blocks of {block}: cut or pad it "
            f"to a multiple, such as {(length // block + 1) * block}, or train with a block that "
            f"divides {length}"
        )


def check_fixed(fixed_BN: Tensor, block: int) -> None:
    """Check that no fixed token comes after a block with a free one.

    Blocks are generated from left to right, and a block does not see later ones. So a sequence may
    begin with complete fixed blocks, followed by one block that is fixed in part, with holes
    anywhere in it. The rest must be free.
    """
    fixed_BKL = fixed_BN.unflatten(1, (-1, block))
    some_fixed_BK, some_free_BK = fixed_BKL.any(2), ~fixed_BKL.all(2)
    free_before_BK = (some_free_BK.int().cumsum(1) - some_free_BK.int()) > 0
    wrong_BK = some_fixed_BK & free_before_BK
    if bool(wrong_BK.any()):
        b, k = wrong_BK.nonzero()[0].tolist()
        first = int(some_free_BK[b].int().argmax())
        raise InputError(
            f"sequence {b} has fixed tokens in block {k} (positions {k * block}.."
            f"{(k + 1) * block - 1}) and free ones in the earlier block {first}, which cannot "
            f"condition on later blocks; fix complete blocks at the start and then part of one "
            f"block, or use a flow to fill holes"
        )
