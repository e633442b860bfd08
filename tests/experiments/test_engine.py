"""The engine: what runs, what is left, and what happens when a worker dies."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
import experiments.tasks.train as train_module
from experiments.engine import (
    DEPENDENCY_FAILED,
    DEPENDENCY_UNAVAILABLE,
    Outcome,
    run_tasks,
    unfinished,
    worker_device,
)
from experiments.parsl_config import make_config, retry_cost
from experiments.recipe import Recipe
from experiments.scale import size
from experiments.store import FAILURE, RESULT, Store
from experiments.tasks.base import Resources, Task
from experiments.tasks.train import Train
from tests.support.cases import slow
from tests.support.toy_tasks import (
    Broken,
    Evaluated,
    Killed,
    KilledTrain,
    Read,
    Slow,
    Square,
    Sum,
    Write,
    runs,
)

HERE = Resources("cpu")
ROOT = Path(__file__).parents[2]


def run(store: Store, *tasks: Task, resources: Resources = HERE, **options: Any) -> Outcome:
    return run_tasks(store, tasks, resources, log=lambda _: None, **options)


def test_finished_tasks_do_not_run_again(tmp_path: Path) -> None:
    store, lines = Store(tmp_path), list[str]()
    tasks = [Sum(Square(2), Square(3)), Sum(Square(3), Square(4))]
    for _ in range(2):
        assert run_tasks(store, tasks, HERE, log=lines.append).complete
    assert [line.split()[0] for line in lines] == [f"[{n}/5]" for n in range(1, 6)]
    assert runs(store) == [2, 3, 4]


def test_a_failure_stops_only_what_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tasks = Store(tmp_path), [Sum(Broken(1), Square(2)), Sum(Square(2), Square(3))]
    outcome = run(store, *tasks)
    assert outcome.finished == 3
    assert outcome.failed == {Broken(1): "RuntimeError: out of luck", tasks[0]: DEPENDENCY_FAILED}
    note = store.folder(Broken(1)) / FAILURE
    assert "with details" in note.read_text()
    monkeypatch.setattr(Broken, "run", Square.run)
    assert run(store, *tasks).complete
    assert not note.exists()


def test_an_interrupted_task_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Square, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(Store(tmp_path), Square(1))
    assert run(Store(tmp_path), Square(1)).complete


def test_a_full_disk_stops_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def full(task: Square, *_: Any) -> dict[str, Any]:
        tried.append(task)
        raise cwdfm.InputError("not saved") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Square, "run", full)
    with pytest.raises(OSError, match="No space left"):
        run(Store(tmp_path), Square(1), Square(2))
    assert tried == [Square(1)]


def test_tasks_that_cannot_run_here_are_skipped(tmp_path: Path) -> None:
    store, task = Store(tmp_path), Evaluated(Square(1))
    above = Sum(task, Square(2))
    outcome = run(store, above)
    assert outcome.unavailable == {task: "requires an evaluator", above: DEPENDENCY_UNAVAILABLE}
    assert outcome.finished == 2
    assert run(store, task, resources=replace(HERE, eval_model="gpt2")).complete


def test_deleted_outputs_are_made_again_only_if_needed(tmp_path: Path) -> None:
    store, done = Store(tmp_path), [Read(Write(1)), Read(Write(2))]
    run(store, *done)
    for task in done:
        (store.folder(task.of) / "made.txt").unlink()
    assert unfinished(store, done) == []
    more = [*done, Read(Write(2), times=5)]
    assert unfinished(store, more) == [Write(2), more[-1]]
    assert run(store, *more).complete
    assert runs(store) == [1, 2, 2]


def test_a_damaged_output_is_named(tmp_path: Path) -> None:
    store, task = Store(tmp_path), Read(Write(7))
    run(store, task.of)
    path = store.folder(task.of) / "made.txt"
    path.write_text("")
    message = run(store, task).failed[task]
    assert "is empty" in message
    assert message.endswith(f"delete {path} to create it again")
    path.unlink()
    assert run(store, task).complete


def test_no_task_starts_after_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, plain = Store(tmp_path), [0.0], Square.run

    def slow(task: Square, *others: Any) -> dict[str, Any]:
        clock[0] += 10.0
        return plain(task, *others)

    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(Square, "run", slow)
    task = Sum(Square(1), Sum(Square(2), Square(3)))
    assert run(store, task, time_limit=0).not_started == unfinished(store, [task])
    outcome = run(store, task, time_limit=15)
    assert (outcome.finished, outcome.failed) == (2, {})
    assert outcome.not_started == [Square(3), task.right, task]
    assert not outcome.complete


def test_networks_share_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    resets = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
    monkeypatch.setattr(train_module, "_last_compiled", [])
    recipe = Recipe.named("qm9-debug")
    changes: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"seed": 3, "loss": "sce", "path": "context"}, 1),
        ({"batch_size": 4}, 2),
        ({"batch_size": 4, "method": "ar"}, 3),
        ({}, 4),
    ]
    for change, expected in changes:
        train_module._reset_compiler(replace(recipe, **change))
        assert len(resets) == expected


def result(store: Store, task: Task) -> Any:
    found = store.result(task)
    assert found is not None
    for line in found.get("metrics", []):
        line.pop("tokens_per_second", None)
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Train, Outcome]:
    """Two workers; a quick task and a training each kill the worker that runs them first.

    A third task fails.
    """
    pytest.importorskip("parsl")
    store = Store(tmp_path_factory.mktemp("killed") / "jobs")
    recipe = replace(size("text", "smoke").recipe, checkpoint_every=2)
    train = KilledTrain(recipe, "text")
    tasks = [*(Sum(Square(n), Killed(10)) for n in range(4)), Sum(Broken(1), Square(2))]
    resources = replace(HERE, text="python-topics")
    run(store, Square(0), Square(1))
    return store, train, run(store, train, *tasks, resources=resources, workers=2)


def test_a_task_whose_worker_was_killed_is_retried(killed: tuple[Store, Train, Outcome]) -> None:
    store, _, outcome = killed
    sums = [result(store, Sum(Square(n), Killed(10))) for n in range(4)]
    assert sums == [{"sum": n**2 + 100} for n in range(4)]
    assert runs(store) == [*range(4), 10]  # finished tasks ran once
    above = Sum(Broken(1), Square(2))
    assert outcome.failed == {Broken(1): "RuntimeError: out of luck", above: DEPENDENCY_FAILED}
    assert (outcome.unavailable, outcome.not_started) == ({}, [])


def test_a_killed_training_resumes_with_identical_results(
    killed: tuple[Store, Train, Outcome],
) -> None:
    store, train, _ = killed
    steps = (store.folder(train) / "steps.txt").read_text().split()
    assert steps == ["1", "2", "3", "3", "4"]  # from the checkpoint after step 2
    plain = Train(train.recipe, "text")
    assert run(store, plain, resources=replace(HERE, text="python-topics")).complete
    assert result(store, train) == result(store, plain)
    folders = [store.folder(task) / "model" for task in (train, plain)]
    weights = [next(folder.glob("*.safetensors")).read_bytes() for folder in folders]
    assert weights[0] == weights[1]


def test_results_of_the_first_cells_come_first(tmp_path: Path) -> None:
    """A sum needs its squares only, and runs before the squares of later cells."""
    pytest.importorskip("parsl")
    cells, lines = [Sum(Square(n), Square(n + 10)) for n in range(6)], list[str]()
    run_tasks(Store(tmp_path / "jobs"), cells, HERE, workers=1, log=lines.append)
    kinds = [line.split()[2].partition("-")[0] for line in lines]
    assert sorted(kinds) == 12 * ["square"] + 6 * ["sum"]
    # The worker may begin another cell before the engine learns that a square has finished.
    assert kinds.index("sum") <= 4
    assert kinds[:12].count("sum") >= 3


SWEEP = """
import sys
from pathlib import Path
from experiments.cli.run import exit_on_signals
from experiments.engine import run_tasks
from experiments.store import Store
from experiments.tasks.base import Resources
from tests.support.toy_tasks import Slow
with exit_on_signals():
    run_tasks(Store(Path(sys.argv[1])), [Slow(1)], Resources("cpu"), workers=1)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 900.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.1)


def holds_a_number(path: Path) -> bool:
    return path.exists() and path.read_text() != ""


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "(zombie)" in status.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGTERM)])
def test_workers_end_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("parsl")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    store = Store(tmp_path / "jobs")
    words = [sys.executable, "-c", SWEEP, str(store.root)]
    process = subprocess.Popen(words, env=environment, cwd=ROOT)
    folder = store.folder(Slow(1))
    wait_for(partial(holds_a_number, folder / "pid"))
    process.send_signal(number)
    process.wait(900)
    wait_for(partial(is_gone, int((folder / "pid").read_text())))
    assert not (folder / RESULT).exists()


def test_what_is_retried() -> None:
    pytest.importorskip("parsl")
    from parsl.executors.high_throughput.errors import WorkerLost

    assert retry_cost(WorkerLost(1, "host"), None) == 1
    assert retry_cost(torch.OutOfMemoryError("CUDA out of memory"), None) == 1
    assert retry_cost(ValueError("x"), None) > 1000


def test_configuration_files(tmp_path: Path) -> None:
    pytest.importorskip("parsl")
    config = make_config(1, ROOT / "experiments" / "configs" / "slurm.py", tmp_path)
    assert config.executors[0].label == "slurm"
    assert config.retries > 0
    assert config.retry_handler is retry_cost
    assert config.run_dir == str(tmp_path)
    for content, fact in (("x = 1", "NoneType"), ("config = 3", "int"), ("1 / 0", "ZeroDivision")):
        (tmp_path / "own.py").write_text(content)
        with pytest.raises(cwdfm.InputError, match=fact):
            make_config(1, tmp_path / "own.py", tmp_path)
    with pytest.raises(cwdfm.InputError, match="no such file"):
        make_config(1, tmp_path / "none.py", tmp_path)


def test_workers_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("PARSL_WORKER_RANK", raising=False)
    assert worker_device("auto") == "auto"
    for rank, device in (("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")):
        monkeypatch.setenv("PARSL_WORKER_RANK", rank)
        assert worker_device("auto") == device
        assert worker_device("cuda:1") == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert worker_device("auto") == "auto"
