"""Data with one text per sequence: what is read, the layout of sequences, and the commands."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwdfm.cli import prepare as prepare_command
from cwdfm.cli import sample, train
from cwdfm.data import (
    ByteTokenizer,
    CharacterTokenizer,
    RowTokenizer,
    TokenData,
    load,
    tokenizer_from_json,
)
from cwdfm.data.text.pack import held_out_padding
from cwdfm.errors import InputError
from cwdfm.likelihood.dataset import load_held_out
from cwdfm.pretrained import load as load_model
from cwdfm.sample_file import read_samples
from tests.support.command import rejected

LENGTH = 12
ROWS = ["MKV" + "ACDEFGHIK"[: i % 10] + "LMNPQRSTVWY"[i % 11] for i in range(45)]  # 4 to 13
KEPT = [row for row in ROWS if len(row) < LENGTH]


def fasta(rows: list[str]) -> str:
    """Sequences on lines of five letters, with names and comments."""
    lines = [
        [f">{i} a protein", *(row[k : k + 5] for k in range(0, len(row), 5))]
        for i, row in enumerate(rows)
    ]
    return "\n".join(["; made up", *(line for record in lines for line in record)]) + "\n"


def check(data: TokenData, tokenizer: str) -> None:
    """Each row is one sequence: its ids, and end-of-text tokens up to the length."""
    inner = CharacterTokenizer.build(ROWS) if tokenizer == "chars" else ByteTokenizer()
    assert data.tokenizer == RowTokenizer(inner)
    end = inner.eos_id
    expected = {(*inner.encode(row), *[end] * (LENGTH - len(row))) for row in KEPT}
    found = [tuple(row) for row in np.concatenate([data.train, data.valid]).tolist()]
    assert len(found) == len(KEPT)
    assert set(found) == expected
    assert sorted(data.texts("train") + data.texts("valid")) == sorted(KEPT)
    counts = {"read": 46, "blank": 1, "too_long": len(ROWS) - len(KEPT), "kept": len(KEPT)}
    tokens = sum(map(len, KEPT)) + len(KEPT)
    counts |= {"train": len(data.train), "valid": len(data.valid), "tokens": tokens}
    assert data.report == counts | {"filled": len(KEPT) * LENGTH - tokens}
    assert 1 <= len(data.valid) <= 3  # one row of twenty, unless it is too long
    assert held_out_padding(data) is None
    assert "--length" in data.summary()


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.txt", "\n".join([*ROWS, ""]) + "\n", {}),
        ("a.csv", "id,Seq\n" + "".join(f"1, {row}\n" for row in [*ROWS, ""]), {"column": "seq"}),
        ("a.jsonl", "".join(json.dumps({"text": r}) + "\n" for r in [*ROWS, " "]), {}),
        ("a.fasta", fasta([*ROWS, ""]), {"documents": None}),
        ("a.faa.gz", fasta([*ROWS, ""]), {}),
    ],
)
def test_every_row_is_a_sequence(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], tokenizer: str
) -> None:
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(content)
    given: dict[str, Any] = {"documents": "rows", "length": LENGTH, "tokenizer": tokenizer}
    given |= options
    check(load(tmp_path / name, **given, cache=False), tokenizer)
    check(load(tmp_path / name, **given), tokenizer)  # in the cache
    check(load(tmp_path / name, **given), tokenizer)


def test_fasta_has_rows_of_characters_by_default(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(fasta([*ROWS, ""]))
    check(load(tmp_path / "a.fa", length=LENGTH), "chars")


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_default_length_has_room_for_the_longest_row(tmp_path: Path, tokenizer: str) -> None:
    file = tmp_path / "a.fa"
    for longest, length in ((15, 16), (16, 24), (1016, 1024), (1030, 1024)):
        file.write_text(fasta(["MKV", "M" * longest, "VK"]))
        data = load(file, tokenizer=tokenizer, cache=False)
        assert data.length == length
        assert data.report["kept"] == (2 if longest >= length else 3)
    out = tmp_path / "out"
    prepare_command.main([str(file), "--out", str(out), "--workers", "1"])
    assert load(out).length == 1024


def test_row_tokenizer() -> None:
    inner = CharacterTokenizer.build(["ACGT"])
    tokenizer = RowTokenizer(inner)
    assert tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json()))) == tokenizer
    assert not tokenizer.has_line_breaks
    assert RowTokenizer(CharacterTokenizer.build(["A\u2028"])).has_line_breaks
    assert RowTokenizer(ByteTokenizer()).has_line_breaks
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (5, 4, 4)
    assert tokenizer.decode([0, 1, 4, 2, 4]) == "AC"  # what follows the end is padding
    template = tokenizer.encode_template("A[2]T")
    assert tokenizer.frame(template, 6, whole=True) == [0, None, None, 3, 4, 4]
    assert tokenizer.frame([0, 1], 4, whole=False) == [0, 1, None, None]
    for whole in (True, False):
        with pytest.raises(InputError, match="room for 3"):
            tokenizer.frame([0] * 4, 4, whole=whole)
    for stored in ({"kind": "smiles"}, tokenizer.to_json()):
        with pytest.raises(InputError):
            tokenizer_from_json({"kind": "rows", "of": stored})


def test_own_arrays(tmp_path: Path) -> None:
    """A user's int64 arrays are data that commands read with a model's tokenizer and length."""
    tokenizer = RowTokenizer(CharacterTokenizer("0123456789"))
    rows = (np.arange(40)[:, None] + np.arange(8)) % 10
    rows[:, -1] = tokenizer.eos_id
    data = TokenData("digits", rows[:30], rows[30:], tokenizer)
    assert data.train.dtype == data.valid.dtype == np.int16
    data.save(tmp_path / "digits.npz")
    for options in ({}, {"length": 8, "tokenizer": tokenizer}, {"length": 8}):
        found = load(tmp_path / "digits.npz", **options)
        np.testing.assert_array_equal(found.valid, rows[30:])
        assert found.texts("valid", 1) == ["0123456"]
    with pytest.raises(InputError, match=r"length=8.*9 was requested"):
        load(tmp_path / "digits.npz", length=9)
    untyped: Any = {"name": "digits", "train": rows, "valid": rows, "tokenizer": tokenizer}
    wrong: list[dict[str, Any]] = [
        {"train": rows.astype(float)},
        {"train": rows[0]},
        {"valid": rows[:, :4]},
        {"valid": rows.tolist()},
        {"train": rows + 2**16},
        {"tokenizer": "bytes"},
    ]
    for change in wrong:
        with pytest.raises(InputError, match=next(iter(change))):
            TokenData(**untyped | change)


def test_invalid_rows(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text("MKV\n>b\nMKV\n")
    (tmp_path / "b.fasta").write_text(fasta(["MKV" * 9] * 3))
    (tmp_path / "c.csv").write_text("id,seq\n1,MKV\n")
    (tmp_path / "d.csv").write_text('id,text\n1,"MKV\n2,MKV\n')
    for name, words, message in (
        ("a.fasta", (), "line 1: a FASTA file must start"),
        ("b.fasta", ("--length", 9), "3 longer than length 9"),
        ("b.fasta", ("--documents", "lines"), "--documents lines"),
        ("b.fasta", ("--column", "seq"), "--column seq"),
        ("c.csv", ("--documents", "rows"), "'seq'"),
        ("d.csv", ("--documents", "rows"), "quotes"),
        ("c.csv", ("--documents", "lines"), "must end in .npz"),
    ):
        out = tmp_path / "out"
        assert message in rejected("prepare", tmp_path / name, "--out", out, "--workers", 1, *words)
        assert not out.exists()


def test_commands(tmp_path: Path) -> None:
    """A model of rows knows that its data have one text per sequence."""
    table, rows, run = tmp_path / "my.csv", tmp_path / "rows", tmp_path / "run"
    table.write_text("seq,n\n" + "".join(f"{row},1\n" for row in ROWS))
    how = ["--documents", "rows", "--column", "seq", "--tokenizer", "chars"]
    words = [*how, "--length", str(LENGTH), "--out", str(rows), "--workers", "1"]
    prepare_command.main([str(table), *words])
    tiny = ["--steps", "2", "--batch-size", "4", "--validation-rows", "2", "--elbo-rows", "2"]
    tiny += ["--previews", "2", "--preview-steps", "2", "--no-tensorboard"]
    train.main(["text-debug", "--out", str(run), "--data", str(rows), *tiny])
    raw = ["--data", str(table), "--length", str(LENGTH), *how]  # gives the same model
    train.main(["text-debug", "--out", str(tmp_path / "raw"), *raw, *tiny])
    weights = [place / "model" / "model.safetensors" for place in (run, tmp_path / "raw")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    wrong = ("--data", table, "--documents", "x")
    assert "--documents" in rejected("train", "text-debug", "--out", tmp_path / "x", *wrong)
    trained = load_model(run / "model")
    assert isinstance(trained.tokenizer, RowTokenizer)
    (tmp_path / "new.txt").write_text("\n".join(ROWS))
    held_out = load_held_out(trained, str(tmp_path / "new.txt"), "all")
    assert sorted(held_out.texts("valid")) == sorted(KEPT)
    out = tmp_path / "a.txt"
    words = ["--n", "3", "--steps", "4", "--template", "MKV[3]"]
    sample.main([str(run), "--out", str(out), *words])
    assert all(text.startswith("MKV") and len(text) <= 6 for text in read_samples(out).texts)
