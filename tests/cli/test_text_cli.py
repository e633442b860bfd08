"""The commands on text: prepare, train, sample with prompts, templates and other lengths."""

from pathlib import Path

import pytest
import torch

import cwdfm
from cwdfm import data
from cwdfm.cli import prepare, sample, train
from cwdfm.generation import generate
from cwdfm.sample_file import read_samples
from cwdfm.trained import prompt_tokens

TINY = ["--steps", "4", "--batch-size", "4", "--log-every", "2", "--validate-every", "4"]
TINY += ["--validation-rows", "4", "--elbo-rows", "2", "--previews", "2", "--preview-steps", "3"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text that the command prepared in windows of 32 bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(30):
        (folder / f"{i}.txt").write_text(
            f"The {i}th story. Once upon a time there were {i} cats. " * 4
        )
    out = folder / "prepared"
    flags = ["--tokenizer", "bytes", "--length", "32", "--out", str(out), "--workers", "1"]
    prepare.main([str(folder / "*.txt"), *flags])
    return out


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    flags = ["--data", str(corpus), "--no-tensorboard", *TINY]  # the length is that of the data
    train.main(["text-debug", "--out", str(out), *flags])
    return out


def test_prepared_text_is_complete(corpus: Path) -> None:
    found = data.load(corpus)
    assert found.length == 32
    assert found.report["kept"] == 30
    total = sum(len((corpus.parent / f"{i}.txt").read_bytes()) + 1 for i in range(30))
    held = (len(found.train) + len(found.valid)) * 32
    assert 0 <= held - total < 64  # the last window of each split is filled up


def test_preparing_again_changes_nothing(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in corpus.iterdir()}
    flags = ["--tokenizer", "bytes", "--length", "32", "--out", str(corpus), "--workers", "1"]
    prepare.main([str(corpus.parent / "*.txt"), *flags])
    assert before == {path.name: path.stat().st_mtime_ns for path in corpus.iterdir()}
    assert "written" in capsys.readouterr().out


@pytest.mark.parametrize("solver", ["euler", "neighbor", "entropy"])
def test_template_holes_are_filled(trained: Path, tmp_path: Path, solver: str) -> None:
    """A template sets the length of the sample, which may be below the model's length."""
    out = tmp_path / "a.jsonl"
    flags = ["--n", "6", "--steps", "5", "--solver", solver, "--out", str(out)]
    sample.main([str(trained), *flags, "--template", "The [4] of [[x] [3]!"])
    file = read_samples(out)
    assert file.tokens is not None
    assert file.head["tokenizer"] == "bytes"
    assert file.head["length"] == len(file.tokens[0]) < cwdfm.load(trained).length
    pattern: list[int | None] = [*b"The ", *[None] * 4, *b" of [x] ", *[None] * 3, *b"!"]
    for row in file.tokens:
        assert len(row) == len(pattern)
        assert all(want in (None, got) for want, got in zip(pattern, row, strict=True))


def test_template_longer_than_the_windows_needs_length(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    line = [str(trained), "--n", "2", "--steps", "2", "--out", str(out), "--template", "The [66]"]
    with pytest.raises(cwdfm.InputError, match=r"the template has 70 tokens.*--length 70"):
        sample.main(line)
    with pytest.raises(cwdfm.InputError, match=r"has 70 tokens.*--length is 71"):
        sample.main([*line, "--length", "71"])
    sample.main([*line, "--length", "70"])
    file = read_samples(out)
    assert file.head["length"] == 70
    assert [len(row) for row in file.tokens or []] == [70, 70]


def test_every_sample_starts_with_the_prompt(trained: Path) -> None:
    model = cwdfm.load(trained)
    out = generate(model, cwdfm.Euler(), n=4, steps=4, prompt="Once upon")
    assert out.tokens.shape == (4, 32)
    assert all(bytes(row[:9]) == b"Once upon" for row in out.tokens.tolist())
    assert len(read_samples(trained / "previews" / "step-00000004.jsonl").texts) == 2


@pytest.mark.parametrize("length", [5, 32, 70])
def test_other_lengths(trained: Path, tmp_path: Path, length: int) -> None:
    out, flags = tmp_path / "a.jsonl", ["--n", "2", "--steps", "3", "--length", str(length)]
    sample.main([str(trained), *flags, "--out", str(out)])
    assert [len(row) for row in read_samples(out).tokens or []] == [length, length]


def test_text_of_the_window_length_leaves_nothing_to_sample(trained: Path) -> None:
    model = cwdfm.load(trained)
    tokens, fixed = prompt_tokens(model, prompt="x" * 31)
    assert tokens is not None
    assert fixed is not None
    assert torch.equal(fixed, torch.arange(32) < 31)


def test_corpus_with_another_vocabulary_is_an_error(corpus: Path, tmp_path: Path) -> None:
    """A molecule model cannot be evaluated on text."""
    flags = ["--init", "qm9-mask-small", "--data", str(corpus), "--out", str(tmp_path / "o")]
    with pytest.raises(cwdfm.InputError, match=r"different tokenizer .*requested .'smiles'"):
        train.main(["finetune", *flags])
