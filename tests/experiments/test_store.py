"""The store: finished tasks stay finished, whatever interrupted the others."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import cwdfm
from experiments.store import RERUN, RESULT, Store
from experiments.tasks.base import Resources, in_order
from tests.support.toy_tasks import Read, Square, Sum, Write, runs

HERE = Resources("cpu")


def test_dependencies_come_first_and_once() -> None:
    tasks = [Sum(Square(2), Square(3)), Sum(Square(3), Square(4)), Square(2)]
    assert in_order(tasks) == [Square(2), Square(3), tasks[0], Square(4), tasks[1]]


def test_the_key_depends_on_fields_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Square(2).name
    assert Square(2).name == before != Square(3).name
    monkeypatch.setattr(Square, "version", 2)
    assert Square(2).name != before


def test_a_record_names_task_command_and_versions(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.run(Square(2), Resources("cpu", command="python -m experiments run x"))
    record = store.record(Square(2))
    assert record is not None
    assert record["job"] == {"class": "Square", "number": 2}
    assert record["result"] == {"square": 4}
    assert record["provenance"]["command"] == "python -m experiments run x"
    assert record["provenance"]["versions"]["torch"]


def test_two_runs_share_a_store(tmp_path: Path) -> None:
    """The second waits for the lock and then finds the result."""
    threads = [
        threading.Thread(target=Store(tmp_path).run, args=(Square(n % 3), HERE)) for n in range(9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert runs(Store(tmp_path)) == [0, 1, 2]


def test_a_task_must_write_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Write, "run", lambda *_: {})
    with pytest.raises(RuntimeError, match=r"did not write made\.txt"):
        Store(tmp_path).run(Write(1), HERE)


def test_a_rerun_is_not_ready_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor after a kill. The old result stays readable, and the files of the killed run too."""
    store, run = Store(tmp_path), Write.run
    store.run(Write(1), HERE)
    folder = store.folder(Write(1))
    (folder / "made.txt").unlink()
    (folder / "checkpoint").write_text("of the first run")

    def killed(task: Write, folder: Path, *others: Any) -> dict[str, Any]:
        assert not (folder / "checkpoint").exists()
        (folder / "started").touch()
        run(task, folder, *others)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Write, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            store.run(Write(1), HERE)
    assert store.record(Write(1)) is not None
    assert not store.ready(Write(1))
    store.run(Write(1), HERE)
    assert store.ready(Write(1))
    assert (folder / "started").exists()
    assert not (folder / RERUN).exists()


def test_records_name_the_run_they_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, dates = Store(tmp_path), iter(f"2026-01-0{day}" for day in range(1, 9))
    monkeypatch.setattr("experiments.store.provenance", lambda: {"date": next(dates)})
    tasks = [Read(Write(1), times) for times in (1, 2, 3)]
    for task in tasks:
        assert store.run_date(Write(1), task) is None
        store.run(Write(1), HERE)
        store.run(task, HERE)
        (store.folder(Write(1)) / "made.txt").unlink()
    expected = ["2026-01-01", "2026-01-03", "2026-01-05"]
    assert [store.run_date(Write(1), task) for task in tasks] == expected
    for task in tasks:  # old records do not have "needs"
        path = store.folder(task) / RESULT
        record = json.loads(path.read_text())
        del record["needs"]
        path.write_text(json.dumps(record))
    assert [store.run_date(Write(1), task) for task in tasks] == expected
    for date in ("2026-01-03", "2025-12-31"):
        path.write_text(json.dumps({**record, "provenance": {"date": date}}))
        assert store.run_date(Write(1), tasks[-1]) == max(date, expected[0])


def test_a_different_corpus_is_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        store.check_fingerprint("text-512", "a" * 64)
    with pytest.raises(cwdfm.InputError, match=r"text-512.*a{16}.*b{16}"):
        store.check_fingerprint("text-512", "b" * 64)


VALID = '{"result": {}, "provenance": {"date": "2026-01-01"}'


@pytest.mark.parametrize(
    "content",
    [
        *("{", "", "null", "3", "[]", "{}", '{"result": {}}', VALID + ', "needs": 3}'),
        *(VALID + ', "earlier": 3}', VALID + ', "earlier": [3]}'),
        '{"result": 3, "provenance": {"date": "2026-01-01"}}',
        '{"result": {}, "provenance": {}}',
    ],
)
def test_a_damaged_record_counts_as_missing(tmp_path: Path, content: str) -> None:
    store = Store(tmp_path)
    path = store.folder(Square(1)) / RESULT
    path.parent.mkdir(parents=True)
    path.write_text(VALID + "}")
    assert store.ready(Square(1))
    path.write_text(content)
    with pytest.warns(UserWarning, match="is damaged") as warned:
        store.run(Square(1), HERE)
    assert str(path) in str(warned[0].message)
    assert store.ready(Square(1))


@pytest.mark.parametrize("content", ["{", "", "3", "null", "[]"])
def test_a_damaged_fingerprint_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "molecules-32.json"
    path.write_text(content)
    with pytest.raises(cwdfm.InputError, match="damaged") as raised:
        Store(tmp_path).check_fingerprint("molecules-32", "a" * 64)
    assert str(path) in str(raised.value)
