"""Atomic writes, locks, and checks of output paths."""

import errno
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cwdfm.data import SmilesTokenizer, TokenData
from cwdfm.errors import InputError
from cwdfm.files import (
    check_output_file,
    check_output_folder,
    check_writable,
    locked,
    replacing,
    retry_advice,
    write_json,
)
from cwdfm.sample_file import PartialSamples, SampleFile, write_samples
from experiments.store import Store


def test_failure_keeps_the_old_file(tmp_path: Path) -> None:
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


def test_json_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_concurrent_writers(tmp_path: Path) -> None:
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


def test_concurrent_fingerprint_writers(tmp_path: Path) -> None:
    for number in range(20):
        store = Store(tmp_path / str(number))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _, store=store: store.check_fingerprint("text", "abc"), range(8)))
        assert [path.name for path in store.root.iterdir()] == ["text.json"]


def test_check_output_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    check_output_file(tmp_path / "a" / "b" / "new.json", force=False)
    check_output_file(tmp_path / "file", force=True)
    check_writable(tmp_path)
    for place, force, message in (
        ("file", False, "file already exists.*force=True"),
        ("file/a/new.json", True, r"a/new\.json cannot be written: .*file is a file"),
        ("", True, "is a folder"),
    ):
        with pytest.raises(InputError, match=message):
            check_output_file(tmp_path / place, force=force)
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for place in ("link", "link/a/b"):
        with pytest.raises(InputError, match=r"link is a symbolic link to .*gone"):
            check_writable(tmp_path / place)
    (tmp_path / "gone").mkdir()
    check_writable(tmp_path / "link" / "a" / "b")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match=f"no permission to write into {tmp_path}"):
        check_output_file(tmp_path / "a" / "new.json", force=False)
    monkeypatch.setattr(os, "access", lambda path, _: path == tmp_path)
    check_writable(tmp_path)  # a writable folder in one that is not


def test_check_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    check_output_folder(tmp_path / "new" / "a")
    with pytest.raises(InputError, match="file is a file"):
        check_output_folder(tmp_path / "file")

    def hidden(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Path, "exists", hidden)  # as for paths in an inaccessible folder
    with pytest.raises(InputError, match=f"no permission to write into {tmp_path}"):
        check_output_folder(tmp_path / "a")


def test_full_disk_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.zeros((1, 4), np.int16)
    data = TokenData("a", rows, rows, SmilesTokenizer(("C",)), {}, {}, {})
    writers: dict[str, Callable[[], None]] = {
        "a.smi": lambda: write_samples(tmp_path / "a.smi", SampleFile(["C"])),
        "a.npz": lambda: data.save(tmp_path / "a.npz"),
        "0-0.json": lambda: PartialSamples(tmp_path / "b.smi", {}).add({0: {}}),
    }
    for code, space in ((errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)):

        def fails(*_: object, code: int = code, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", fails)
            patch.setattr(Path, "open", fails)
            for name, write in writers.items():
                with pytest.raises(InputError, match=f"{name}: {os.strerror(code)}") as raised:
                    write()
                assert ("free some disk space" in str(raised.value).lower()) == space


def test_retry_advice_names_the_nearest_folder(tmp_path: Path) -> None:
    denied = PermissionError(errno.EACCES, "denied")
    for place in ("", "a.json", "a/b/c.json"):
        assert retry_advice(denied, tmp_path / place).endswith(
            f"permission to write into {tmp_path}"
        )


def test_lock_is_exclusive(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "new" / "a", 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        for _ in range(5):
            with locked(path):
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert most == 1
    assert list(path.parent.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), locked(tmp_path / "file" / "a"):
        pass
