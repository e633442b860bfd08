"""What experiments cost, by the records of their jobs."""

import json
from pathlib import Path

import pytest

from experiments.benchmarks import repro_costs
from experiments.benchmarks.repro_costs import Span, at_once
from experiments.catalog import EXPERIMENTS
from experiments.job import Store
from experiments.measured import FILE
from experiments.sweep import in_order


def test_what_the_package_says_of_costs_is_that_of_the_results() -> None:
    assert FILE.read_text() == repro_costs.measured_file(), "run: python -m benchmarks.report"


def test_costs_are_of_all_jobs_that_an_experiment_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EXPERIMENTS["steps-molecules-mask"].plan("small")  # shares a training with its sweep
    train, sample, scored = in_order(plan.jobs)[:3]
    assert [job.kind for job in (train, sample, scored)] == ["train", "sample", "molecules"]
    spans = {
        train.name: Span(600.0, 1000.0, "a GPU"),
        sample.name: Span(30.0, 1100.0, "a GPU"),
        scored.name: Span(3.0, 1200.0, None),
        "another": Span(100.0, 700.0, "a GPU"),
    }
    monkeypatch.setattr(repro_costs, "spans", lambda: spans)
    assert repro_costs.took(plan) == (
        " They took 9.7 GPU minutes (training 9.2, sampling 0.5) and 0.1 CPU minutes; 9.7 GPU "
        "minutes are of jobs that other experiments need too. Up to 2 jobs had the GPU at a time; "
        "by their own clocks, 10 minutes."
    )
    monkeypatch.setattr(repro_costs, "spans", dict)
    assert repro_costs.took(plan) == ""


def test_jobs_at_a_time_share_the_gpu() -> None:
    spans = {
        "a": Span(10.0, 10.0, "a GPU"),  # from 0 to 10
        "b": Span(6.0, 8.0, "a GPU"),  # from 2 to 8
        "c": Span(4.0, 8.0, "a GPU"),  # from 4 to 8
        "d": Span(9.0, 9.0, None),
        "e": Span(5.0, 25.0, "a GPU"),
    }
    found = repro_costs.shares(spans)
    thirds = 4 / 3
    assert found == pytest.approx({"a": 4 + 1 + thirds, "b": 1 + thirds, "c": thirds, "e": 5.0})


def test_costs_of_an_experiment_s_own_jobs_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    own = in_order(EXPERIMENTS["positions"].plan("small").jobs)
    others = [
        job
        for name, experiment in EXPERIMENTS.items()
        if name != "positions"
        for job in in_order(experiment.plan("small").jobs)
    ]
    alone = next(job for job in own if job not in others)
    shared = next(job for job in own if job in others)
    spans = {
        alone.name: Span(300.0, 1000.0, "a GPU"),
        shared.name: Span(120.0, 2000.0, "a GPU"),
    }
    monkeypatch.setattr(repro_costs, "spans", lambda: spans)
    told = repro_costs.took(EXPERIMENTS["positions"].plan("small"))
    assert "They took 7.0 GPU minutes" in told
    assert told.endswith("; 2.0 GPU minutes are of jobs that other experiments need too.")


def test_jobs_one_after_another_are_not_at_once() -> None:
    first, second, beside = (Span(10.0, end, "a GPU") for end in (100.0, 109.5, 104.0))
    on_cpu = Span(10.0, 100.0, None)
    assert at_once([first], [first, second, on_cpu]) == 1
    assert at_once([first], [first, second, beside]) == 2
    assert at_once([second], [first, second, beside]) == 2


def test_experiments_take_half_an_hour_at_most() -> None:
    had = repro_costs.shares(repro_costs.spans())
    minutes = {
        name: sum(had.get(job.name, 0.0) for job in in_order(experiment.plan("small").jobs)) / 60
        for name, experiment in EXPERIMENTS.items()
    }
    assert {name for name, found in minutes.items() if found > 30} == set()
    assert max(minutes.values()) > 20  # they do cost something


def test_earlier_runs_of_a_job_had_their_share_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two jobs of a minute at once, of which the first was done again an hour later.

    What the first run lasted is not known at first, then it is: half a minute. A third that was at
    it for that half minute is of a job that is no more.
    """
    for name, date, earlier in (
        ("again", "2026-01-01T11:00:00+00:00", ["2026-01-01T10:00:00+00:00"]),
        ("once", "2026-01-01T10:00:00+00:00", []),
    ):
        told = {"date": date, "hardware": {"gpu": "one"}}
        record = {"seconds": 60.0, "provenance": told, "earlier": earlier}
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(record))
    monkeypatch.setattr(repro_costs, "STORE", Store(tmp_path))
    monkeypatch.setattr(repro_costs, "read", lambda name: {"runs": {}})
    had = repro_costs.shares(repro_costs.spans.__wrapped__())
    assert had["once"] == pytest.approx(30.0)
    assert had["again"] == pytest.approx(60.0)
    gone = {f"{name} 2026-01-01T10:00:00+00:00": 30.0 for name in ("again", "left")}
    monkeypatch.setattr(repro_costs, "read", lambda name: {"runs": {"one": gone}})
    had = repro_costs.shares(repro_costs.spans.__wrapped__())
    assert had["once"] == pytest.approx(30.0 + 10.0)
    assert had["again"] == pytest.approx(60.0)
