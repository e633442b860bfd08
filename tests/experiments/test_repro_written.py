"""What `experiments run` writes, and what it tells where it cannot: of damage, of closed places."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import cwdfm
from experiments.catalog import EXPERIMENTS
from experiments.cli.run import show
from experiments.experiment import Experiment, Plan, write
from experiments.job import Job, Store, WrongFolder
from experiments.sweep import in_order
from experiments.table import Column, Row, Table, Value
from tests.experiments.test_jobs import Count
from tests.support.command import command
from tests.support.squares import squares


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (cwdfm.InputError("a wrong place"), 1),  # of one job: a failure like others
        (WrongFolder("another corpus"), 2),
        (OSError("a full disk"), 2),
        (KeyboardInterrupt("interrupted"), 130),
    ],
)
def test_tables_of_what_is_done_are_written_before_an_error_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    plain = Count.run

    def run(job: Count, *others: Any) -> dict[str, Any]:
        if job.number == 2:
            raise error
        return plain(job, *others)

    monkeypatch.setattr(Count, "run", run)
    for experiment in (squares(1), squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    ended = command("run", "square-1", "square-2", "--out", tmp_path, "--device", "cpu")
    assert ended.returncode == code
    assert str(error) in ended.stderr
    assert "| n | 1 |" in (tmp_path / "smoke" / "square-1.md").read_text()
    assert "| n |  |" in (tmp_path / "smoke" / "square-2.md").read_text()


def test_a_result_without_a_field_of_a_table_costs_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for experiment in (squares(1), squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    arguments = ("repro", "square-1", "square-2", "--out", tmp_path, "--device", "cpu")
    assert command(*arguments).returncode == 0
    path = tmp_path / "jobs" / Count(1).name / "result.json"
    path.write_text(path.read_text().replace('"square"', '"cube"'))
    (tmp_path / "smoke" / "square-2.md").unlink()
    ended = command(*arguments)
    assert ended.returncode == 2
    assert f"square-1 is not written: {path} is damaged (it lacks 'square'); delete" in ended.stdout
    assert ended.stderr.startswith("cwdfm: not written, for what is said above: square-1")
    assert "complete" not in ended.stdout
    assert "| n | 4 |" in (tmp_path / "smoke" / "square-2.md").read_text()


@pytest.mark.parametrize("value", ["9", ["9"], {"mean": 9.0}, 0])
def test_a_result_of_another_shape_is_told_and_costs_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    """As of another version: it is found among the jobs of its experiment, by leaving some out."""
    jobs = tuple(Count(number) for number in range(1, 8))

    def tables(store: Store) -> list[Table]:
        done = [store.result(job) for job in jobs]
        squares = [None if each is None else each["result"]["square"] for each in done]
        rows = [Row(("n",), (Value(square, 0.5),)) for square in squares]
        inverse = sum(1 / square for square in squares if isinstance(square, int))
        rows.append(Row(("inverses",), (Value(inverse),)))
        return [Table("Squares", ("number",), (Column("square"),), tuple(rows))]

    several = Experiment("squares", "squares", lambda _: Plan(jobs, tables))
    for experiment in (several, squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    arguments = ("repro", "squares", "square-2", "--out", tmp_path, "--device", "cpu")
    assert command(*arguments).returncode == 0
    path = tmp_path / "jobs" / Count(5).name / "result.json"
    path.write_text(path.read_text().replace('"square": 25', f'"square": {json.dumps(value)}'))
    (tmp_path / "smoke" / "square-2.md").unlink()
    ended = command(*arguments)
    assert ended.returncode == 2
    assert f"squares is not written: {path} is damaged, or of another version (" in ended.stdout
    assert "| n | 4 |" in (tmp_path / "smoke" / "square-2.md").read_text()
    shutil.rmtree(path.parent)
    assert command(*arguments).returncode == 0


def test_tables_and_figures_are_made_of_the_jobs_of_their_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged result of another's could not be found, and would cost tables that lack nothing."""
    read: set[Job] = set()
    monkeypatch.setattr(Store, "result", lambda _, job: read.add(job))
    for experiment in EXPERIMENTS.values():
        plan = experiment.plan("smoke")
        read.clear()
        plan.tables(Store(tmp_path))
        plan.figures(Store(tmp_path))
        assert read <= set(in_order(plan.jobs)), experiment.name


def test_an_error_of_a_table_s_own_is_no_result_s_fault(tmp_path: Path) -> None:
    def tables(_: Store) -> list[Table]:
        raise TypeError("a mistake")

    with pytest.raises(TypeError, match="a mistake"):
        list(write(Plan((Count(1),), tables), Store(tmp_path), tmp_path, "t"))


def test_files_are_told_as_they_are_written_and_which_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "square-1", squares(1))
    in_the_way = tmp_path / "smoke" / "square-1.tex"
    in_the_way.mkdir(parents=True)
    ended = command("run", "square-1", "--out", tmp_path, "--device", "cpu")
    assert ended.returncode == 2
    written = [tmp_path / "smoke" / f"square-1.{kind}" for kind in ("md", "csv")]
    told = [f"written: {path}" for path in written]
    what = f"square-1 is not written: {in_the_way} could not be written: Is a directory"
    remedy = "Put that right and start again with the same command"
    assert ended.stdout.splitlines()[-3:] == [*told, f"{what}. {remedy}"]


def test_all_files_are_written_though_nobody_reads_what_is_said(tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    plans = {f"square-{number}": squares(number).plan("smoke") for number in (1, 2)}
    with contextlib.redirect_stdout(Closed()):
        assert show(plans, Store(tmp_path / "jobs"), tmp_path / "smoke") == []
    written = {path.name for path in (tmp_path / "smoke").iterdir()}
    assert written == {f"{name}.{kind}" for name in plans for kind in ("md", "csv", "tex")}


def test_a_folder_that_may_not_be_written_is_refused_but_may_be_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first job, though it is within the folder; the superuser may write anywhere."""
    monkeypatch.setitem(EXPERIMENTS, "square-1", squares(1))
    (tmp_path / "jobs").mkdir()
    closed = {tmp_path / "jobs"}
    plain = os.access
    monkeypatch.setattr(os, "access", lambda path, *how: path not in closed and plain(path, *how))
    arguments = ("repro", "square-1", "--out", tmp_path, "--device", "cpu")
    ended = command(*arguments)
    refused = f"{tmp_path / 'jobs'} cannot be written: there is no permission"
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"cwdfm: {refused}")
    assert not ended.stdout
    ended = command(*arguments, "--dry-run")
    assert ended.returncode == 0
    assert "would be done, on cpu: 1 count\n" in ended.stdout
    assert f"but it would be refused here: {refused}" in ended.stdout
