"""Training: resuming, killing, sharing a batch, and what happens when it goes wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cwdfm
from cwdfm.train.checkpoint import checkpoints, load_latest
from cwdfm.train.loop import Diverged, fit
from cwdfm.train.optimise import Average, learning_rate
from cwdfm.train.recipe import Recipe, build
from cwdfm.train.recipes import RECIPES
from tests.train_script import make_run, recipe

ROOT = Path(__file__).parent.parent
SCRIPT = [sys.executable, "-m", "tests.train_script"]


def final_state(out: Path) -> dict[str, torch.Tensor]:
    found = load_latest(out / "checkpoints")
    assert found is not None
    return found[0]


def assert_identical(a: Path, b: Path) -> None:
    first, second = final_state(a), final_state(b)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    subprocess.run([*SCRIPT, str(out)], cwd=ROOT, check=True, capture_output=True)
    return out


@pytest.mark.parametrize("after", [1, 9, 23])
def test_killed_at_any_moment_it_ends_with_the_same_bits(
    whole: Path, tmp_path: Path, after: int
) -> None:
    """SIGKILL once step `after` has been logged or checkpointed, at a random point behind it."""
    process = subprocess.Popen([*SCRIPT, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        written = tmp_path / "metrics.jsonl"
        lines = written.read_text().splitlines() if written.exists() else []
        if lines and json.loads(lines[-1])["step"] >= after:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    subprocess.run([*SCRIPT, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    assert_identical(whole, tmp_path)
    steps = [json.loads(x)["step"] for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)), "a step was logged twice"


def test_sigterm_saves_and_leaves(whole: Path, tmp_path: Path) -> None:
    command = [*SCRIPT, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first log line: step 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    _, meta = load_latest(tmp_path / "checkpoints") or ({}, {})
    assert 5 <= meta["step"] < 40
    subprocess.run([*SCRIPT, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    assert_identical(whole, tmp_path)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Same losses and weights up to the rounding of the gradients' sum (no dropout)."""
    for processes in (1, 2):
        out = tmp_path / str(processes)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", "-m", "tests.train_script", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*command, "dropout=0"], cwd=ROOT, check=True, capture_output=True, env=environment
        )
    one, two = final_state(tmp_path / "1"), final_state(tmp_path / "2")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-5)
    validation = [
        json.loads((tmp_path / k / "metrics.jsonl").read_text().splitlines()[-1])["validation_loss"]
        for k in ("1", "2")
    ]
    assert validation[0] == pytest.approx(validation[1], rel=1e-5)


def test_accumulation_changes_nothing(tmp_path: Path) -> None:
    plain, accumulated = recipe(dropout=0.0, steps=8), recipe(dropout=0.0, steps=8, accumulation=4)
    runs = [make_run(tmp_path / str(i), r) for i, r in enumerate((plain, accumulated))]
    for run in runs:
        fit(run, report=False)
    for a, b in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_it_learns(whole: Path) -> None:
    lines = [json.loads(x) for x in (whole / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 40
    assert lines[-1]["validation_loss"] < 0.9 * lines[0]["loss"]


def test_every_row_is_seen_once_an_epoch(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe())
    seen = torch.cat([run.rows(step, torch.arange(16)) for step in range(25)])  # 400 = 8 epochs
    for epoch in seen.split(50):
        assert len(torch.unique(epoch, dim=0)) == len(torch.unique(run.train_rows, dim=0))
        assert sorted(map(tuple, epoch.tolist())) == sorted(map(tuple, run.train_rows.tolist()))


def test_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    fit(make_run(tmp_path, recipe(steps=14)), report=False)
    newest = checkpoints(tmp_path / "checkpoints")[-1] / "state.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    run = make_run(tmp_path, recipe(steps=14))
    with pytest.warns(UserWarning, match=r"step-00000014 is damaged .*using the one before"):
        assert run.resume()
    assert run.step == 7


def test_another_recipe_is_refused(tmp_path: Path) -> None:
    fit(make_run(tmp_path, recipe(steps=7)), report=False)
    with pytest.raises(cwdfm.InputError, match="different: learning_rate"):
        make_run(tmp_path, recipe(steps=7, learning_rate=5e-3)).resume()


def test_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(make_run(tmp_path, recipe(steps=7)), report=False)
    before = final_state(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = make_run(tmp_path, recipe(steps=7))
    run.resume()
    run.step = 8
    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(cwdfm.InputError, match=r"No space left.*Free some space"):
        run.save()
    after = final_state(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list((tmp_path / "checkpoints").glob(".part*"))


def test_divergence_stops_with_a_diagnosis(tmp_path: Path) -> None:
    fit(make_run(tmp_path, recipe(steps=7)), report=False)
    run = make_run(tmp_path, replace(recipe(steps=7)))
    run.resume()
    good = final_state(tmp_path)
    run.recipe = recipe(steps=40)  # go on, with weights that are no numbers
    with torch.no_grad():
        next(run.model.parameters()).fill_(torch.nan)
    run.resume = lambda: False  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=r"no longer a number by step 10.*--learning-rate"):
        fit(run, report=False)
    kept = final_state(tmp_path)
    assert all(torch.equal(good[name], kept[name]) for name in good)


def test_learning_rate_by_hand() -> None:
    r = recipe(warmup=10, steps=110, learning_rate=1.0, min_learning_rate=0.1)
    assert learning_rate(r, 0) == pytest.approx(0.1)
    assert learning_rate(r, 9) == pytest.approx(1.0)
    assert learning_rate(r, 60) == pytest.approx(0.55)
    assert learning_rate(r, 110) == pytest.approx(0.1)


def test_average_by_hand() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    average = Average(layer, 0.5)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        average.weights["weight"].fill_(0.0)
        average.update(layer, 0)  # decay 1/10
        assert average.weights["weight"].item() == pytest.approx(1.8)
        average.update(layer, 1000)  # decay 0.5
        assert average.weights["weight"].item() == pytest.approx(1.9)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("source", ["mask", "uniform"])
@pytest.mark.parametrize("loss", ["ce", "nelbo", "bregman", "sce"])
@pytest.mark.parametrize("path", ["mixture", "context"])
def test_every_recipe_builds(name: str, source: str, loss: str, path: str) -> None:
    changed = replace(RECIPES[name](), source=source, loss=loss, path=path)  # type: ignore[arg-type]
    task = build(changed, 33)
    assert task.source.vocab_size == 33
    assert task.model.num_tokens == task.source.num_tokens


def test_paper_recipe_is_the_paper_s_table() -> None:
    """The QM9 column of the paper's hyperparameters, written out."""
    r = RECIPES["qm9-paper"]()
    table = {
        "batch_size": 2048,
        "length": 32,
        "learning_rate": 3e-5,
        "min_learning_rate": 3e-7,
        "warmup": 1000,
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.999,
        "steps": 25_000,
        "power": 2.0,
    }
    assert {name: getattr(r, name) for name in table} == table


def test_bad_recipes() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"batch_size": 0}, "batch_size must be an integer >= 1"),
        ({"accumulation": 3}, "multiple of accumulation"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\)"),
        ({"loss": "mse"}, "one of 'ce', 'nelbo', 'bregman', 'sce'"),
    ]
    for changes, message in cases:
        with pytest.raises(cwdfm.InputError, match=message):
            recipe(**changes)
    assert Recipe().batch_size == 2048
