"""The short form of `python -m experiments chaos`, and that it notices defects."""

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.chaos import run as chaos
from experiments.chaos import scenarios
from experiments.chaos.forge import forgeries
from experiments.chaos.forked import Ended, warm_up
from experiments.chaos.jobs import JOBS, sample
from tests.support.cases import slow


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    warm_up([sample(0)])


def test_one_of_each_scenario_finds_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "ROUND", dict.fromkeys(chaos.ROUND, 1))
    for name in ("CWDFM_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # restored afterwards
    found = chaos.run(7, lambda number: number < len(chaos.ROUND))
    assert found["defects"] == {}
    assert [sum(each.values()) for each in found["counts"].values()] == [1] * len(chaos.ROUND)


@pytest.mark.parametrize(
    "scenario", [scenarios.kill, slow(scenarios.race), slow(scenarios.read_only)]
)
def test_training_survives(tmp_path: Path, scenario: scenarios.Scenario) -> None:
    (tmp_path / "at").mkdir()
    assert scenario(random.Random(3), tmp_path / "at", "train") == ""


def test_tracebacks_hangs_and_signals_are_defects() -> None:
    for code, said, defect in (
        (0, "written", False),
        (2, "cwdfm: no such file", False),
        (None, "", True),
        (-signal.SIGSEGV, "", True),
        (1, "Traceback (most recent call last)", True),
    ):
        assert bool(Ended(code, said).problem) == defect


@pytest.mark.slow
def test_a_lost_file_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --force both commands write the file, and one result is lost."""
    job = replace(JOBS["sample"], words=lambda seed: [*sample(seed), "--force"])
    monkeypatch.setitem(JOBS, "forced", job)
    monkeypatch.setattr(random.Random, "uniform", lambda *_: 300.0)  # one after the other
    monkeypatch.setattr(random.Random, "choice", lambda *_: 1.0)
    (tmp_path / "at").mkdir()
    assert "exit codes" in scenarios.race(random.Random(0), tmp_path / "at", "forced")


def test_another_result_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose result depends on a kill: here, on the process that writes it."""
    job = replace(JOBS["sample"], result=lambda path: path.read_bytes())
    monkeypatch.setitem(JOBS, "dated", job)  # the header has a date and a duration
    (tmp_path / "at").mkdir()
    assert "another result" in scenarios.kill(random.Random(0), tmp_path / "at", "dated")


def test_forgeries_change_one_node_each() -> None:
    document = {"a": [1, 2, 3], "b": {"c": "d"}}
    found = [forged for _, forged in forgeries(document, values=(None,))]
    assert len(found) == 2 * 5  # a, a.0, a.2, b, b.c: deleted or replaced
    assert {"b": {"c": "d"}} in found
    assert {"a": [1, 2], "b": {"c": "d"}} in found
    assert {"a": [1, 2, 3], "b": {"c": None}} in found
    assert document not in found
