"""Prepared text: memory-mapped windows, damage detection, and the cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cwdfm import InputError
from cwdfm.data import CharacterTokenizer, TextFiles, TokenData, load, prepare
from cwdfm.data.dataset import token_dtype
from cwdfm.data.text.prepared import open_prepared
from tests.support.texts import SIZES, Stories, needs_gpt2, story

pytestmark = pytest.mark.usefixtures("own_places")


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
    assert "documents kept" in data.summary()
    assert "filled" in data.summary()
    assert data.fingerprint == load(prepared, length=32, tokenizer="bytes", seed=42).fingerprint
    assert data.source["length"] == 32
    data.train[0, 0] = 5  # a private copy
    assert load(prepared).train[0, 0] != 5 or data.fingerprint != load(prepared).fingerprint


@pytest.mark.parametrize(
    "option", [{"column": "text"}, {"documents": "lines"}, {"folder": "."}, {"streaming": True}]
)
def test_options_for_raw_text_raise(prepared: Path, option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(option))}=.* is only for raw text"):
        load(prepared, **option)


def test_several_options_for_raw_text_raise(prepared: Path) -> None:
    with pytest.raises(InputError, match=r"column='text' and folder='.' are only for raw text"):
        load(prepared, column="text", folder=".")


def test_uint16_reaches_torch(tmp_path: Path) -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000))) + "".join(
        map(chr, range(0xAC00, 0xAC00 + 11_000))
    )
    wide = CharacterTokenizer("".join(sorted(letters + "".join(map(chr, range(0x3400, 0x4000))))))
    (tmp_path / "a.txt").write_text(letters)
    data = load(tmp_path / "a.txt", tokenizer=wide, length=100)
    assert wide.vocab_size > 1 << 15
    assert data.train.dtype == np.uint16
    index = torch.tensor([2, 1])
    assert torch.from_numpy(data.train)[index].long().tolist() == data.train[[2, 1]].tolist()
    assert "".join(data.texts("train"))[:50] == letters[:50]


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "flipped": ("train.bin", lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:], "checksum"),
    "flipped-valid": ("valid.bin", lambda b: b[:-1] + bytes([b[-1] ^ 1]), "checksum"),
    "cut": ("train.bin", lambda b: b[:-1], "too few"),
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


def test_missing_files_and_large_ones(prepared: Path) -> None:
    damage(prepared / "train.bin", lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:])
    assert len(open_prepared(prepared, verify=False).train)
    (prepared / "valid.bin").unlink()
    with pytest.raises(InputError, match=r"valid\.bin does not exist"):
        load(prepared)


def test_prepared_twice(prepared: Path, tmp_path: Path) -> None:
    stamp = (prepared / "train.bin").stat().st_mtime_ns
    calls: list[int] = []
    prepare(Stories(sizes=SIZES), "bytes", 32, prepared, progress=calls.append)
    assert calls == []
    assert (prepared / "train.bin").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match="other data or with other options"):
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
