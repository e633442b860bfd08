"""Recorded results: packs, tables and pages."""

import csv
import json
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from cwdfm.errors import InputError
from experiments import report, results
from experiments.catalog import EXPERIMENTS
from experiments.studies.molecule_tables import best
from experiments.studies.tables import TABLES, describe, describe_sampler
from experiments.table import Column, Row, Table, Value
from experiments.tasks.base import in_order
from tests.support.cases import slow

# Recorded revisions that are not commits, and those that are meant.
ALIASES = {"71b471869d12": "71b471833dc3", "c803a5c331cf": "623c62c134c2"}
# Pages whose tables take long to make.
LONG = {"curves", "speed"}
NUMBER = r"\d[\d,]*\.?\d*"


def test_packs_keep_records(tmp_path: Path) -> None:
    records = {"a": {"x": 0.1, "y": [1, None]}, "b": "text"}
    path = results.write("some/pack", records, tmp_path)
    first = path.read_bytes()
    assert results.read("some/pack", tmp_path) == records
    results.add("some/pack", "c", 3, tmp_path)
    assert results.read("some/pack", tmp_path) == records | {"c": 3}
    results.write("some/pack", records, tmp_path)
    assert path.read_bytes() == first
    assert results.read("missing", tmp_path) == {}


def test_finished_cells_of_a_run_are_collected(tmp_path: Path) -> None:
    results.write("cells/train", {"train-1": {"result": "old"}, "train-9": {}}, tmp_path)
    for name in ("train-1", "sample-2"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "result.json").write_text(json.dumps({"result": name}))
    (tmp_path / "run" / "train-3").mkdir()  # unfinished
    assert sorted(results.collect(tmp_path / "run", tmp_path)) == ["sample-2", "train-1"]
    packed = results.read("cells/train", tmp_path)
    assert packed == {"train-1": {"result": "train-1"}, "train-9": {}}
    assert results.read("cells/sample", tmp_path) == {"sample-2": {"result": "sample-2"}}


def test_recorded_cells_can_be_restored(tmp_path: Path) -> None:
    results.write("cells/train", {"train-1": {"result": 1}}, tmp_path)
    results.write("cells/inputs", {"text-512": "abc"}, tmp_path)
    run = tmp_path / "run"
    assert results.restore(run, tmp_path) == 2
    assert json.loads((run / "jobs" / "text-512.json").read_text()) == "abc"
    (run / "jobs" / "train-1" / "result.json").write_text(json.dumps({"result": 2}))
    results.restore(run, tmp_path)  # does not overwrite
    assert results.collect(run, tmp_path) == ["train-1"]
    assert results.read("cells/train", tmp_path) == {"train-1": {"result": 2}}
    with pytest.raises(SystemExit, match="2"):
        results.restore_command([])


def test_collect_rejects_other_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape("notes.txt")):
        results.collect_command([str(tmp_path / "notes.txt")])
    with pytest.raises(SystemExit, match="2"):
        results.collect_command([])


def test_recorded_cells_belong_to_experiments() -> None:
    plans = [experiment.plan("small") for experiment in EXPERIMENTS.values()]
    planned = {job.name for job in in_order(job for plan in plans for job in plan.tasks)}
    packs = [p.name.partition(".")[0] for p in (results.RESULTS / "cells").glob("*.jsonl.xz")]
    recorded = {
        name for pack in packs if pack != "inputs" for name in results.read(f"cells/{pack}")
    }
    assert len(recorded) == 3043
    assert recorded <= planned


def test_recorded_revisions_are_commits() -> None:
    try:
        made = subprocess.run(
            ["git", "log", "--format=%H"],
            cwd=results.ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no history")
    known = {commit[:digits] for commit in made for digits in (7, 12)}
    if not set(ALIASES.values()) <= known:
        pytest.skip("a different or partial history")
    for path in results.RESULTS.rglob("*.jsonl.xz"):
        pack = str(path.relative_to(results.RESULTS)).removesuffix(".jsonl.xz")
        text = json.dumps(results.read(pack))
        for found in set(re.findall(r'"revision": "(\w+)', text)):
            assert found in known | ALIASES.keys(), f"{pack} names {found}"


def test_results_fit_in_few_files() -> None:
    assert sum(path.is_file() for path in results.RESULTS.rglob("*")) <= 60


def test_every_experiment_and_study_is_on_one_page() -> None:
    shown = Counter(name for path in report.pages() for name in report.names_in(path.read_text()))
    assert set(shown.values()) == {1}
    assert shown.keys() == {*EXPERIMENTS, *TABLES, "bench", "projection"}


@pytest.mark.parametrize(
    "path",
    [slow(path) if path.stem in LONG else path for path in report.pages()],
    ids=lambda path: path.stem,
)
def test_tables_have_the_recorded_numbers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "tables", cache(report.tables))  # read twice
    text = path.read_text()
    for name, shown in zip(report.names_in(text), report.BLOCK.finditer(text), strict=True):
        made = "".join(table.markdown() for table in report.tables(name))
        assert re.findall(NUMBER, shown[0]) == re.findall(NUMBER, shown[1] + made), (
            f"{name}: run `python -m experiments report`"
        )
    rows = list(csv.DictReader((results.RESULTS / f"{path.stem}.csv").read_text().splitlines()))
    assert rows == list(csv.DictReader(report.to_csv(report.names_in(text)).splitlines()))
    assert all(row[field] for row in rows for field in report.ORIGIN)


def test_missing_values_are_left_out_and_named() -> None:
    a, b, c = columns = tuple(Column(name) for name in "abc")
    one, two, none = Value(1.0), Value(2.0), Value(None)
    rows = (
        Row(("x",), (one, none, two), (two, one)),
        Row(("y",), (none, none, one)),
        Row(("z", "16"), (none, none, none)),
    )
    found = report.recorded_part(Table("title", ("row",), columns, rows, paper=(a, b)))
    assert found.columns == (a, c)
    assert found.paper == (a,)
    values = [(row.ours, row.paper) for row in found.rows]
    assert values == [((one, two), (two,)), ((none, one), ())]
    assert found.notes == ("Not measured yet: b; z 16.",)
    assert report.recorded_part(found) is found


def test_rejected_samples_count_as_evaluations() -> None:
    setting = {"temperature": 1, "solver": "euler", "steps": 64, "resample_rounds": 0}
    row = {"model": "m", "setting": setting, "evaluations": 60.0}
    row |= {"valid": 980.0, "unique": 970.0, "novel": 400.0}
    kept = {"share": 0.5, "least": 0.1, "valid": 990.0, "unique": 985.0, "novel": 300.0}
    (table,) = best("title", (970, 990), {"rows": [row | {"accepting": [kept]}]})
    shown = [[value.value for value in row.ours] for row in table.rows]
    assert shown == [[60.0, 980.0, 970.0, 400.0], [120.0, 990.0, 985.0, 300.0]]


def test_descriptions_of_repeated_trainings_are_unique() -> None:
    """Recorded rows with equal descriptions could not be distinguished on the page."""
    rows = [(row["corpus"], describe(row), row) for row in results.record("run_scatter")["rows"]]
    names = [(corpus, name) for corpus, name, _ in rows]
    assert len(set(names)) == len(names)
    assert ("text", "mask source, sce, context path") in names
    assert ("molecules", "mask source, sce, context path (r = 3, s = 2)") in names
    assert ("molecules", "uniform source, sce (r = 1, s = 0.5)") in names
    drawn = [(c, name, describe_sampler(s)) for c, name, row in rows for s in row["samples"]]
    assert len(set(drawn)) == len(drawn)  # solvers of one kind differ in their settings


def test_report_rejects_unknown_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        report.main(["--pictures"])
    assert "--pictures" in capsys.readouterr().err
