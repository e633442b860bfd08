"""Times: the grids that sampling walks along, and the stratified times that training draws."""

from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_integer, describe
from cwdfm.ops.random import Purpose, sample_index, uniform
from cwdfm.schedule import Schedule

Spacing = Literal["t", "kappa"]


def time_grid(
    schedule: Schedule, steps: int, spacing: Spacing | Tensor = "t", *, first: float = 0.0
) -> Tensor:
    """The grid first = t_0 < ... < t_steps = 1, float64 [steps + 1].

    `spacing` "t" is uniform in time (the paper), "kappa" uniform in kappa, so that every step
    reveals the same expected share; or a tensor with the times themselves.
    """
    check_integer("steps", steps)
    if not 0 <= first < 1:
        raise InputError(f"a grid begins at a time in [0, 1), got {first}")
    if isinstance(spacing, Tensor):
        return _check_grid(spacing, steps, first)
    if not isinstance(spacing, str):
        raise InputError(f"grid must be 't', 'kappa' or a tensor of times, got {spacing!r}")
    check_choice("grid", spacing, ("t", "kappa"))
    if spacing == "t":
        return torch.linspace(first, 1, steps + 1, dtype=torch.float64)
    begin = float(schedule.kappa(torch.tensor(first, dtype=torch.float64)))
    grid = schedule.inverse(torch.linspace(begin, 1, steps + 1, dtype=torch.float64))
    grid[0], grid[-1] = first, 1.0  # not left to the rounding of the inverse
    return grid


def _check_grid(grid: Tensor, steps: int, first: float) -> Tensor:
    if grid.shape != (steps + 1,) or not grid.is_floating_point():
        raise InputError(
            f"a custom grid for {steps} steps must be a floating tensor of shape ({steps + 1},), "
            f"got {describe(grid)}"
        )
    grid = grid.double().cpu()
    if grid[0] != first or grid[-1] != 1 or not bool((grid.diff() > 0).all()):
        raise InputError(
            f"a custom grid must increase strictly from {first:g} to 1, got {grid.tolist()}; to "
            f"begin with sequences of your own at a later time, give start=Start(tokens, t)"
        )
    return grid


def stratified_times(seed: int, step: int, index_B: Tensor, total: int) -> Tensor:
    """Stratified uniform times [B] for training step `step`: t_i = (i + u_i) / total.

    `index_B` are positions 0..total-1 in the *global* batch, so the strata cover the whole of it
    however it is cut into processes and accumulation steps.
    """
    check_integer("total", total)
    index_B = sample_index(index_B, len(index_B), index_B.device)
    if bool((index_B >= total).any()):
        raise InputError(
            f"index must hold positions 0..{total - 1} in the global batch of total={total}, "
            f"got {describe(index_B)}"
        )
    u_B = uniform(seed, Purpose.TIME, index_B, step, torch.zeros_like(index_B))
    return (index_B + u_B) / total
