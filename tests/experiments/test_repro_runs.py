"""Runs that results tell no more."""

import json
from pathlib import Path

from experiments.benchmarks.repro_runs import gone


def record(folder: Path, name: str, date: str, seconds: float, gpu: str | None = "a GPU") -> None:
    told = {"date": date, "hardware": {"gpu": gpu}}
    (folder / name).mkdir(parents=True)
    (folder / name / "result.json").write_text(json.dumps({"seconds": seconds, "provenance": told}))


def test_runs_that_the_last_folder_does_not_have(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    record(old, "again", "monday", 60.0)
    record(new, "again", "tuesday", 90.0)
    record(old, "left", "monday", 70.0)
    record(old, "on-cpu", "monday", 80.0, None)
    record(old, "kept", "monday", 50.0)
    record(new, "kept", "monday", 50.0)
    record(old, "old-name", "monday", 40.0)
    record(new, "new-name", "monday", 40.0)
    assert gone([old, new]) == {"a GPU": {"again monday": 60.0, "left monday": 70.0}}
