"""Molecule datasets: tokenization is lossless, every row is counted, damage is detected."""

import gzip
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwdfm import InputError
from cwdfm.data import (
    DATASETS,
    ByteTokenizer,
    SmilesTokenizer,
    Split,
    TokenData,
    canonical,
    load,
    load_reference,
    randomize,
    split_smiles,
    tokenizer_from_json,
)
from cwdfm.data.molecules import REASONS, MoleculeOptions, PackagedMolecules, pack, split
from cwdfm.data.qm9 import QM9
from cwdfm.data.smiles import invalid_reason

pytest.importorskip("rdkit")
needs_qm9 = pytest.mark.skipif(not importlib.util.find_spec("qm9pack"), reason="needs qm9pack")
needs_moses = pytest.mark.skipif(not importlib.util.find_spec("moses"), reason="needs molsets")

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def qm9() -> TokenData:
    return load("qm9")  # the cache of this run: tests/conftest.py


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def adds_up(report: dict[str, int]) -> bool:
    left_out = sum(report[reason] for reason in REASONS)
    return (
        set(report) == {"read", "kept", "train", "valid", *REASONS}
        and report["read"] == left_out + report["kept"]
        and report["kept"] == report["train"] + report["valid"]
    )


def all_texts(data: TokenData) -> set[str]:
    return {*data.texts("train"), *data.texts("valid")}


# Tokens


@pytest.mark.parametrize(
    ("smiles", "tokens"),
    [
        (ASPIRIN, "C C ( = O ) O c 1 c c c c c 1 C ( = O ) O"),
        ("ClCBr", "Cl C Br"),
        ("C[C@@H](F)[O-]", "C [C@@H] ( F ) [O-]"),
        ("C%12CC%12", "C %12 C C %12"),
        ("C%(123)", "C %(123)"),
        ("F/C=C\\F", "F / C = C \\ F"),
        ("[nH]1cccc1.[Na+]", "[nH] 1 c c c c 1 . [Na+]"),
        ("[NH3]->[Fe]", "[NH3] -> [Fe]"),
        ("*C#N", "* C # N"),
        ("CB", "C B"),
        ("CSc1ccsc1", "C S c 1 c c s c 1"),
        ("", ""),
    ],
)
def test_tokens_of_smiles(smiles: str, tokens: str) -> None:
    assert split_smiles(smiles) == tokens.split()


@pytest.mark.parametrize("smiles", ["C C", "Cx", "C[NH", "C%1", "[]", "é", "C\n", "C\u0661"])
def test_invalid_smiles_raise(smiles: str) -> None:
    with pytest.raises(InputError, match="at position"):
        split_smiles(smiles)


def test_special_tokens_and_round_trip() -> None:
    tokenizer = SmilesTokenizer.build([ASPIRIN, "ClCBr"])
    assert tokenizer.tokens == ("(", ")", "1", "=", "Br", "C", "Cl", "O", "c")
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.vocab_size == 12
    assert tokenizer.encode("ClCBr") == [9, 8, 7]
    packed = tokenizer.pack(tokenizer.encode("ClCBr"), 7)
    assert packed == [1, 9, 8, 7, 2, 0, 0]
    assert tokenizer.decode(packed) == "ClCBr"
    assert tokenizer.decode(np.array([1, 8, 2, 8, 8], dtype=np.int16)) == "C"
    assert tokenizer.decode([8, 8]) == "CC"
    assert tokenizer.decode([]) == ""
    assert tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json()))) == tokenizer


def test_frame_adds_special_and_free_tokens() -> None:
    tokenizer = SmilesTokenizer(("C",))
    assert tokenizer.frame([3, None], 6, whole=True) == [1, 3, None, 2, 0, 0]
    assert tokenizer.frame([3, None], 6, whole=False) == [1, 3, None, None, None, None]
    assert tokenizer.frame([3] * 4, 6, whole=True) == [1, 3, 3, 3, 3, 2]
    for whole in (True, False):
        with pytest.raises(InputError, match=r"5 tokens.*length 6.*4"):
            tokenizer.frame([3] * 5, 6, whole=whole)


def test_canonical_form() -> None:
    assert canonical("OC(=O)c1ccccc1OC(C)=O") == canonical(ASPIRIN) == ASPIRIN
    assert canonical("C(C)O") == "CCO"
    for bad in ("", " ", "C(", "c1cc1C(", "CC name", "C1CC", "N(C)(C)(C)C", "xyz"):
        assert canonical(bad) is None, bad
    for bad in ("CC\0O", "CC\0", "C\ud800", "C\u00e9"):  # RDKit would read the first two as ethane
        assert canonical(bad) is None
        assert "ASCII" in invalid_reason(bad)


def test_rdkit_logs_are_blocked_only_here(capfd: pytest.CaptureFixture[str]) -> None:
    from rdkit import Chem

    assert canonical("C(") is None
    assert capfd.readouterr().err == ""
    assert Chem.MolFromSmiles("C(") is None
    assert "C(" in capfd.readouterr().err


# QM9, against the figures published with the package's own data


@needs_qm9
@pytest.mark.slow
def test_qm9_figures(qm9: TokenData) -> None:
    assert qm9.report == dict.fromkeys(REASONS, 0) | {
        **{"read": 130_831, "duplicate": 87, "kept": 130_744},
        **{"train": 124_206, "valid": 6_538},  # ceil(5%)
    }
    assert (qm9.train.shape, qm9.valid.shape) == ((124_206, 32), (6_538, 32))
    assert qm9.train.dtype == np.int16
    texts = qm9.texts("train") + qm9.texts("valid")
    tokens = [split_smiles(text) for text in texts]
    assert max(map(len, tokens)) == 22
    assert sum(map(len, tokens)) / len(tokens) == pytest.approx(14.8, abs=0.05)
    assert len({token for row in tokens for token in row}) == 30
    # The fixed vocabulary is the data's own.
    assert SmilesTokenizer.build(texts) == qm9.tokenizer == SmilesTokenizer(QM9.tokens or ())
    assert qm9.tokenizer.vocab_size == 33


@needs_qm9
@pytest.mark.slow
def test_qm9_tokens_are_lossless_and_packed(qm9: TokenData) -> None:
    for text, row in zip(qm9.texts("valid"), qm9.valid.tolist(), strict=True):
        tokens = split_smiles(text)
        # If not canonical, a generator that repeats a training string would count as novel.
        assert "".join(tokens) == text == canonical(text)
        ids = [(QM9.tokens or ()).index(token) + 3 for token in tokens]
        assert row == [1, *ids, 2] + [0] * (30 - len(ids))


@needs_qm9
@pytest.mark.slow
def test_qm9_split_is_disjoint_and_fixed(qm9: TokenData) -> None:
    train, valid = qm9.texts("train"), qm9.texts("valid")
    assert len({*train, *valid}) == len(train) + len(valid) == 130_744
    # Measured with numpy 2.4 and RDKit 2026.09. The first is numpy's alone, the second RDKit's too.
    order = np.random.default_rng(42).permutation(130_744)
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16] == "974f4e5cb6f2c36b"
    held_out = hashlib.sha256("\n".join(valid).encode()).hexdigest()[:16]
    assert held_out == "02cb50ec589a04ac"


@needs_qm9
def test_limit_reads_the_first_rows_and_keeps_the_vocabulary() -> None:
    data = load("qm9", limit=500)
    assert data.report["read"] == 500
    assert adds_up(data.report)
    assert data.tokenizer.vocab_size == 33
    assert all_texts(data) == {canonical(row.smiles) for row in islice(QM9.rows(None), 500)}


@needs_moses
def test_moses_keeps_its_own_split() -> None:
    data = load("moses", limit=1000, cache=False)
    rows = list(DATASETS["moses"].rows(1000))
    assert adds_up(data.report)
    assert data.report["read"] == len(rows) == 2000
    train = {canonical(row.smiles) for row in rows if row.split == "train"}
    valid = {canonical(row.smiles) for row in rows if row.split == "valid"}
    assert data.report["unknown_tokens"] == data.report["too_long"] == 0
    assert set(data.texts("train")) == train
    assert set(data.texts("valid")) == valid - train


# A user's files


ROWS = ["CCO ethanol", "OCC", "c1ccccc1\tbenzene", "", "not-a-molecule", "CCN", "C" * 40, "CCCl"]


def test_report_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.smi", "\n".join(ROWS))
    data = load(path)
    assert (data.name, data.length) == ("mine.smi", 32)
    left_out = dict.fromkeys(REASONS, 1) | {"unknown_tokens": 0}
    assert data.report == left_out | {"read": 8, "kept": 4, "train": 3, "valid": 1}
    assert all_texts(data) == {"CCO", "c1ccccc1", "CCN", "CCCl"}
    assert data.examples["unparsable"] == ["line 5: not-a-molecule"]
    assert data.examples["duplicate"] == ["line 2: OCC (same as CCO)"]
    assert "40 tokens" in data.examples["too_long"][0]
    assert "length=42" in data.examples["too_long"][1]
    assert data.tokenizer == SmilesTokenizer(("1", "C", "Cl", "N", "O", "c"))
    assert data.source["file"] == "mine.smi"
    assert data.source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    for part in ("4 of 8 rows (50.0%) kept", "unparsable: 1 (12.5%)", "line 5: not-a-molecule"):
        assert part in data.summary()
    assert load(path, length=41).report["too_long"] == 1
    longer = load(path, length=42)
    assert (longer.report["too_long"], longer.train.shape) == (0, (4, 42))


def test_rows_with_unknown_tokens_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.smi", "\n".join([*ROWS, "CCBr"]))
    tokenizer = SmilesTokenizer(("C", "O", "N"))
    data = load(path, tokenizer=tokenizer, length=64)
    assert data.tokenizer == tokenizer
    assert adds_up(data.report)
    assert data.report["unknown_tokens"] == 3
    assert data.examples["unknown_tokens"] == [
        "line 3: c1ccccc1 (unknown: 1 c)",
        "line 8: CCCl (unknown: Cl)",
        "line 9: CCBr (unknown: Br)",
    ]
    assert load(path, length=64).report["unknown_tokens"] == 0


TABLE = 'id,Smiles,note\n1,CCO,"two\nlines"\n2,CCN,\n3\n\n4,C(C)C,"a, b"\n'


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.smi", "CCO\nCCN\n\n\nCCC\n", {}),
        ("a.txt", "CCO x y\r\nCCN\r\n \r\n\r\nCCC", {}),
        ("a.smiles.gz", "CCO\rCCN\r\r\rCCC", {}),
        ("a.SMI", "\ufeffCCO nom français\nCCN\n\n\nCCC\n", {}),
        ("a.csv", TABLE, {}),
        ("a.csv.gz", TABLE, {"column": "smiles"}),
        ("a.csv", "\ufeff" + TABLE.replace(",", ";").replace("\n", "\r\n"), {}),
        ("a.csv", TABLE.replace(",", "\t"), {}),
        ("a.tsv", TABLE.replace(", ", ";").replace(",", "\t"), {"column": "Smiles"}),
        ("a.csv", "\ufeff" + TABLE.replace("Smiles", "x y"), {"column": "x y"}),
    ],
)
def test_every_kind_of_file(tmp_path: Path, name: str, text: str, options: Any) -> None:
    data = load(write(tmp_path / name, text), **options)
    assert all_texts(data) == {"CCO", "CCN", "CCC"}
    assert (data.report["read"], data.report["blank"]) == (5, 2)
    assert load(tmp_path / name, limit=2, **options).report["read"] == 2


def test_examples_have_line_numbers_and_a_limit(tmp_path: Path) -> None:
    data = load(write(tmp_path / "a.csv", TABLE + "5,bad!,\n"))
    assert data.examples["unparsable"] == ["line 8: bad!"]
    assert data.examples["blank"][0].startswith("line 5")
    data = load(write(tmp_path / "a.smi", "CC\nCO\n" + "?\n" * 7))
    assert data.report["unparsable"] == 7
    assert data.examples["unparsable"] == [f"line {n}: ?" for n in range(3, 8)]


def test_split_by_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "\n".join("C" * n for n in range(1, 30)))
    parts = [load(path, seed=seed).texts("valid") for seed in (42, 42, 43)]
    assert parts[0] == parts[1] != parts[2]
    assert load(path).texts("valid") == parts[0]
    for n, held_out in ((2, 1), (20, 1), (21, 2), (140, 7)):
        order = np.random.default_rng(7).permutation(n).tolist()
        assert split([None] * n, 7) == (order[held_out:], order[:held_out])
        own = split(["train" if i % 3 else "valid" for i in range(n)], 7)
        assert own == ([i for i in order if i % 3], [i for i in order if i % 3 == 0])


def test_package_files_are_limited_by_split_and_hashed_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two training files and a held-out one; then a file changes, as in a newer package."""
    module = tmp_path / "chemist"
    module.mkdir()
    rows = {"a": ["C", "CC", "CO"], "b": ["CN", "CF"], "c": ["CO", "CCC", "CCO", "CCN"]}
    for name, smiles in rows.items():
        write(module / f"{name}.csv", "\n".join(["Smiles", *smiles]))
    monkeypatch.syspath_prepend(tmp_path)
    files: tuple[tuple[str, Split | None], ...]
    files = (("a.csv", "train"), ("b.csv", "train"), ("c.csv", "valid"))
    place: dict[str, Any] = {"package": "chemist", "module": "chemist", "install": "?"}
    mine = PackagedMolecules(name="mine", length=8, files=files, **place)
    whole = mine.prepare(MoleculeOptions(8, seed=0))
    assert sorted(whole.texts("train")) == ["C", "CC", "CF", "CN", "CO"]
    assert sorted(whole.texts("valid")) == ["CCC", "CCN", "CCO"]  # without the one trained on
    few = mine.prepare(MoleculeOptions(8, limit=4, seed=0))
    assert sorted(few.texts("train")) == ["C", "CC", "CN", "CO"]
    before = mine.origin()
    write(module / "b.csv", "Smiles\nCN\nCP")
    os.utime(module / "b.csv", ns=(1, 1))  # another time than before, on any clock
    changed = mine.origin()["sha256"]
    assert changed["b.csv"] == hashlib.sha256(b"Smiles\nCN\nCP").hexdigest()
    assert before["sha256"] == changed | {"b.csv": hashlib.sha256(b"Smiles\nCN\nCF").hexdigest()}


def test_progress_is_called(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "CC\nCO\n" * 1100)
    calls: list[int] = []
    load(path, progress=calls.append)
    assert calls == [1000, 2000]


# The prepared file


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    text = "\n".join("C" * (1 + n % 20) + "NOF"[n % 3] for n in range(60))
    load(write(tmp_path / "raw.smi", text + "\nwrong!"), cache=False).save(tmp_path / "x.npz")
    return tmp_path / "x.npz"


def test_save_and_load(prepared: Path) -> None:
    raw = load(prepared.with_name("raw.smi"), cache=False)
    data = load(prepared)
    assert data.train.dtype == raw.train.dtype
    np.testing.assert_array_equal(data.train, raw.train)
    np.testing.assert_array_equal(data.valid, raw.valid)
    for field in ("name", "tokenizer", "length", "report", "examples", "source", "fingerprint"):
        assert getattr(data, field) == getattr(raw, field), field
    assert list(prepared.parent.glob("*.part")) == []


def test_data_without_a_report(tmp_path: Path) -> None:
    """Counts that are not given are those of the sequences."""
    x = pack(["CC", "CO", "C"], SmilesTokenizer(("C", "O")), 6)
    TokenData("mine", x[:2], x[2:], SmilesTokenizer(("C", "O")), {}, {}, {}).save(
        tmp_path / "a.npz"
    )
    found = TokenData.load(tmp_path / "a.npz")
    assert found.report == {"read": 3, "kept": 3, "train": 2, "valid": 1}
    assert "3 of 3" in found.summary()


def test_fingerprint_covers_everything_a_model_sees(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order, split, vocabulary and every row, also if rows are hashed in several chunks."""
    data = load(prepared)
    joined, tokens = np.concatenate([data.train, data.valid]), SmilesTokenizer(tuple("CFON"))
    cut = len(data.train) + 1
    variants = [
        replace(data, train=data.train[::-1]),
        replace(data, train=joined[:cut], valid=joined[cut:]),
        replace(data, tokenizer=tokens),
        *(replace(data, train=np.delete(data.train, i, 0)) for i in (2, 3, -1)),
    ]
    assert len({each.fingerprint for each in (data, *variants)}) == 1 + len(variants)
    monkeypatch.setattr("cwdfm.data.dataset._ROWS", 4)  # does not divide the 57 rows
    assert replace(data).fingerprint == data.fingerprint
    other = [data.train.copy() for _ in data.train]
    for i, x in enumerate(other):
        x[i, 1] = 2
    assert len({replace(data, train=x).fingerprint for x in (data.train, *other)}) == 1 + len(other)


def test_loads_without_torch_rdkit_the_compiler_and_sharding(prepared: Path) -> None:
    """Worker processes that prepare data would import torch for seconds.

    Importing the compiler takes as long as importing torch, and importing DTensor half of it.
    """
    code = (
        "import sys; sys.modules['rdkit'] = sys.modules['qm9pack'] = None\n"
        "from cwdfm.data import load; print(load(sys.argv[1]).report['kept'])\n"
        "print('torch' in sys.modules)\n"
        "import cwdfm.train.run, cwdfm.cli.main; cwdfm.load('qm9-mask-small')\n"
        "print([n for n in ('torch._dynamo', 'torch.distributed.tensor') if n in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(prepared)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["60", "False", "[]"]


def test_every_damaged_byte_is_detected(prepared: Path) -> None:
    good = prepared.read_bytes()
    fresh = load(prepared)
    detected = 0
    places = range(0, len(good), 3)
    for place in places:
        prepared.write_bytes(good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :])
        try:
            data = load(prepared)
        except InputError:
            detected += 1
        else:  # time stamps and the like: harmless, so the data must be whole
            assert data.fingerprint == fresh.fingerprint
            assert data.report == fresh.report
    assert detected > 0.7 * len(places)


def test_every_truncation_is_detected(prepared: Path) -> None:
    good = prepared.read_bytes()
    for size in range(0, len(good), 7):
        prepared.write_bytes(good[:size])
        with pytest.raises(InputError, match=r"damaged|not prepared by cwdfm"):
            load(prepared)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"format 2.*upgrade"),
        ({"name": "other"}, "checksum"),
        ({"train": np.ones((57, 32), dtype=np.int16)}, "checksum"),
        ({"magic": "other"}, "not prepared by cwdfm"),
    ],
)
def test_other_formats_raise(prepared: Path, change: dict[str, Any], message: str) -> None:
    """The zip archive itself is valid."""
    with np.load(prepared) as members:
        content = {name: members[name] for name in members.files}
    if "train" in change:
        content |= change
    else:
        metadata = json.loads(str(content["metadata"])) | change
        content["metadata"] = np.array(json.dumps(metadata))
    np.savez(prepared, **content)
    with pytest.raises(InputError, match=message):
        load(prepared)


def test_foreign_archives_raise(tmp_path: Path) -> None:
    np.savez(tmp_path / "foreign.npz", x=np.ones(3))
    with pytest.raises(InputError, match="not prepared by cwdfm"):
        load(tmp_path / "foreign.npz")
    np.savez(tmp_path / "pickle.npz", metadata=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path / "pickle.npz")


def test_failed_save_keeps_the_old_file(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, before = load(prepared), prepared.read_bytes()

    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(InputError, match=r"x\.npz: No space left"):
        data.save(prepared)
    assert prepared.read_bytes() == before
    assert list(prepared.parent.glob("*.part")) == []


# The cache


def test_the_cache_is_used_and_keyed_by_everything(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "a.smi", "\n".join("C" * n for n in range(1, 30)))

    def entries() -> int:
        return len(list(own_cache.glob("*.npz")))

    first = load(path)
    stamp = next(own_cache.iterdir()).stat().st_mtime_ns
    assert load(path).fingerprint == first.fingerprint
    assert entries() == 1
    assert next(own_cache.iterdir()).stat().st_mtime_ns == stamp
    variants: list[dict[str, Any]] = [{"length": 20}, {"limit": 10}, {"seed": 1}]
    variants.append({"tokenizer": SmilesTokenizer(("C", "N"))})
    for number, options in enumerate(variants, start=2):
        load(path, **options)
        assert entries() == number, options
    write(path, path.read_text() + "\nCN")
    assert load(path).report["read"] == 30
    assert entries() == 6
    load(path, cache=False, seed=9)
    load(path, cache="read", seed=9)
    assert entries() == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cwdfm.data.loader.FORMAT", 99),
        ("cwdfm.data.molecules.PREPARATION", 99),
        ("cwdfm.data.molecules.package_version", lambda _: "2099.9"),
    ],
)
def test_cache_key_contains_versions(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    path = write(tmp_path / "a.smi", "CC\nCO\nCN")
    load(path)
    monkeypatch.setattr(name, value)
    load(path)
    assert len(list(own_cache.glob("*.npz"))) == 2


def test_columns_of_one_table_are_cached_separately(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "one,two\nCC,CCO\nCN,CCN\n")
    for column, texts in (("one", {"CC", "CN"}), ("two", {"CCO", "CCN"})):
        assert all_texts(load(path, column=column)) == texts


def test_damaged_cache_entry_is_rebuilt(tmp_path: Path, own_cache: Path) -> None:
    path = write(tmp_path / "a.smi", "CC\nCO\nCN")
    first = load(path)
    entry = next(own_cache.iterdir())
    entry.write_bytes(entry.read_bytes()[:100])
    with pytest.warns(RuntimeWarning, match="damaged and will be rebuilt"):
        again = load(path)
    assert again.fingerprint == first.fingerprint
    assert load(path).fingerprint == first.fingerprint  # without a warning


def test_missing_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("CWDFM_CACHE")
    monkeypatch.setattr(Path, "home", homeless)
    path = write(tmp_path / "a.smi", "CC\nCO\nCN")
    with pytest.raises(InputError, match=r"CWDFM_CACHE.*cache=False"):
        load(path)
    assert load(path, cache=False).report["kept"] == 3


def test_unwritable_cache_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWDFM_CACHE", str(write(tmp_path / "occupied", "a file") / "cache"))
    with pytest.warns(RuntimeWarning, match="not cached.*CWDFM_CACHE"):
        assert load(write(tmp_path / "a.smi", "CC\nCO\nCN")).report["kept"] == 3


# Invalid input


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an installation without the optional dependencies."""
    for module in ("rdkit.Chem", "rdkit.rdBase"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("cwdfm.data.molecules.find_spec", lambda name: None)


@pytest.mark.usefixtures("no_package")
def test_missing_packages_name_the_extra(tmp_path: Path) -> None:
    extra = r"pip install 'cwdfm\[molecules\]'"
    with pytest.raises(InputError, match=f"rdkit.*{extra}"):
        canonical("C")
    with pytest.raises(InputError, match=f"rdkit.*{extra}"):
        load(write(tmp_path / "a.smi", "CC\nCO"))
    for name, package in (("qm9", "qm9pack"), ("moses", "molsets")):
        with pytest.raises(InputError, match=f"package {package}.*{extra}"):
            load(name)


BAD_FILES: dict[str, tuple[str, str | bytes, dict[str, Any], str]] = {
    "empty": ("a.smi", "", {}, "0 usable molecules.*read 0"),
    "empty-table": ("a.csv", "", {}, "is empty"),
    "header-only": ("a.csv", "smiles\n", {}, "0 usable molecules.*read 0"),
    "missing-column": ("a.csv", "a,b\nC,C\n", {}, "no column 'smiles', its columns are 'a', 'b'"),
    "ambiguous-column": ("a.csv", "Name,NAME\nC,C\n", {"column": "name"}, "no column 'name'"),
    "column-of-lines": ("a.smi", "C\nCC", {"column": "x"}, "column='x' is only for tables"),
    "nothing-usable": ("a.smi", "?\n!!\n", {}, "read 2, unparsable 2.*line 1: ?"),
    "one-molecule": ("a.smi", "CC\nC-C\n", {}, "1 usable molecules, but at least 2.*duplicate 1"),
    "all-too-long": ("a.smi", "CCC\nCCO", {"length": 4}, "too_long 2.*larger length"),
    "not-utf8": ("a.smi", b"CC\nCO\nC\xe9\n", {}, r"a\.smi, line 3: byte 0xe9 is not UTF-8"),
    "not-utf8-table": ("a.csv", b"smiles,n\nC,1\nCC,\xff\n", {}, "line 3: byte 0xff"),
    "utf-16": ("a.smi", "CC\nCO\n".encode("utf-16"), {}, "line 1: byte 0xff is not UTF-8"),
    "huge-field": ("a.csv", "smiles\n" + "C" * 200_000, {}, "line 2: field larger"),
    "unknown-ending": ("a.xyz", "C", {}, "cannot tell how to read"),
    "prepared-empty": ("a.npz", b"", {}, "is damaged: No data"),
    "prepared-foreign": ("a.npz", b"hello", {}, "not prepared by cwdfm"),
    "length-too-small": ("a.smi", "C", {"length": 2}, "length must be an integer >= 3, got 2"),
    "limit-zero": ("a.smi", "C", {"limit": 0}, "limit must be an integer >= 1, got 0"),
    "seed-negative": ("a.smi", "C", {"seed": -1}, "seed must be an integer >= 0, got -1"),
    "tokenizer-type": ("a.smi", "C", {"tokenizer": "C"}, "a.smi .*SmilesTokenizer, got 'C'"),
    "cache": ("a.smi", "C", {"cache": "raed"}, "cache must be True, False or .read., got"),
}


@pytest.mark.parametrize("row", BAD_FILES)
def test_invalid_files(tmp_path: Path, row: str) -> None:
    name, text, options, message = BAD_FILES[row]
    with pytest.raises(InputError, match=f"(?s){message}"):
        load(write(tmp_path / name, text), **options)


def test_invalid_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi.gz", "\n".join("C" * n for n in range(1, 200)))
    whole = path.read_bytes()
    for raw in (whole[:-20], b"plain text\n", whole[:30] + b"\xff" * 20 + whole[50:]):
        path.write_bytes(raw)
        with pytest.raises(InputError, match="not a complete gzip file"):
            load(path, length=300)


CARBON = SmilesTokenizer(("C",))


def reload(**options: Any) -> Callable[[Path], object]:
    return lambda folder: load(folder / "x.npz", **options)


def other_valid(x: Any) -> Callable[[Path], object]:
    return lambda folder: replace(load(folder / "x.npz"), valid=x)


BAD_CALLS: dict[str, tuple[Callable[[Path], object], str]] = {
    "not-a-path": (lambda _: load(3), "'qm9'.*got int 3"),  # type: ignore[arg-type]
    "unknown-name": (lambda _: load("qm8"), "neither a dataset nor a file.*'qm9', 'moses'"),
    "missing-file": (lambda p: load(p / "none.smi"), "neither a dataset nor a file"),
    "missing-prepared": (lambda p: load(p / "none.npz"), "does not exist"),
    "folder": (lambda p: load(p), "is a folder"),
    "column-of-qm9": (lambda _: load("qm9", column="SMILES"), "column='SMILES'.*'qm9'"),
    "prepared-length": (reload(length=40), "prepared with length=32.*40"),
    "prepared-limit": (reload(limit=4), "prepared with limit=None.*4"),
    "prepared-seed": (reload(seed=4), "prepared with seed=42.*4"),
    "prepared-tokenizer": (reload(tokenizer=CARBON), "different tokenizer.*raw data"),
    "prepared-otherwise": (
        reload(length=40, limit=4, seed=42),
        r"length=32.* 40.*limit=None.* 4.*\(`length=32`, `limit=None`\).*raw data",
    ),
    "prepared-for-another-model": (
        reload(length=40, tokenizer=CARBON),
        "length=32.* 40.*different tokenizer.*raw data",
    ),
    "save-ending": (lambda p: load(p / "x.npz").save(p / "x.dat"), r"stored as \.npz"),
    "unknown-split": (
        lambda p: load(p / "x.npz").texts("test"),  # type: ignore[arg-type]
        "one of 'train', 'valid', got 'test'",
    ),
    "unknown-token": (lambda _: CARBON.encode("CBrCl"), "vocabulary of 4: Br, Cl"),
    "mask-decoded": (lambda _: CARBON.decode([1, 3, 4]), "id 4 cannot.*mask"),
    "negative-decoded": (lambda _: CARBON.decode([-1]), "id -1 cannot"),
    "twice-the-token": (lambda _: SmilesTokenizer(("C", "C")), "must be distinct"),
    "special-as-token": (lambda _: SmilesTokenizer(("C", "<pad>")), "'<pad>'"),
    "no-tokens": (lambda _: SmilesTokenizer(()), "at least one"),
    "too-long-to-pack": (lambda _: CARBON.pack([3] * 9, 10), "length >= 11"),
    "unknown-kind": (lambda _: tokenizer_from_json({"kind": "bpe"}), "'bpe'"),
    "tokenizer-json": (
        lambda _: tokenizer_from_json({"kind": "smiles", "tokens": ["C"]}),
        "<pad>.*<bos>.*<eos>",
    ),
    "canonical-type": (lambda _: canonical(3), "must be a string, got int 3"),  # type: ignore[arg-type]
    "ids-out-of-range": (other_valid(np.full((1, 32), 7, "i2")), r"7 to 7.*0\.\.6"),
    "wrong-array": (other_valid(np.zeros((1, 31), "i2")), r"\(1, 31\)"),
}


@pytest.mark.parametrize("row", BAD_CALLS)
def test_invalid_arguments(prepared: Path, row: str) -> None:
    act, message = BAD_CALLS[row]
    with pytest.raises(InputError, match=f"(?s){message}"):
        act(prepared.parent)


# Randomized SMILES


@pytest.fixture(scope="module")
def some() -> TokenData:
    return load("qm9", limit=400, cache=False)


@needs_qm9
def test_randomized_smiles_are_the_same_molecules(some: TokenData) -> None:
    randomized = randomize(some, 5, seed=3)
    for own, texts in (
        (some.texts("train") * 5, randomized.texts("train")),
        (some.texts("valid"), randomized.texts("valid")),
    ):
        assert sorted(str(canonical(text)) for text in texts) == sorted(own)
    # Small molecules have few SMILES, but most have several.
    assert len(set(randomized.texts("train"))) > 2.5 * len(some.train)
    assert randomized.tokenizer.identity == some.tokenizer.identity
    assert randomized.fingerprint == randomize(some, 5, seed=3).fingerprint
    assert randomized.fingerprint != randomize(some, 5, seed=4).fingerprint
    assert randomized.source == some.source | {"spellings": 5, "spelling_seed": 3}
    # The order is random: neighbors are rarely the same molecule.
    known = [canonical(text) for text in randomized.texts("train")]
    assert sum(a == b for a, b in pairwise(known)) < 0.05 * len(known)


def test_equal_molecules_are_randomized_independently() -> None:
    tokenizer = SmilesTokenizer.build([ASPIRIN])
    x = pack([ASPIRIN] * 40, tokenizer, 40)
    mine = TokenData("mine", x, x[:0], tokenizer, {"read": 40, "kept": 40}, {}, {})
    assert len(set(randomize(mine, 1).texts("train"))) > 20  # of hundreds of possible strings


@pytest.mark.parametrize(
    ("tokens", "length", "smiles", "others"),
    [
        ("C O", 8, "CCO", {"CCO", "OCC"}),  # C(C)O has unknown tokens
        ("C ( )", 8, "CC(C)C", {"CC(C)C"}),  # C(C)(C)C is too long
        ("C ( )", 10, "CC(C)C", {"CC(C)C", "C(C)(C)C"}),
    ],
)
def test_randomized_smiles_that_do_not_fit_are_replaced_by_the_original(
    tokens: str, length: int, smiles: str, others: set[str]
) -> None:
    tokenizer = SmilesTokenizer(tuple(tokens.split()))
    x = pack([smiles], tokenizer, length)
    mine = TokenData("mine", x, x[:0], tokenizer, {"read": 1, "kept": 1}, {}, {})
    # Each form has probability >= 1/4, so one is missed with probability < 10^-24.
    assert set(randomize(mine, 200).texts("train")) == others


def test_text_cannot_be_randomized(tmp_path: Path) -> None:
    text = load(write(tmp_path / "a.txt", "some words " * 50), length=16, tokenizer="bytes")
    with pytest.raises(InputError, match=r"bytes tokens.*randomized SMILES"):
        randomize(text, 2)


@needs_qm9
def test_reference_recognizes_randomized_molecules(some: TokenData, tmp_path: Path) -> None:
    randomize(some, 2).save(tmp_path / "randomized.npz")
    found = load_reference(str(tmp_path / "randomized.npz"))
    assert set(found.training) == set(some.texts("train"))


def test_rows_are_decoded_as_one_by_one() -> None:
    """With tokens of several characters, and special tokens and ends anywhere."""
    x_BN = np.random.default_rng(0).integers(0, 8, (500, 9)).astype(np.int16)
    for tokenizer in (SmilesTokenizer(("C", "Cl", "[C@@H]", "c", "1")), ByteTokenizer()):
        assert tokenizer.decode_rows(x_BN) == [tokenizer.decode(row) for row in x_BN.tolist()]
        assert tokenizer.decode_rows(x_BN[:0]) == []
