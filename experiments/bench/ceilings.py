"""The peak speed of this machine, measured with matrix products and copies."""

from dataclasses import dataclass
from functools import partial

import torch

from experiments.bench.clock import timed
from experiments.bench.settings import Settings


@dataclass(frozen=True)
class Ceilings:
    """Peak speeds: the best of a few sizes."""

    flops: float  # per second, in products of square matrices
    bytes: float  # per second, read and written, in a copy
    dtype: str  # of the matrix products


def measure(settings: Settings) -> Ceilings:
    """Time products of n x n matrices (2 n^3 operations) and a copy (each byte moves twice)."""
    best = 0.0
    device, repeats = settings.device, settings.shapes.repeats
    for n in settings.shapes.matrices if device.type == "cuda" else _cpu_sizes(settings):
        left, right = (torch.randn(n, n, device=device, dtype=settings.dtype) for _ in range(2))
        out = torch.empty_like(left)
        multiply = partial(torch.mm, left, right, out=out)
        best = max(best, 2.0 * n**3 / timed(multiply, device, repeats=repeats, warmup=2).seconds)
    size = min(settings.shapes.copied, 2**28) if device.type == "cpu" else settings.shapes.copied
    here = torch.zeros(size, dtype=torch.uint8, device=device)
    there = torch.empty_like(here)
    copy = timed(lambda: there.copy_(here), device, repeats=repeats, warmup=2)
    name = str(settings.dtype).removeprefix("torch.")
    return Ceilings(flops=best, bytes=2.0 * size / copy.seconds, dtype=name)


def _cpu_sizes(settings: Settings) -> tuple[int, ...]:
    """Sizes that finish on a CPU: an eighth of large ones."""
    return tuple(n // 8 if n >= 4096 else n for n in settings.shapes.matrices)
