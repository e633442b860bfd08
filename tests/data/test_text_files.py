"""Text files in all formats. Invalid files and calls raise InputErrors and leave nothing behind."""

import bz2
import gzip
import json
import lzma
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cwdfm import InputError
from cwdfm.data import (
    END,
    ByteTokenizer,
    CharacterTokenizer,
    SmilesTokenizer,
    TextFiles,
    find_tokenizer,
    load,
    prepare,
    tokenizer_from_json,
)
from tests.support.texts import (
    BROKEN_GZ,
    SIZES,
    TAR,
    TEXTS,
    Stories,
    jsonl,
    tarred,
    word_level,
    write_parquet,
    zst,
)

pytestmark = pytest.mark.usefixtures("own_places")

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zst,
}
ROWS = "\n".join(json.dumps({"text": text, "id": 3}) for text in TEXTS).encode()


def texts_of(path: Path | str, **options: Any) -> list[str]:
    return [document.text for document in TextFiles.of(path, **options).documents(None, None)]


@pytest.mark.parametrize("ending", PACKERS)
def test_every_kind_of_file(tmp_path: Path, ending: str) -> None:
    pack_ = PACKERS[ending]
    for name, raw in (("a.jsonl", ROWS + b"\n\n"), ("a.tar", TAR)):
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(pack_(raw))
        assert texts_of(path) == TEXTS
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(pack_("\ufeffone\r\ntwo\n\n \nthree\n".encode()))
    assert texts_of(path) == ["one\ntwo\n\n \nthree\n"]
    assert texts_of(path, unit="lines") == ["one", "two", "", " ", "three"]
    assert texts_of(path, unit="paragraphs") == ["one\ntwo", "three"]
    path = tmp_path / f"a.smi{ending}"  # molecules too
    path.write_bytes(pack_(b"CC\nCO\n"))
    pytest.importorskip("rdkit")
    assert load(path).report["kept"] == 2


def test_parquet_folders_globs_and_short_endings(tmp_path: Path) -> None:
    assert texts_of(write_parquet(tmp_path / "a.parquet", n=[1, 2, 3], text=TEXTS)) == TEXTS
    write_parquet(tmp_path / "b.parquet", body=["x", None])
    assert texts_of(tmp_path / "b.parquet", column="body") == ["x", ""]
    for name, raw in (("c.tgz", gzip.compress(TAR)), ("c.txz", lzma.compress(TAR))):
        (tmp_path / name).write_bytes(raw)
        assert texts_of(tmp_path / name) == TEXTS
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.txt", "a.txt", "deep/c.jsonl", "skip.png", ".hidden/d.txt"):
        (folder / name).write_text(f'{{"text": "{name}"}}')
    assert texts_of(folder) == ['{"text": "a.txt"}', '{"text": "b.txt"}', "deep/c.jsonl"]
    assert texts_of(f"{folder}/*.txt") == ['{"text": "a.txt"}', '{"text": "b.txt"}']
    assert texts_of(f"{folder}/**/*.jsonl") == ["deep/c.jsonl"]
    assert load(folder, tokenizer="bytes", length=8).report["read"] == 3
    assert load(f"{folder}/*.txt", tokenizer="bytes", length=8).report["read"] == 2


def test_txt_is_molecules_unless_a_text_tokenizer_is_given(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    path = tmp_path / "a.txt"
    path.write_text("CCO\nCCN\n")
    assert isinstance(load(path).tokenizer, SmilesTokenizer)
    assert isinstance(load(path, tokenizer="bytes", length=4).tokenizer, ByteTokenizer)
    assert isinstance(load(path, tokenizer=ByteTokenizer(), length=4).tokenizer, ByteTokenizer)
    with pytest.raises(InputError, match=r"part='all' is only for text.*read as molecules"):
        load(path, part="all")


# Invalid input


ABC, SMILES = CharacterTokenizer("abc"), SmilesTokenizer(("C",))
GOOD = {"text": "good"}
LINES = b"a b\n" * 999
BAD_FILES: dict[str, tuple[str, bytes, dict[str, Any], str]] = {
    "not-json": ("a.jsonl", jsonl(GOOD, "{bad", GOOD), {}, r"a\.jsonl, line 2: not JSON"),
    "no-field": ("a.jsonl", jsonl(GOOD, {"b": 1}), {}, r"line 2: .*'text', only 'b'"),
    "not-object": ("a.jsonl", jsonl(GOOD, [1]), {}, "line 2: .*JSON object.*got a list"),
    "not-string": ("a.jsonl", jsonl({"text": 3}), {}, "line 1: 'text' must be a string, got int"),
    "surrogate": ("a.jsonl", b'{"text": "\\ud800"}', {}, "line 1: .*surrogate"),
    "column": ("a.jsonl", jsonl(GOOD), {"column": "x"}, "'x', only 'text'"),
    "not-utf8": ("a.txt", b"ok\nb\xe9d\n", {}, r"a\.txt, line 2: byte 0xe9 is not UTF-8"),
    "utf-16": ("a.txt", "text".encode("utf-16"), {}, "line 1: byte 0xff is not UTF-8"),
    "gz-cut": ("a.txt.gz", BROKEN_GZ[:-40], {}, r"not a complete gzip file, after line \d+"),
    "gz-not": ("a.jsonl.gz", jsonl(GOOD), {}, r"complete gzip file.*remove the suffix \.gz"),
    "gz-line": ("a.jsonl.gz", gzip.compress(jsonl(GOOD, "[")), {}, r"l\.gz, line 2: not JSON"),
    "xz-cut": ("a.txt.xz", lzma.compress(LINES)[:-40], {}, r"complete xz file, after line \d+"),
    "xz-not": ("a.txt.xz", b"plain", {}, "not a complete xz file"),
    "bz2-cut": ("a.txt.bz2", bz2.compress(LINES)[:-9], {}, "not a complete bzip2 file"),
    "bz2-not": ("a.txt.bz2", b"plain text", {}, "not a complete bzip2 file"),
    "zst-cut": ("a.txt.zst", zst(LINES)[:-5], {}, r"complete zstandard file, after line \d+"),
    "zst-not": ("a.txt.zst", b"plain text", {}, "not a complete zstandard file"),
    "tar-cut": ("a.tar", TAR[:700], {}, "not a complete tar archive"),
    "tar-not": ("a.tar.gz", gzip.compress(b"plain" * 500), {}, "not a complete tar archive"),
    "tar-without": ("a.tar", tarred({"x.png": b""}), {}, "contains no text files"),
    "tar-utf8": ("a.tar", tarred({"b.txt": b"x\n\xff"}), {}, r"a\.tar: b\.txt, line 2: byte 0xff"),
    "parquet": ("a.parquet", b"PAR1 not", {}, "not a complete parquet file"),
    "empty": ("a.txt", b"", {}, "contains no text: 1 documents were read, 1 of them blank"),
    "empty-jsonl": ("a.jsonl", b"", {}, "contains no text: 0 documents"),
    "blank": ("a.jsonl", jsonl({"text": " \n"}, {"text": None}), {}, "2 documents.*2 of them"),
    "number": ("a.jsonl", b'{"text": "b", "n": ' + b"9" * 5000 + b"}", {}, "1: not JSON .Exceeds"),
    "too-short": ("a.txt", b"abc", {}, "4 tokens.*window of length 8"),
    "length": ("a.txt", b"abc", {"length": 1}, "length must be an integer >= 2, got 1"),
    "workers": ("a.txt", b"abc", {"workers": 0}, "workers must be an integer >= 1, got 0"),
    "limit": ("a.txt", b"abc", {"limit": 0}, "limit must be an integer >= 1, got 0"),
    "seed": ("a.txt", b"abc", {"seed": -1}, "seed must be an integer >= 0"),
    "documents": ("a.txt", b"abc", {"documents": "words"}, "one of 'file', 'paragraphs', 'lines'"),
    "part": ("a.txt", b"abc", {"part": "test"}, "part must be one of 'all', got 'test'"),
    "folder": ("a.txt", b"abc", {"folder": "x"}, "folder='x' is only for corpora by name"),
    "smiles-tokenizer": ("a.jsonl", jsonl(GOOD), {"tokenizer": SMILES}, "text tokenizer.*smiles"),
    "character": ("a.txt", b"abcd" * 9, {"tokenizer": ABC}, "vocabulary of 4: 'd'"),
    "tokenizer": ("a.txt", b"abc", {"tokenizer": "./none"}, "'./none' is neither.*from the hub"),
}


@pytest.mark.parametrize("row", BAD_FILES)
def test_invalid_files(tmp_path: Path, row: str, own_places: Path) -> None:
    name, raw, options, message = BAD_FILES[row]
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=f"(?s){message}"):
        load(tmp_path / name, **{"tokenizer": "bytes", "length": 8, **options})
    assert not own_places.exists() or list(own_places.iterdir()) == []


BAD_CALLS: dict[str, tuple[Callable[[Path], object], str]] = {
    "parquet-column": (
        lambda p: load(write_parquet(p / "a.parquet", body=["x"]), tokenizer="bytes"),
        "has no column 'text', its columns are 'body'",
    ),
    "missing": (lambda p: load(p / "none.txt", tokenizer="bytes"), "does not exist"),
    "missing-jsonl": (lambda p: load(p / "none.jsonl"), "neither a dataset nor a file"),
    "no-match": (lambda p: load(f"{p}/*.none"), "is a glob pattern that contains no text files"),
    "no-files": (lambda p: load(p / "x" / ".."), "is a folder that contains no text files"),
    "unknown-ending": (lambda p: TextFiles.of(p / "x" / "train.bin"), "cannot tell how to read"),
    "prepared-length": (lambda p: load(p / "x", length=9), "prepared with length=32.*9"),
    "prepared-part": (lambda p: load(p / "x", part="all"), "prepared with part=None"),
    "prepared-tokenizer": (lambda p: load(p / "x", tokenizer=ABC), "different tokenizer"),
    "prepared-chars": (lambda p: load(p / "x", tokenizer="chars"), "different tokenizer"),
    "chars-alone": (lambda _: find_tokenizer("chars"), "built from a corpus"),
    "corpus-column": (lambda _: load("lm1b", column="x"), "column='x' is only.*'lm1b'"),
    "corpus-folder": (lambda p: load("lm1b", folder=p / "no", tokenizer="bytes"), "not a folder"),
    "corpus-part": (lambda _: load("text8", part="all", tokenizer="bytes"), "one of 'train'"),
    "empty-tokenizer": (lambda p: find_tokenizer(p / "x"), "contains no tokenizer.*vocab.json"),
    "no-characters": (lambda _: CharacterTokenizer.build([""]), "no characters"),
    "unsorted": (lambda _: CharacterTokenizer("ba"), "ascending order"),
    "stored-characters": (lambda _: tokenizer_from_json({"kind": "characters"}), "'characters'"),
}


@pytest.mark.parametrize("row", BAD_CALLS)
def test_invalid_arguments(prepared: Path, row: str) -> None:
    act, message = BAD_CALLS[row]
    with pytest.raises(InputError, match=f"(?s){message}"):
        act(prepared.parent)


def test_invalid_tokenizer_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"content": "</s>"}], "model": 3}')
    with pytest.raises(InputError, match="is not a tokenizer of the tokenizers library"):
        find_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text('{\n"a": 0,,}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(InputError, match=r"vocab\.json.* line 2"):
        find_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(f'{{"a": 0, "{END}": 1}}')
    with pytest.raises(InputError, match=r"merges\.txt.* line 2 .*#version"):
        find_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(InputError, match=r"has no <.endoftext.>"):
        find_tokenizer(tmp_path)


def test_full_disk_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match=r"out cannot be written: .*file is a file"):
        prepare(Stories(sizes=SIZES), "bytes", 8, tmp_path / "file" / "out")
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(InputError, match=r"File too large; free some disk space"):
            prepare(Stories(sizes=SIZES), "bytes", 8, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(prepare(Stories(sizes=SIZES), "bytes", 8, tmp_path / "out").train)


@pytest.mark.parametrize("module", ["tokenizers", "pyarrow", "pyarrow.parquet", "datasets"])
def test_missing_packages_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    folder = word_level(tmp_path / "own")
    (tmp_path / "a.txt.zst").write_bytes(zst(b"text"))
    write_parquet(tmp_path / "a.parquet", text=["x"])
    uses: dict[str, Callable[[], object]] = {
        "tokenizers": lambda: find_tokenizer(folder),
        "pyarrow": lambda: load(tmp_path / "a.txt.zst", tokenizer="bytes"),
        "pyarrow.parquet": lambda: load(tmp_path / "a.parquet", tokenizer="bytes"),
        "datasets": lambda: load("lm1b", tokenizer="bytes"),
    }
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'cwdfm\[text\]'"):
        uses[module]()
