"""Time grids and stratified times."""

import numpy as np
import torch

import cwdfm
from tests.support.stats import assert_follows


def test_grids() -> None:
    schedule = cwdfm.Polynomial(2.0)
    torch.testing.assert_close(
        cwdfm.time_grid(schedule, 4), torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)
    )
    for s in (schedule, cwdfm.Cosine(), cwdfm.Linear()):
        grid = cwdfm.time_grid(s, 10, "kappa")
        assert grid[0] == 0
        assert grid[-1] == 1
        torch.testing.assert_close(s.kappa(grid).diff(), torch.full((10,), 0.1).double())
        for first in torch.linspace(0, 0.9, 10).tolist():
            ends = cwdfm.time_grid(s, 3, "kappa", first=first)[[0, -1]]
            assert ends.tolist() == [first, 1.0]  # exactly, because solvers compare with 1
    custom = torch.tensor([0.0, 0.1, 1.0])
    torch.testing.assert_close(cwdfm.time_grid(schedule, 2, custom), custom.double())


def test_stratified_times_cover_the_global_batch_once() -> None:
    total = 64
    whole = cwdfm.stratified_times(3, 17, torch.arange(total), total)
    assert sorted((whole * total).long().tolist()) == list(range(total))
    # four ranks with two accumulation steps each draw the same times
    parts = [cwdfm.stratified_times(3, 17, i, total) for i in torch.arange(total).split(8)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(cwdfm.stratified_times(3, 18, torch.arange(total), total), whole)


def test_stratified_times_are_uniform() -> None:
    times = [cwdfm.stratified_times(0, step, torch.arange(70), 70) for step in range(2_000)]
    inside = (torch.stack(times) * 70) % 1
    counts = np.bincount((inside.flatten().numpy() * 20).astype(int), minlength=20)
    assert_follows(counts, np.full(20, 1 / 20))
