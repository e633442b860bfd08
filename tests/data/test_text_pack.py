"""Packing loses no tokens and resumes after interruptions; prepared folders detect damage."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cwdfm import InputError
from cwdfm.data import (
    CharacterTokenizer,
    Corpus,
    Document,
    TextFiles,
    TextTokenizer,
    TokenData,
    load,
    prepare,
)
from cwdfm.data.dataset import token_dtype
from cwdfm.data.text import encode, pack
from cwdfm.data.text.pack import split_of
from cwdfm.data.text.prepared import is_prepared, open_prepared
from cwdfm.train import batches
from tests.support.texts import SIZES, Stories, needs_gpt2, story

pytestmark = pytest.mark.usefixtures("own_places")


def reference(corpus: Corpus, tokenizer: TextTokenizer, length: int) -> dict[str, list[list[int]]]:
    """The windows of each split: the reference implementation."""
    flat: dict[str, list[int]] = {"train": [], "valid": []}
    for number, document in enumerate(corpus.documents(None, None)):
        if document.text.strip():
            ids = [*tokenizer.encode(document.text), tokenizer.eos_id]
            flat[split_of(number, 42)] += ids
    for ids in flat.values():
        ids += [tokenizer.eos_id] * (-len(ids) % length)
    return {
        split: [ids[i : i + length] for i in range(0, len(ids), length)]
        for split, ids in flat.items()
    }


@pytest.mark.parametrize("length", [2, 16, 1000])
def test_packing_loses_nothing(tmp_path: Path, length: int) -> None:
    corpus = Stories(sizes=SIZES)
    data = prepare(corpus, "bytes", length, tmp_path / "out")
    truth = reference(corpus, data.tokenizer, length)  # type: ignore[arg-type]
    assert data.train.tolist() == truth["train"]
    assert sorted(data.valid.tolist()) == sorted(truth["valid"])
    report = data.report
    assert report["read"] == len(SIZES) == report["blank"] + report["kept"]
    assert report["blank"] == sum(not story(i, n).strip() for i, n in enumerate(SIZES))
    assert report["tokens"] + report["filled"] == data.train.size + data.valid.size
    assert report["filled"] < 2 * length
    assert (report["train"], report["valid"]) == (len(data.train), len(data.valid))
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert sorted(folder_bytes(tmp_path / "out")) == ["meta.json", "train.bin", "valid.bin"]


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@needs_gpt2
def test_the_result_does_not_depend_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Stories(sizes=SIZES)
    one = prepare(corpus, "gpt2", 64, tmp_path / "one")
    truth = reference(corpus, one.tokenizer, 64)  # type: ignore[arg-type]
    assert one.train.tolist() == truth["train"]
    assert one.train.dtype == np.uint16
    monkeypatch.setattr(encode, "_BATCH", 500)
    monkeypatch.setattr(encode, "_PIECE", 50)
    monkeypatch.setattr(encode, "_CALL", 100)
    prepare(corpus, "gpt2", 64, tmp_path / "small")
    prepare(corpus, "gpt2", 64, tmp_path / "two", workers=2)
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "two")
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "small")


KILLED = """
import multiprocessing, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from cwdfm.data import TextFiles, prepare
from cwdfm.data.text import encode, pack
if __name__ == "__main__":
    encode._BATCH, pack._SAVE_EVERY = 100, 2000
    def tell(read):
        print(read, len(multiprocessing.active_children()), flush=True)
        time.sleep(0.02)
    prepare(TextFiles.of(sys.argv[1], unit="lines"), "bytes", 64, sys.argv[2],
            workers=2, progress=tell)
"""


def test_a_killed_preparation_is_resumed(tmp_path: Path) -> None:
    texts = tmp_path / "in.txt"
    texts.write_text("\n".join(f"{i} " + "word " * 20 for i in range(2000)))
    out = tmp_path / "out"
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, str(script), str(texts), str(out), root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = workers = 0
        while last < 100:
            last, workers = map(int, process.stdout.readline().split())
        process.send_signal(signal.SIGKILL)
        # Its output ends once nobody holds the other end: the workers have left as well.
        rest, _ = process.communicate(timeout=1200)
    assert workers == 2
    last = max([last, *(int(line.split()[0]) for line in rest.splitlines())])
    assert not out.exists()
    kept = json.loads((tmp_path / "out.part" / "progress.json").read_text())["read"]
    assert 0 < kept <= last + 1
    (
        tmp_path / "out.part" / "progress.json.1-0a1b2c3d.part"
    ).touch()  # as if killed while writing it
    calls: list[int] = []
    corpus = TextFiles.of(texts, unit="lines")
    resumed = prepare(corpus, "bytes", 64, out, progress=calls.append)
    assert calls[0] > kept
    assert resumed.report["read"] == 2000
    fresh = prepare(corpus, "bytes", 64, tmp_path / "fresh")
    assert folder_bytes(out) == folder_bytes(tmp_path / "fresh")
    assert fresh.fingerprint == resumed.fingerprint


@pytest.mark.parametrize("link", [False, True])
def test_files_of_the_user_in_the_work_folder_are_kept(tmp_path: Path, link: bool) -> None:
    mine = tmp_path / ("mine" if link else "out.part")
    mine.mkdir()
    (mine / "train.bin").write_bytes(b"mine")
    if link:
        (tmp_path / "out.part").symlink_to(mine)
    for corpus in (Stories(sizes=SIZES), Stories(sizes=(0,))):  # the second has no text
        with pytest.raises(InputError, match=r"out\.part"):
            prepare(corpus, "bytes", 64, tmp_path / "out")
        assert [(path.name, path.read_bytes()) for path in mine.iterdir()] == [
            ("train.bin", b"mine")
        ]
    (tmp_path / "other.lock").write_text("my notes")
    prepare(Stories(sizes=SIZES), "bytes", 64, tmp_path / "other")
    assert (tmp_path / "other.lock").read_text() == "my notes"


@dataclass(frozen=True, kw_only=True)
class Breaking(Stories):
    """Raises an error after a given number of documents."""

    error: BaseException
    after: int = 50

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        yield from super().documents(part, self.after)
        raise self.error


def test_interrupted_run_keeps_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_BATCH", 100)
    monkeypatch.setattr(pack, "_SAVE_EVERY", 100)
    whole = Stories(sizes=(40,) * 80)
    invalid = Breaking(sizes=whole.sizes, error=InputError("bad line"))
    with pytest.raises(InputError, match="bad line"):
        prepare(invalid, "bytes", 64, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    broken = Breaking(sizes=whole.sizes, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepare(broken, "bytes", 64, tmp_path / "out")
    assert json.loads((tmp_path / "out.part" / "progress.json").read_text())["read"] > 30
    # Different work in the same folder starts over.
    other = prepare(whole, "bytes", 32, tmp_path / "out")
    assert folder_bytes(tmp_path / "out") == folder_bytes_of(whole, 32, tmp_path / "fresh")
    assert other.length == 32


def test_truncated_stream_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated stream must not be padded with zeros, which are valid ids."""
    monkeypatch.setattr(encode, "_BATCH", 300)
    monkeypatch.setattr(pack, "_SAVE_EVERY", 300)
    whole = Stories(sizes=(10,) * 40)
    broken = Breaking(sizes=whole.sizes, after=25, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepare(broken, "bytes", 64, tmp_path / "out")
    stream = tmp_path / "out.part" / "train.bin"
    kept = json.loads((tmp_path / "out.part" / "progress.json").read_text())["train"]
    os.truncate(stream, kept * 2 - 10)
    prepare(whole, "bytes", 64, tmp_path / "out")
    assert folder_bytes(tmp_path / "out") == folder_bytes_of(whole, 64, tmp_path / "fresh")


def test_few_windows_of_few_documents_hold_one_out(tmp_path: Path) -> None:
    """With fewer than twenty windows and documents, the last window is held out."""
    data = prepare(Stories(sizes=(10,) * 3), "bytes", 32, tmp_path / "out")
    windows = -(-data.report["tokens"] // 32)
    assert 1 < windows < 20
    assert (len(data.train), len(data.valid)) == (windows - 1, 1)


def folder_bytes_of(corpus: Corpus, length: int, out: Path) -> dict[str, bytes]:
    prepare(corpus, "bytes", length, out)
    return folder_bytes(out)


def test_concurrent_calls_do_the_work_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    calls: list[int] = []

    def one(_: int) -> str:
        corpus = Stories(sizes=SIZES)
        return prepare(corpus, "bytes", 16, out, progress=calls.append).fingerprint

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(one, range(4)))) == 1
    assert calls == [len(SIZES)]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_result_of_another_process_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, corpus = tmp_path / "out", Stories(sizes=SIZES)
    module = importlib.import_module("cwdfm.data.text.prepared")
    looks: list[bool] = []

    def look(folder: Path) -> bool:
        found = is_prepared(folder)
        looks.append(found)
        if len(looks) == 1:
            prepare(corpus, "bytes", 16, out)
        return found

    monkeypatch.setattr(module, "is_prepared", look)
    calls: list[int] = []
    done = prepare(corpus, "bytes", 16, out, progress=calls.append)
    assert looks[0] is False
    assert done.fingerprint == open_prepared(out).fingerprint
    assert calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_script_without_a_main_guard_raises(tmp_path: Path) -> None:
    """The script does not hang, although its workers receive more than a pipe holds."""
    (tmp_path / "a.txt").write_text("".join(map(chr, range(0x20000, 0x2FFFF))))
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        f"from cwdfm.data import load\n"
        f"load({str(tmp_path / 'a.txt')!r}, tokenizer='chars', length=8, workers=2)"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 1
    assert "a worker process died; in a script, call this under" in done.stderr


def test_split_of_many_and_of_few_documents() -> None:
    held = [i for i in range(2000) if split_of(i, 42) == "valid"]
    assert held[0] == 19
    assert [i // 20 for i in held] == list(range(100))
    assert len({i % 20 for i in held}) > 10
    assert held != [i for i in range(2000) if split_of(i, 43) == "valid"]


def test_few_documents_hold_out_their_last_windows(tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("0123456789" * 100)
    data = load(text, tokenizer="bytes", length=10)
    whole = [*text.read_bytes(), 256] + [256] * 9
    rows = [whole[i : i + 10] for i in range(0, len(whole), 10)]
    assert data.train.tolist() == rows[:-5]
    assert sorted(data.valid.tolist()) == sorted(rows[-5:])
    assert data.report["filled"] == 9
    assert load(text, tokenizer="bytes", length=10, part="all").valid.shape == (101, 10)
    assert len(load(text, tokenizer="bytes", length=10, part="all").train) == 0


# Prepared folders and the cache


def test_prepared_text_is_what_the_trainer_uses(prepared: Path) -> None:
    data = load(prepared)
    assert isinstance(data, TokenData)
    assert isinstance(data.train, np.memmap)
    assert data.length == 32
    assert data.name == "stories"
    rows = torch.from_numpy(data.train)
    assert rows[torch.tensor([3, 0])].long().tolist() == data.train[[3, 0]].tolist()
    assert data.texts("valid", 2) == [data.tokenizer.decode(row) for row in data.valid[:2].tolist()]
    assert data.texts("train", 1)[0].encode() == bytes(data.train[0].tolist()[:32])
    assert re.search(r"documents \(\d+\.\d%\) kept", data.summary())
    assert "filled" in data.summary()
    assert data.fingerprint == load(prepared, length=32, tokenizer="bytes", seed=42).fingerprint
    assert data.source["length"] == 32
    data.train[0, 0] = 5  # a private copy
    assert load(prepared).train[0, 0] != 5 or data.fingerprint != load(prepared).fingerprint


def test_options_for_raw_text_raise(prepared: Path) -> None:
    options: dict[str, Any] = {"documents": "lines", "folder": ".", "streaming": True}
    for name, value in options.items():
        with pytest.raises(InputError, match=f"{name}=.* is only for raw text"):
            load(prepared, **{name: value})
    with pytest.raises(InputError, match=r"column='text' and folder='.' are only for raw text"):
        load(prepared, column="text", folder=".")


def test_uint16_reaches_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = "".join(map(chr, range(0x4E00, 0xD700)))
    wide = CharacterTokenizer(letters)
    (tmp_path / "a.txt").write_text(letters)
    data = load(tmp_path / "a.txt", tokenizer=wide, length=100)
    assert wide.vocab_size > 1 << 15
    assert data.train.dtype == np.uint16
    for limit in (batches.MAX_DEVICE_BYTES, 0):  # on the device, and on disk
        monkeypatch.setattr(batches, "MAX_DEVICE_BYTES", limit)
        stream = batches.EpochStream(data.train, 0, torch.device("cpu"))
        assert stream.at(torch.tensor([2, 1])).tolist() == data.train[[2, 1]].tolist()
    assert "".join(data.texts("train"))[:50] == letters[:50]


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "flipped": ("train.bin", lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:], "checksum"),
    "flipped-valid": ("valid.bin", lambda b: b[:-1] + bytes([b[-1] ^ 1]), "checksum"),
    "cut": ("train.bin", lambda b: b[:-1], "train.bin has"),
    "meta-cut": ("meta.json", lambda b: b[:-30], "damaged: meta.json"),
    "meta-changed": ("meta.json", lambda b: b.replace(b"stories", b"storeis"), "checksum"),
    "meta-foreign": ("meta.json", lambda b: b"{}", "not prepared by cwdfm"),
    "newer": ("meta.json", lambda b: b.replace(b'format": 1', b'format": 9'), "format 9.*upgrade"),
}


@pytest.mark.parametrize("row", DAMAGES)
def test_damage_is_detected(prepared: Path, row: str) -> None:
    name, change, message = DAMAGES[row]
    damage(prepared / name, change)
    with pytest.raises(InputError, match=message):
        load(prepared)


def test_missing_files_and_large_ones(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(prepared / "train.bin", lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:])
    with monkeypatch.context() as patch:
        patch.setattr("cwdfm.data.text.prepared._VERIFY_UP_TO", 100)  # bytes
        assert len(load(prepared).train)
    (prepared / "valid.bin").unlink()
    with pytest.raises(InputError, match=r"valid\.bin does not exist"):
        load(prepared)


def test_prepared_twice(prepared: Path, tmp_path: Path) -> None:
    stamp = (prepared / "train.bin").stat().st_mtime_ns
    calls: list[int] = []
    prepare(Stories(sizes=SIZES), "bytes", 32, prepared, progress=calls.append)
    assert calls == []
    assert (prepared / "train.bin").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match="different data or with different options"):
        prepare(Stories(sizes=SIZES), "bytes", 33, prepared)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(InputError, match="contains other files"):
        prepare(Stories(sizes=SIZES), "bytes", 32, tmp_path / "full")


def test_the_cache_is_keyed_by_everything(tmp_path: Path, own_places: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(story(i, 20) for i in range(50)))
    base: dict[str, Any] = {"tokenizer": "bytes", "length": 16}
    first = load(path, **base)
    assert load(path, **base).fingerprint == first.fingerprint
    variants: list[dict[str, Any]] = [
        {},
        {"length": 17},
        {"tokenizer": "chars"},
        {"documents": "lines"},
        {"documents": "lines", "seed": 1},
        {"documents": "lines", "limit": 30},
        {"part": "all"},
    ]
    for number, options in enumerate(variants, start=1):
        load(path, **{**base, **options})
        load(path, **{**base, **options})
        assert len(list(own_places.iterdir())) == number, options
    path.write_text("another " * 20)
    assert load(path, **base).fingerprint != first.fingerprint
    assert len(list(own_places.iterdir())) == len(variants) + 1
    uncached = load(path, **{**base, "length": 9}, cache=False)
    assert len(list(own_places.iterdir())) == len(variants) + 1
    assert uncached.texts("train", 1) == ["another a"]


@needs_gpt2
def test_text_prepared_with_gpt2_needs_none_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("Some words. " * 40)
    made = prepare(TextFiles.of(tmp_path / "a.txt", None, None), "gpt2", 16, tmp_path / "out")
    monkeypatch.setattr("cwdfm.data.loader.find_tokenizer", lambda name: 1 / 0)
    again = load(tmp_path / "out", tokenizer="gpt2")
    assert np.array_equal(again.train, made.train)


def test_ids_use_the_smallest_dtype() -> None:
    for size, kind in ((2**15, "i2"), (2**15 + 1, "u2"), (2**16, "u2"), (2**16 + 1, "i4")):
        assert token_dtype(size) == np.dtype(kind)
        assert np.iinfo(kind).max >= size - 1
