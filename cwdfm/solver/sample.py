"""The sampling loop: a solver along a time grid, in batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from cwdfm.device import find_device
from cwdfm.errors import InputError, check_instance, check_integer, check_tokens, describe
from cwdfm.model.predict import check_flow_network, check_split, evaluating, model_device
from cwdfm.model.protocol import Model
from cwdfm.ops.random import check_seed, sample_index
from cwdfm.schedule import Schedule, Spacing, time_grid
from cwdfm.solver.base import Info, Reveals, Solver, State, given
from cwdfm.solver.precomputed import Plan, visit
from cwdfm.source import Source

Callback = Callable[[State, Info], object]
Tick = Callable[[int], object]


@dataclass(frozen=True)
class Samples:
    """Finished sequences, and what it took.

    - `tokens` [B, N] int64: data tokens only.
    - `updates` [B, N] int32: how often each token changed on the way.
    - `loops` [B, N] int32: how often a change brought the data token before it back.
    - `evaluations` [B] int64: how often the sequence needed the model.
    - `rows`: coordinates at which logits were needed, over all steps.
    - `plausibility` [B] float64, where it was asked for: see `Accept`.
    """

    tokens: Tensor
    updates: Tensor
    loops: Tensor
    evaluations: Tensor
    rows: int
    plausibility: Tensor | None = None

    @classmethod
    def joined(cls, parts: "Sequence[Samples]") -> "Samples":
        """Those of all batches."""
        told = [part.plausibility for part in parts if part.plausibility is not None]
        return cls(
            tokens=torch.cat([part.tokens for part in parts]),
            updates=torch.cat([part.updates for part in parts]),
            loops=torch.cat([part.loops for part in parts]),
            evaluations=torch.cat([part.evaluations for part in parts]),
            rows=sum(part.rows for part in parts),
            plausibility=torch.cat(told) if told and len(told) == len(parts) else None,
        )


@dataclass(frozen=True)
class Start:
    """Where to begin, if not with noise at time 0."""

    tokens: Tensor  # [B, N] int64: x_t, masks included
    t: float

    def __post_init__(self) -> None:
        if not isinstance(self.t, int | float) or not 0 <= self.t < 1:
            raise InputError(f"sequences to go on from need a time t in [0, 1), got {self.t!r}")


@torch.no_grad()
def sample(
    model: Model,
    source: Source,
    schedule: Schedule,
    solver: Solver,
    *,
    shape: tuple[int, int],
    steps: int,
    seed: int = 0,
    grid: Spacing | Tensor = "t",
    prompt: Tensor | None = None,
    fixed: Tensor | None = None,
    index: Tensor | None = None,
    start: Start | None = None,
    batch_size: int | None = None,
    callback: Callback | None = None,
    progress: Tick | None = None,
    device: torch.device | str | None = None,
) -> Samples:
    """Draw `shape` = (B, N) tokens in `steps` steps.

    - `grid`: "t", "kappa", or a tensor of steps + 1 times (see `time_grid`).
    - `prompt`, `fixed`: tokens to keep, [B, N] or [N] (see `Solver.init`).
    - `index` [B]: the samples' global numbers, default 0..B-1. Sample i of a seed is the same
      sample, whatever else is in the batch and however `batch_size` cuts it.
    - `start`: sequences at a later time, to go on from there; the grid then begins at that time.
      What has nothing left to sample comes back as it is; without a start, if that is all of it,
      something must be wrong with `fixed`, and it is refused.
    - `callback(state, info)` is called after each step of each batch.
    - `progress(k)` hears that k sequences have taken a step. Unlike a callback it does not keep
      sequences in step with each other (see `visit.py`).
    - `device`: where to sample; default the model's own if it is a module, else the CPU.
    """
    check_flow_network(model)
    check_instance("source", source, Source, "MaskSource(vocab_size=30)")
    check_instance("schedule", schedule, Schedule, "Polynomial(2.0)")
    check_instance("solver", solver, Solver, "Euler()")
    batch, length = _check_shape(shape)
    first = start.t if isinstance(start, Start) else 0.0
    times = time_grid(schedule, steps, grid, first=first).tolist()
    check_seed(seed)
    device = find_device(device or model_device(model) or "cpu")
    index_B = sample_index(index, batch, device)
    if prompt is not None or fixed is not None:
        # Checked and spread here once, so that every batch gets its own rows.
        prompt, fixed = given(source, (batch, length), prompt, fixed, device)
        if start is None and bool(fixed.all()):
            raise InputError("all positions are fixed: nothing is left to sample; unfix some")
    begin_BN = None if start is None else _check_start(start, source, (batch, length), device)
    places = batches(batch, batch_size, device)
    parts: list[Samples] = []
    with evaluating(model):
        for rows in places:
            state = solver.init(
                source,
                index_B[rows],
                length,
                seed=seed,
                prompt=None if prompt is None else prompt[rows],
                fixed=None if fixed is None else fixed[rows],
            )
            if begin_BN is not None:
                state = _begun(source, schedule, state, begin_BN[rows], first)
            if not parts:
                check_split(model, state.tokens, times[0])
            reveals = None if callback else solver.reveals(source, schedule, state, times)
            if reveals is None:
                walk = (model, source, schedule, solver, state, times, callback, progress)
                parts.append(_walk(*walk))
            else:
                parts.append(_visit(model, source, state, times, reveals, progress))
    return Samples.joined(parts)


def batches(count: int, batch_size: int | None, device: torch.device) -> tuple[Tensor, ...]:
    """The places 0..count-1 of sequences, `batch_size` at once; None is all of them."""
    size = count if batch_size is None else batch_size
    check_integer("batch_size", size)
    places: tuple[Tensor, ...] = torch.arange(count, device=device).split(size)
    return places


def _walk(
    model: Model,
    source: Source,
    schedule: Schedule,
    solver: Solver,
    state: State,
    times: list[float],
    callback: Callback | None,
    progress: Tick | None,
) -> Samples:
    """One batch from the grid's first time to its last."""
    evaluations_B = torch.zeros_like(state.index)
    rows = 0
    for t, t_next in pairwise(times):
        state, info = solver.step(model, source, schedule, state, t, t_next)
        evaluations_B += info.asked
        rows += info.rows
        if callback is not None:
            callback(state, info)
        if progress is not None:
            progress(len(state.index))
    return Samples(state.tokens, state.updates, state.loops, evaluations_B, rows)


def _visit(
    model: Model,
    source: Source,
    state: State,
    times: list[float],
    reveals: Reveals,
    progress: Tick | None,
) -> Samples:
    """One batch, each sequence from reveal to reveal."""
    total, told = len(state.index) * (len(times) - 1), 0

    def say(share: float) -> None:
        nonlocal told
        due = round(share * total)
        if progress is not None:
            progress(due - told)
        told = due

    plan = Plan.of(reveals.step, times)
    tokens_BN = visit(model, source, reveals.drawing, state, plan, say)
    say(1.0)  # also where there was nothing to do
    moved_BN = reveals.step >= 0
    return Samples(
        tokens=tokens_BN,
        updates=moved_BN.int(),
        loops=torch.zeros_like(state.loops),
        evaluations=plan.evaluations,
        rows=sum(len(each.rows) for each in plan.rounds),
    )


def _begun(source: Source, schedule: Schedule, state: State, tokens_BN: Tensor, t: float) -> State:
    """The state that begins with x_t; where x_t tells what is revealed, that stays."""
    tokens_BN = torch.where(state.fixed, state.tokens, tokens_BN)
    fixed_BN = ~source.movable(tokens_BN, state.fixed)
    free = int((~fixed_BN).sum(1).max())
    left = float(schedule.survival(t))
    return replace(state, tokens=tokens_BN, fixed=fixed_BN, free=free, left=left)


def _check_start(
    start: Start, source: Source, shape: tuple[int, int], device: torch.device
) -> Tensor:
    check_instance("start", start, Start, "Start(tokens, t=0.9)")
    check_tokens("start.tokens", start.tokens, source.num_tokens)
    if start.tokens.shape != shape:
        raise InputError(
            f"start.tokens must have the samples' shape, {shape}, got {describe(start.tokens)}"
        )
    return start.tokens.to(device)


def _check_shape(shape: tuple[int, int]) -> tuple[int, int]:
    pair = isinstance(shape, tuple | list) and len(shape) == 2
    if not pair or not all(isinstance(n, int) and n >= 1 for n in shape):
        raise InputError(
            f"shape must be (number of samples, length), two integers >= 1, got {shape!r}"
        )
    return shape[0], shape[1]
