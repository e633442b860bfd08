"""Schedules: derivative, inverse, hazard and its integral; time grids and stratified times."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import integrate

import cwdfm
from cwdfm.schedule import Spacing
from tests.support.stats import assert_follows

SCHEDULES = [cwdfm.Polynomial(2.0), cwdfm.Polynomial(1.5), cwdfm.Linear(), cwdfm.Cosine()]
T = torch.linspace(0, 1, 101, dtype=torch.float64)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_runs_from_zero_to_one(schedule: cwdfm.Schedule) -> None:
    """With the derivative that autograd finds, and an inverse."""
    kappa = schedule.kappa(T)
    assert float(kappa[0]) == 0
    assert float(kappa[-1]) == pytest.approx(1, abs=1e-15)
    assert float(schedule.survival(1.0)) == 0
    assert bool((kappa.diff() > 0).all())
    torch.testing.assert_close(kappa + schedule.survival(T), torch.ones_like(T))
    torch.testing.assert_close(schedule.inverse(kappa), T)
    t = T[1:].clone().requires_grad_()
    (derivative,) = torch.autograd.grad(schedule.kappa(t).sum(), t)
    torch.testing.assert_close(schedule.kappa_dot(t.detach()), derivative)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_integrated_hazard_by_quadrature(schedule: cwdfm.Schedule) -> None:
    for t0, t1 in [(0.0, 0.3), (0.25, 0.9), (0.6, 0.999)]:
        area, _ = integrate.quad(lambda t: float(schedule.hazard(t)), t0, t1)
        assert float(schedule.integrated_hazard(t0, t1)) == pytest.approx(area, rel=1e-7)
    assert float(schedule.integrated_hazard(0.5, 1.0)) == float("inf")
    assert float(schedule.hazard(1.0)) == float("inf")


def test_formulas() -> None:
    assert float(cwdfm.Polynomial(2.0).kappa(0.3)) == pytest.approx(0.09)
    assert float(cwdfm.Polynomial(2.0).hazard(0.5)) == pytest.approx(1 / 0.75)
    assert float(cwdfm.Linear().hazard(0.75)) == pytest.approx(4.0)
    assert float(cwdfm.Cosine().kappa(2 / 3)) == pytest.approx(0.5)


def test_survival_is_accurate_near_one() -> None:
    t = 1 - 1e-12
    # t^2 is 1 - 2 (1 - t) to the last bit, which hides the cancellation of other powers.
    for schedule, slope in [
        (cwdfm.Polynomial(2.0), 2.0),
        (cwdfm.Polynomial(1.3), 1.3),
        (cwdfm.Cosine(), torch.pi / 2),
    ]:
        # relative accuracy is limited by that of 1 - t
        assert float(schedule.survival(t)) == pytest.approx(slope * (1 - t), rel=1e-9, abs=0)


def test_kappa_is_accurate_near_zero() -> None:
    series = (torch.pi * 1e-9) ** 2 / 8
    assert float(cwdfm.Cosine().kappa(1e-9)) == pytest.approx(series, rel=1e-12, abs=0)


def test_power_1_is_linear() -> None:
    least = cwdfm.Polynomial(1.0)
    torch.testing.assert_close(least.kappa(T), T)
    torch.testing.assert_close(least.hazard(T[:-1]), cwdfm.Linear().hazard(T[:-1]))


def test_keeps_dtype_and_shape() -> None:
    t = torch.rand(3, 4)
    for schedule in SCHEDULES:
        assert schedule.hazard(t).dtype == torch.float32
        assert schedule.integrated_hazard(t * 0, t).shape == (3, 4)


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
        late = cwdfm.time_grid(s, 10, "sqrt")
        remaining = 1 - torch.arange(11).double() / 10
        torch.testing.assert_close(1 - s.kappa(late), remaining**2)
        # From a later start, the same shape on the rest of the way.
        rest = 1 - s.kappa(cwdfm.time_grid(s, 10, "sqrt", first=0.5))
        torch.testing.assert_close(rest, rest[0] * remaining**2)
        for first, spacing in product(torch.linspace(0, 0.9, 10).tolist(), get_args(Spacing)):
            ends = cwdfm.time_grid(s, 3, spacing, first=first)[[0, -1]]
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
