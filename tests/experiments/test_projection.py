"""Projections by hand."""

import pytest

from experiments.bench.bounds import Job, Network, project

JOB = Job(parameters=1000, steps=10, batch_tokens=800)


def test_one_gpu_exchanges_nothing() -> None:
    found = project(JOB, 1, tokens_per_second=100.0, micro_batch_tokens=100)
    assert (found.compute, found.exchange, found.waited) == (8.0, 0.0, 0.0)
    assert found.gpu_hours == found.hours == pytest.approx(80 / 3600)
    assert found.bound == "arithmetic"


def test_an_exchange_that_fits_beside_a_backward_pass_costs_nothing() -> None:
    # 2 * 3/4 * 4 * 1000 bytes over 10,000 bytes a second: 0.6 s beside 2/3 of one second.
    network = Network(inside=1e4, between=1.0)
    found = project(JOB, 4, 100.0, 100, network)
    assert found.exchange == pytest.approx(0.6)
    assert (found.compute, found.waited) == (2.0, 0.0)


def test_across_machines_the_slower_link_counts() -> None:
    # 2 * 15/16 * 4000 bytes over 1000 a second: 7.5 s, of which 2/3 of half a second is hidden.
    network = Network(inside=1e9, between=1e3, machine=8)
    found = project(JOB, 16, 100.0, 100, network)
    assert found.exchange == pytest.approx(7.5)
    assert found.waited == pytest.approx(7.5 - 1 / 3)
    assert found.bound == "exchange of gradients"
    assert found.gpu_hours == pytest.approx(16 * 10 * (0.5 + 7.5 - 1 / 3) / 3600)
