"""Repeated runs of the same training are matched with their samples."""

from pathlib import Path
from typing import Any

import pytest

from experiments.results import add
from experiments.results import record as recorded
from experiments.studies.run_scatter import compare, describe, describe_sampler

HOW = {"choice": {"solver": "euler"}, "steps": 4, "n": 2, "at": None}


def recipe(**more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"method": "flow", "block": 16, "source": "mask", "steps": 9}
    plain |= {"loss": "nelbo", "masked_only": True, "path": "mixture", "seed": 0}
    plain |= {"loss_radius": 3, "loss_scale": 0.5, "path_radius": 1, "path_scale": 1.0}
    return {"corpus": "text", "recipe": plain | more}


def record(folder: Path, name: str, job: Any, result: Any, date: str, **more: Any) -> None:
    """Add a cell to the packs in a folder."""
    origin = {"date": date, "revision": f"of {date}", "hardware": {"gpu": None}}
    found = {"job": job, "result": result, "provenance": origin} | more
    add(f"cells/{name.partition('-')[0]}", name, found, folder)


def train(folder: Path, job: Any, loss: float, date: str, name: str = "train-1") -> None:
    metrics = [{"step": k, "loss": 10 * loss - k} for k in (2, 4, 9)]
    record(folder, name, job, {"metrics": [*metrics, {"step": 9, "validation_loss": loss}]}, date)


def sample(
    folder: Path, job: Any, seed: int, perplexity: float, date: str, steps: int = 4, **more: Any
) -> None:
    drawn = HOW | {"model": job, "seed": seed, "steps": steps}
    scores = {
        "perplexity": {"perplexity": {"value": perplexity}},
        "statistics": {"entropy": {"value": 7.0}},
    }
    record(folder, f"sample-{date}", drawn, {}, date, **more)
    record(folder, f"text-{date}", {"samples": drawn}, scores, date)


def test_samples_are_assigned_to_their_run(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    train(old, recipe(), 3.0, "day 1")
    sample(old, recipe(), 0, 100.0, "day 2")  # names no run: belongs to the last one before it
    train(new, recipe(), 3.5, "day 3")
    sample(new, recipe(), 0, 100.0, "day 2")  # kept from the old folder
    sample(new, recipe(), 1, 400.0, "day 4", needs={"train-1": "day 1"})
    sample(new, recipe(), 2, 900.0, "day 5", needs={"train-1": "day 3"})
    (row,) = compare([old, new])
    assert row["dates"] == ["day 1", "day 3"]
    assert row["losses"] == [3.0, 3.5]
    (samples,) = row["samples"]
    assert samples["perplexities"] == pytest.approx([200.0, 900.0])  # sqrt(100 * 400)
    assert samples["entropies"] == pytest.approx([7.0, 7.0])
    assert samples["choice"] == {"solver": "euler"}
    assert "seed" not in samples


def test_bregman_on_masked_tokens_counts_as_nelbo(tmp_path: Path) -> None:
    other = recipe(loss="bregman")
    train(tmp_path, recipe(), 3.0, "day 1")
    train(tmp_path, other, 4.0, "day 2", "train-2")
    sample(tmp_path, recipe(), 0, 10.0, "day 3")  # belongs to the run of the same loss
    sample(tmp_path, other, 0, 20.0, "day 4")
    (row,) = compare([tmp_path])
    assert row["loss"] == "nelbo"
    assert row["losses"] == [3.0, 4.0]
    assert row["samples"][0]["perplexities"] == pytest.approx([10.0, 20.0])


def test_single_runs_are_left_out(tmp_path: Path) -> None:
    train(tmp_path, recipe(), 3.0, "day 1")
    assert compare([tmp_path, tmp_path]) == []
    train(tmp_path, recipe(), 3.0, "day 2", "train-2")
    sample(tmp_path, recipe(), 0, 10.0, "day 3")
    (row,) = compare([tmp_path])
    assert row["samples"] == []  # from one run only


def test_last_validation_loss_is_recorded(tmp_path: Path) -> None:
    metrics = [{"step": k, "loss": 10.0 - k, "validation_loss": abs(k - 5.0)} for k in (1, 2, 4, 8)]
    for day in (1, 3):
        record(tmp_path, f"train-{day}", recipe(steps=8), {"metrics": metrics}, f"day {day}")
    sample(tmp_path, recipe(steps=8), 0, 10.0, "day 1")  # within a second of the training
    sample(tmp_path, recipe(steps=8), 1, 20.0, "day 3")
    sample(tmp_path, recipe(steps=8), 0, 30.0, "day 2", steps=64)
    sample(tmp_path, recipe(steps=8), 1, 40.0, "day 4", steps=64)
    (row,) = compare([tmp_path])
    assert row["losses"] == [3.0, 3.0]  # the last, not the lowest
    few, many = row["samples"]
    assert few["perplexities"] == pytest.approx([10.0, 20.0])
    assert many["perplexities"] == pytest.approx([30.0, 40.0])


def test_descriptions_are_unique() -> None:
    """Recorded rows with equal descriptions could not be told apart on the page."""
    rows = recorded("run_scatter")["rows"]
    names = [(row["corpus"], describe(row)) for row in rows]
    assert len(set(names)) == len(names)
    assert ("text", "mask source, sce, context path") in names
    assert ("molecules", "mask source, sce, context path (r = 3, s = 2)") in names
    assert ("molecules", "uniform source, sce (r = 1, s = 0.5)") in names
    drawn = [
        (*name, describe_sampler(s))
        for name, row in zip(names, rows, strict=True)
        for s in row["samples"]
    ]
    assert len(set(drawn)) == len(drawn)  # solvers of one kind differ in their settings
