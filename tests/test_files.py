"""Files are whole at any moment, whoever writes them."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cwdfm.files import replacing
from cwdfm.provenance import write_json
from cwdfm.repro.job import Store


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    with replacing(path) as part:
        part.write_text("old")

    def fail() -> None:
        with replacing(path) as part:
            part.write_text("new")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        fail()
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_json_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, sync = tmp_path / "a.json", [], os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        synced.append((os.fstat(descriptor).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(path, {"a": [1, 2.5, "b"]})
    assert json.loads(path.read_text()) == {"a": [1, 2.5, "b"]}
    assert synced == [(path.stat().st_size, False)]
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [1, 2.5, "b"]}
    assert list(tmp_path.iterdir()) == [path]


def test_many_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    texts = [str(i) * 5000 for i in range(8)]

    def write(text: str) -> bool:
        for _ in range(50):
            with replacing(path) as part:
                part.write_text(text)
            if path.read_text() not in texts:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write, texts))
    assert list(tmp_path.iterdir()) == [path]


def test_many_say_first_what_a_store_is_made_of(tmp_path: Path) -> None:
    for number in range(20):
        store = Store(tmp_path / str(number))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _, store=store: store.same("text", "abc"), range(8)))
        assert [path.name for path in store.folder.iterdir()] == ["text.json"]
