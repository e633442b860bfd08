"""The sampling loop: advance batches of sequences with a solver along a time grid."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from cwdfm.device import find_device
from cwdfm.errors import (
    InputError,
    check_callable,
    check_instance,
    check_integer,
    check_tokens,
    describe,
    require,
)
from cwdfm.model.predict import check_flow_network, check_split, evaluating, model_device
from cwdfm.model.protocol import Model
from cwdfm.ops.host_copy import check_rows
from cwdfm.ops.random import check_seed, sample_index
from cwdfm.schedule import Schedule, Spacing, time_grid
from cwdfm.solver.base import Info, Reveals, Solver, State, broadcast_prompt
from cwdfm.solver.precomputed import Plan, run_plan
from cwdfm.solver.recorder import Recorder
from cwdfm.solver.recording import Recording, check_record
from cwdfm.source import Source, check_source

Callback = Callable[[State, Info], object]
Progress = Callable[[int], object]


@dataclass(frozen=True)
class Samples:
    """Finished sequences with statistics of the sampling process."""

    tokens: Tensor  # [B, N] int64: data tokens only
    updates: Tensor  # [B, N] int32: number of times each token changed
    loops: Tensor  # [B, N] int32: number of changes that restored the previous data token
    evaluations: Tensor  # [B] int64: number of model evaluations of each sequence
    logit_evaluations: int  # number of positions at which logits were computed, over all steps
    plausibility: Tensor | None = None  # [B] float64, if computed; see the function `plausibility`
    fixed: Tensor | None = None  # [B, N] bool: the prompt tokens, if any
    recording: Recording | None = None  # every step of the first sequences, if recorded
    # Converts ids to text, if the model has a tokenizer.
    decode: Callable[[list[int]], str] | None = field(default=None, repr=False, compare=False)

    @property
    def texts(self) -> list[str]:
        """The decoded samples of a model with a tokenizer."""
        if self.decode is None:
            raise InputError(
                "these samples have token ids only, because their model has no tokenizer; decode "
                "`tokens` yourself, or use cwdfm.generate with a model returned by cwdfm.load"
            )
        return [self.decode(row) for row in self.tokens.tolist()]

    @classmethod
    def cat(cls, parts: "Sequence[Samples]") -> "Samples":
        """Concatenate the samples of several batches."""
        tokens, updates, loops, evaluations = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("tokens", "updates", "loops", "evaluations")
        )
        scores = [part.plausibility for part in parts if part.plausibility is not None]
        masks = [
            torch.zeros_like(part.tokens, dtype=torch.bool) if part.fixed is None else part.fixed
            for part in parts
        ]
        return cls(
            tokens,
            updates,
            loops,
            evaluations,
            sum(part.logit_evaluations for part in parts),
            torch.cat(scores) if scores and len(scores) == len(parts) else None,
            torch.cat(masks) if any(part.fixed is not None for part in parts) else None,
            parts[0].recording,
            parts[0].decode,
        )

    def replaced(
        self, index_A: Tensor, new: "Samples", where_A: Tensor | slice = slice(None)
    ) -> "Samples":
        """Replace the samples at index_A [A] by `new` ones, or only those that where_A [A] selects.

        The evaluations of all new samples are added to those of the old ones.
        """
        index_A = index_A.to(self.tokens.device)
        names = ("tokens", "updates", "loops", "plausibility", "fixed")
        pairs = {name: (getattr(self, name), getattr(new, name)) for name in names}
        merged = {
            name: old.index_copy(0, index_A[where_A], fresh[where_A])
            for name, (old, fresh) in pairs.items()
            if old is not None
        }
        recording = self.recording
        if recording is not None and new.recording is not None:
            rows = index_A[: len(new.recording.start)].tolist()
            recording = recording.replaced(rows, new.recording)
        return replace(
            self,
            **merged,
            evaluations=self.evaluations.index_add(0, index_A, new.evaluations),
            logit_evaluations=self.logit_evaluations + new.logit_evaluations,
            recording=recording,
        )


@dataclass(frozen=True)
class Start:
    """Initial sequences at a time t, used instead of noise at t = 0."""

    tokens: Tensor  # [B, N] int64: x_t, including mask ids
    t: float

    def __post_init__(self) -> None:
        if not isinstance(self.t, int | float) or not 0 <= self.t < 1:
            raise InputError(f"the start time t must be in [0, 1), got {self.t!r}")


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
    record: int = 0,
    callback: Callback | None = None,
    progress: Progress | None = None,
    device: torch.device | str | None = None,
) -> Samples:
    """Sample `shape` = (B, N) tokens in `steps` steps.

    Args:
        model: Maps tokens [B, N] and times [B] to logits [B, N, V] of p_{1|t}.
        source: The source distribution p_0.
        schedule: The schedule kappa.
        solver: The single-step method.
        shape: The number of samples B and the sequence length N.
        steps: The number of steps.
        seed: The random seed. It determines sample i regardless of the other samples and of
            `batch_size`.
        grid: "t", "kappa", "sqrt", or a tensor of steps + 1 times (see `time_grid`).
        prompt: Prompt tokens, [B, N] or [N] (see `Solver.init`).
        fixed: Mask of the prompt tokens to keep, [B, N] or [N].
        index: Global sample numbers [B]. The default is 0..B-1.
        start: Sequences at a later time to start from. The grid then begins at that time, and
            sequences without free coordinates are returned unchanged. Without `start`, at least one
            coordinate must be free.
        batch_size: The number of sequences per batch. The default is all of them.
        record: Record every step of the first `record` sequences of the first batch (see
            `Recording`). True records as many as allowed. This costs one more model evaluation of
            these sequences per step.
        callback: Called as `callback(state, info)` after each step of each batch.
        progress: Called as `progress(k)` when k sequences have taken a step. Unlike a callback, it
            allows the reveals to be precomputed (see `precomputed.py`).
        device: The device to sample on. The default is the model's device, or else the CPU.
    """
    check_flow_network(model)
    check_source(source)
    check_instance("solver", solver, Solver, "Euler()")
    check_callable("callback", callback)
    check_callable("progress", progress)
    shape = _check_shape(shape)
    first = start.t if isinstance(start, Start) else 0.0
    times = time_grid(schedule, steps, grid, first=first).tolist()
    check_seed(seed)
    record = check_record(record, shape, len(times) - 1)
    device = find_device((model_device(model) or "cpu") if device is None else device)
    index_B = sample_index(index, shape[0], device)
    if prompt is not None or fixed is not None:
        prompt, fixed = broadcast_prompt(source, shape, prompt, fixed, device)
        if start is None and bool(fixed.all()):
            raise InputError("all positions are fixed, so there is nothing to sample; free some")
    x_BN = None if start is None else _check_start(start, source, shape, device)

    def initial_states() -> Iterator[State]:
        for batch in batches(shape[0], batch_size, device):
            prompt_BN = None if prompt is None else prompt[batch]
            fixed_BN = None if fixed is None else fixed[batch]
            state = solver.init(
                source, index_B[batch], shape[1], seed=seed, prompt=prompt_BN, fixed=fixed_BN
            )
            yield state if x_BN is None else _start(source, schedule, state, x_BN[batch], first)

    parts: list[Samples] = []
    with evaluating(model):
        for state in initial_states():
            if not parts:
                check_split(model, state.tokens, times[0])
            recorder = Recorder(model, source, state, record) if record and not parts else None
            callbacks = [function for function in (recorder, callback) if function is not None]
            reveals = (
                None if callbacks else solver.precompute_reveals(source, schedule, state, times)
            )
            if reveals is not None:
                part = _sample_reveals(model, source, state, times, reveals, progress)
            else:
                current, evaluations_B, logit_evaluations = state, torch.zeros_like(state.index), 0
                for t, t_next in pairwise(times):
                    result = solver.step(model, source, schedule, current, t, t_next)
                    current, info = _check_step_result(solver, result, state)
                    evaluations_B += info.evaluated
                    logit_evaluations += info.logit_evaluations
                    for function in callbacks:
                        function(current, info)
                    if progress is not None:
                        progress(len(current.index))
                counts = (current.updates, current.loops, evaluations_B, logit_evaluations)
                recording = None if recorder is None else recorder.finish()
                part = Samples(current.tokens, *counts, recording=recording)
            invalid_B = _invalid_sequences(source, state, part.tokens)
            check_rows(invalid_B, partial(_invalid_error, solver))
            parts.append(part)
    return replace(Samples.cat(parts), fixed=fixed)


def _check_step_result(solver: Solver, result: object, initial: State) -> tuple[State, Info]:
    """Raise an error unless a step returned a state of the batch and its diagnostics."""
    match result:
        case (State() as state, Info() as info):
            x = state.tokens
            if isinstance(x, Tensor) and (x.shape, x.dtype) == (initial.tokens.shape, torch.int64):
                return state, info
            actual = f"tokens that are {describe(x)}"
        case _:
            actual = describe(result)
    raise InputError(
        f"step of {solver} must return (State, Info) with int64 tokens of shape "
        f"{tuple(initial.tokens.shape)}, got {actual}; use advance() to create the next state"
    )


def _invalid_sequences(source: Source, initial: State, tokens_BN: Tensor) -> Tensor:
    """Whether each finished sequence [B] has non-data tokens or changed fixed tokens."""
    outside_BN = (tokens_BN < 0) | (tokens_BN >= source.vocab_size)
    return (outside_BN | (initial.fixed & (tokens_BN != initial.tokens))).any(1)


def _invalid_error(solver: Solver, bad: int, rows: int) -> InputError:
    return InputError(
        f"{solver} returned {bad} of {rows} sequences with masks or ids that are not data tokens, "
        f"or with changed prompt tokens; its step must leave `state.fixed` coordinates as they "
        f"are, and a step to t_next = 1 must reveal all others"
    )


def batches(count: int, batch_size: int | None, device: torch.device) -> tuple[Tensor, ...]:
    """Split the indices 0..count-1 into batches of `batch_size`; None for a single batch."""
    size = count if batch_size is None else batch_size
    check_integer("batch_size", size)
    indices: tuple[Tensor, ...] = torch.arange(count, device=device).split(size)
    return indices


class ScaledProgress:
    """Converts a sampler's own units of progress to the requested number of steps."""

    def __init__(self, progress: Progress | None, batch: int, steps: int, total: int) -> None:
        self.progress, self.batch, self.steps, self.total = progress, batch, steps, total
        self.reported = 0

    def update(self, done: int) -> None:
        """Report that `done` of the sampler's `total` units are finished."""
        due = self.steps * done // self.total
        if self.progress is not None and due > self.reported:
            self.progress((due - self.reported) * self.batch)
        self.reported = due


def _sample_reveals(
    model: Model,
    source: Source,
    state: State,
    times: list[float],
    reveals: Reveals,
    progress: Progress | None,
) -> Samples:
    """Sample one batch with precomputed reveals."""
    plan = Plan.of(reveals.step, times)
    rounds = max(1, len(plan.rounds))  # so that progress completes even if the plan is empty
    scaled = ScaledProgress(progress, len(state.index), len(times) - 1, rounds)
    tokens_BN = run_plan(model, source, reveals.draw, state, plan, scaled.update)
    scaled.update(rounds)
    updates_BN, loops_BN = (reveals.step >= 0).int(), torch.zeros_like(state.loops)
    logit_evaluations = sum(len(round_.rows) for round_ in plan.rounds)
    return Samples(tokens_BN, updates_BN, loops_BN, plan.evaluations, logit_evaluations)


def _start(source: Source, schedule: Schedule, state: State, x_BN: Tensor, t: float) -> State:
    """Replace the initial noise by x_t. With a mask source the revealed tokens become fixed."""
    tokens_BN = torch.where(state.fixed, state.tokens, x_BN)
    fixed_BN = ~source.movable(tokens_BN, state.fixed)
    return replace(
        state,
        tokens=tokens_BN,
        fixed=fixed_BN,
        max_free=int((~fixed_BN).sum(1).max()),
        start_survival=float(schedule.survival(t)),
    )


def _check_start(
    start: Start, source: Source, shape: tuple[int, int], device: torch.device
) -> Tensor:
    check_instance("start", start, Start, "Start(tokens, t=0.9)")
    check_tokens("start.tokens", start.tokens, source.num_tokens)
    if start.tokens.shape != shape:
        raise InputError(
            f"start.tokens must have the shape of the samples, {shape}, got "
            f"{describe(start.tokens)}"
        )
    return start.tokens.to(device)


def _check_shape(shape: tuple[int, int]) -> tuple[int, int]:
    pair = isinstance(shape, tuple | list) and len(shape) == 2
    rule = "be (number of samples, length), two integers >= 1"
    require(pair and all(isinstance(n, int) and n >= 1 for n in shape), "shape", rule, shape)
    return shape[0], shape[1]
