"""Text files in all formats."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cwdfm import InputError
from cwdfm.data import ByteTokenizer, SmilesTokenizer, TextFiles, load
from tests.support.texts import TAR, TEXTS, write_parquet, zst

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
