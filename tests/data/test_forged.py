"""Files from outside: forged metadata, named pipes, decompression bombs, flipped bits."""

import base64
import hashlib
import json
import lzma
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.data import SmilesTokenizer, TextFiles, TokenData, prepare
from cwdfm.data.text.prepared import open_prepared
from cwdfm.data.tokenizer import tokenizer_from_json
from cwdfm.errors import InputError
from cwdfm.files import read_json
from cwdfm.method import Flow
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.sample_file import PartialSamples, read_samples
from cwdfm.train.checkpoint import load_latest, save_checkpoint
from experiments.chaos.forge import forgeries, read_document, write_document

SETTINGS = {"n": 2, "reject_below": 0.5}


def trained() -> cwdfm.Pretrained:
    shape = DiTConfig(6, width=8, depth=1, heads=1, conditioning=4)
    flow = Flow(cwdfm.MaskSource(5), cwdfm.Linear())
    return cwdfm.Pretrained(DiT(shape).eval(), flow, SmilesTokenizer(("C", "N")), 8, card={"a": 1})


def model(folder: Path) -> Callable[[], object]:
    trained().save_pretrained(folder)
    return lambda: cwdfm.load(folder)


def checkpoint(folder: Path) -> Callable[[], object]:
    meta = {"step": 3, "best": 0.5, "best_step": 3, "losses": [1.0], "data": "d", "config": {}}
    save_checkpoint(folder, trained(), {"a": torch.ones(2)}, meta, keep=1)
    return lambda: (load_latest(folder), cwdfm.load(folder / "step-00000003"))


def text(folder: Path) -> Callable[[], object]:
    (folder.parent / "a.txt").write_text("word " * 100)
    prepare(TextFiles.of(folder.parent / "a.txt"), "chars", 8, folder)
    return lambda: open_prepared(folder).summary()


def molecules(folder: Path) -> Callable[[], object]:
    rows = np.zeros((2, 4), np.int16)
    report = {"read": 4, "kept": 4, "train": 2, "valid": 2}
    data = TokenData("a", rows, rows, SmilesTokenizer(("C",)), report, {"long": ["C"]}, {"b": 1})
    folder.mkdir()
    data.save(folder / "a.npz")
    return lambda: TokenData.load(folder / "a.npz").summary()


def samples(folder: Path) -> Callable[[], object]:
    folder.mkdir()
    lines = [{"options": {"n": 1}, "weights": "x"}, {"text": "C", "tokens": [1, 3, 2]}]
    write_document(folder / "a.jsonl", lines)
    return lambda: read_samples(folder / "a.jsonl").options


def batches(folder: Path) -> Callable[[], object]:
    partial = PartialSamples(folder / "a.smi", SETTINGS)
    folder.mkdir()
    partial.open(force=False)
    record = {"text": "C", "tokens": [1], "evaluations": 1, "plausibility": 0.5}
    partial.add({0: record, 1: record})

    def read() -> None:
        partial.open(force=True)
        for found in partial.records().values():
            assert found["text"] + str(found["evaluations"] + found["plausibility"])

    return read


FILES: dict[str, tuple[Callable[[Path], Callable[[], object]], str]] = {
    "model": (model, "config.json"),
    "checkpoint": (checkpoint, "step-00000003/meta.json"),
    "text": (text, "meta.json"),
    "molecules": (molecules, "a.npz"),
    "samples": (samples, "a.jsonl"),
    "batches": (batches, "a.smi.parts/0-1.json"),
}


@pytest.mark.parametrize("kind", FILES)
def test_forged_metadata_are_input_errors(tmp_path: Path, kind: str) -> None:
    """One change at a time: the file is rejected with an InputError, or read."""
    make, name = FILES[kind]
    read, path = make(tmp_path / "made"), tmp_path / "made" / name
    original = read_document(path)
    write_document(path, original)
    read()
    wrong, rejected = [], 0
    for change, forged in forgeries(original):
        write_document(path, forged)
        try:
            with warnings.catch_warnings(action="ignore"):
                read()
        except InputError:
            rejected += 1
        except Exception as error:
            wrong.append(f"{change}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert rejected or kind == "batches"  # damaged batches are sampled again


def test_remains_of_a_killed_save_are_replaced(tmp_path: Path) -> None:
    """safetensors writes a temporary file of its own, which a kill leaves in the folder."""
    (tmp_path / ".part-00000003").mkdir()
    for name in (".tmpA1b2C3", "model.safetensors.7-0123abcd.part", "config.json"):
        (tmp_path / ".part-00000003" / name).touch()
    checkpoint(tmp_path)()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


@pytest.mark.parametrize("name", ["/etc/hostname", "../a.txt", "other.json/../a.json"])
def test_checkpoints_name_only_their_own_files(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path)
    path = tmp_path / "step-00000003" / "meta.json"
    meta = json.loads(path.read_text())
    meta["sha256"][name] = "0"
    path.write_text(json.dumps(meta))
    with pytest.raises(InputError, match="is not a file of a checkpoint"):
        cwdfm.load(tmp_path / "step-00000003")


@pytest.mark.parametrize("kind", ["model", "checkpoint", "text", "molecules", "batches"])
def test_named_pipes_are_not_read(tmp_path: Path, kind: str) -> None:
    """Reading one would wait forever."""
    read = FILES[kind][0](tmp_path / "made")

    def attempt() -> None:
        with suppress(InputError):
            read()

    for path in sorted(path for path in (tmp_path / "made").rglob("*") if path.is_file()):
        saved = path.rename(tmp_path / "saved")
        os.mkfifo(path)
        with warnings.catch_warnings(action="ignore"):
            reader = Thread(target=attempt, daemon=True)
            reader.start()
            reader.join(300)
            assert not reader.is_alive(), path
        path.unlink()
        saved.rename(path)


def test_compressed_tokenizers_have_a_limit() -> None:
    """A gigabyte of zeros takes 150 kB compressed."""
    compressor = lzma.LZMACompressor(preset=0)
    zeros = bytes(1 << 24)
    packed = b"".join([*(compressor.compress(zeros) for _ in range(12)), compressor.flush()])
    stored = {
        "kind": "fast",
        "end": "a",
        "sha256": hashlib.sha256(bytes(12 << 24)).hexdigest(),
        "tokenizer.json.xz": base64.b85encode(packed).decode(),
    }
    with pytest.raises(InputError, match="decompressed"):
        tokenizer_from_json(stored)


def test_large_and_nested_json_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested"):
        read_json(path)
    path.write_text(json.dumps("x" * 100))
    assert read_json(path, 102) == "x" * 100
    with pytest.raises(ValueError, match="102 bytes"):
        read_json(path, 101)


def test_flipped_bits_of_a_model_are_noticed(tmp_path: Path) -> None:
    model(tmp_path / "whole")
    cwdfm.load(tmp_path / "whole")
    rng = np.random.default_rng(0)
    for name in ("model.safetensors", "config.json"):
        content = (tmp_path / "whole" / name).read_bytes()
        for place in rng.integers(len(content), size=20):
            shutil.copytree(tmp_path / "whole", tmp_path / "copy", dirs_exist_ok=True)
            changed = bytearray(content)
            changed[place] ^= 1 << int(rng.integers(8))
            if name == "config.json" and changed[place : place + 1].isspace():
                continue  # white space between values has no meaning
            (tmp_path / "copy" / name).write_bytes(changed)
            with pytest.raises(InputError):
                cwdfm.load(tmp_path / "copy")


def test_files_of_a_model_have_the_same_permissions(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    modes = {path.stat().st_mode for path in (tmp_path / "step-00000003").iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode}
