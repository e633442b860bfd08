"""Cases for parts of a step: sampling the context-weighted path, and categorical sampling."""

from functools import partial

import torch
from torch import Tensor

from cwdfm.model.predict import MAX_ELEMENTS
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.path import path_for
from cwdfm.path.algorithm1 import reveal_naive
from cwdfm.source import UniformSource
from cwdfm.weight import Neighbor
from experiments.bench import bounds
from experiments.bench.measure import Case, Measured, Way, timed
from experiments.bench.settings import Settings
from experiments.bench.subject import SCHEDULE

WEIGHT = Neighbor(radius=3, scale=1.0)


def corrupt(*, context: bool) -> Way:
    """Sample a path for a micro-batch at kappa = 1/2, including random numbers."""

    def measure(settings: Settings) -> Measured:
        shapes, device = settings.shapes, settings.device
        source = UniformSource(shapes.vocab)
        path = path_for(source, SCHEDULE, WEIGHT if context else None)
        x_1 = torch.zeros(shapes.train_batch, shapes.length, dtype=torch.int64, device=device)
        half = float(SCHEDULE.inverse(torch.tensor(0.5, dtype=torch.float64)))
        t = torch.full((shapes.train_batch,), half, device=device)
        # Repeated more often because the call is short.
        call = partial(path.sample, x_1, t)
        timing = timed(call, device, repeats=4 * shapes.repeats, warmup=4)
        work = bounds.corruption(shapes.train_batch, shapes.length)
        return Measured(timing.seconds, work, timing.memory_gb)

    return measure


def naive(settings: Settings) -> Measured:
    """Algorithm 1 as written, recomputing alpha for every reveal. Random numbers are inputs."""
    shapes, device = settings.shapes, settings.device
    batch, length = shapes.train_batch, shapes.length
    start = torch.zeros(batch, length, dtype=torch.bool, device=device)
    count = torch.full((batch,), length // 2, device=device)
    u = uniform_BN(0, Purpose.ORDER, torch.arange(batch, device=device), 0, length)
    work = partial(reveal_naive, WEIGHT, start, count, u)
    timing = timed(work, device, repeats=shapes.step_repeats)
    return Measured(timing.seconds, bounds.corruption(batch, length), timing.memory_gb)


def draw(dtype: torch.dtype) -> Way:
    """Sample a token for every position of a batch, one chunk at a time.

    All chunks use the same logits.
    """

    def measure(settings: Settings) -> Measured:
        shapes, device = settings.shapes, settings.device
        rows = shapes.sample_batch * shapes.length
        chunk = min(rows, max(1, MAX_ELEMENTS[device.type] // shapes.vocab))
        torch.manual_seed(0)
        logits = torch.randn(chunk, shapes.vocab, device=device, dtype=settings.dtype)
        index = torch.arange(shapes.sample_batch, device=device)
        u = uniform_BN(0, Purpose.PROPOSAL, index, 0, shapes.length).flatten()

        def work() -> list[Tensor]:
            parts = u.split(chunk)
            return [sample_categorical(logits[: len(part)], part, dtype=dtype) for part in parts]

        timing = timed(work, device, repeats=shapes.step_repeats)
        bound = bounds.draws(rows, shapes.vocab, settings.dtype.itemsize)
        return Measured(timing.seconds, bound, timing.memory_gb)

    return measure


CASES = (
    Case(
        "context-path",
        "the corruption of a micro-batch of {train_batch} x {length:,} tokens, half of them "
        "revealed",
        {
            "context-weighted path": corrupt(context=True),
            "Algorithm 1 as a naive loop": naive,
            "mixture path": corrupt(context=False),
        },
    ),
    Case(
        "draws",
        "a sampling step's categorical draws, {sample_batch} x {length:,} rows of V = {vocab:,} "
        "logits",
        {"float32": draw(torch.float32), "float64": draw(torch.float64)},
    ),
)
