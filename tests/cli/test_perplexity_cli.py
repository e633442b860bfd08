"""`cwdfm perplexity`: padding does not count, data parts are chosen, wrong input is rejected."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.cli import perplexity
from cwdfm.data import ByteTokenizer, TextFiles, load, prepare
from cwdfm.data.text.pack import held_out_padding
from cwdfm.distributed import process_group
from cwdfm.files import held, lock_file
from cwdfm.likelihood.dataset import dataset_likelihood
from cwdfm.method import Flow, Method
from cwdfm.report.table import format_estimate
from tests.support.command import rejected
from tests.support.tiny import MODEL_LENGTH as LENGTH
from tests.support.tiny import tiny_model

pytest.importorskip("safetensors", reason="needs the extra 'cli'")
pytest.importorskip("tyro", reason="needs the extra 'cli'")

VOCAB = 257
METHODS: dict[str, Method] = {
    "mask": Flow(cwdfm.MaskSource(VOCAB), cwdfm.Polynomial(2.0)),
    "uniform": Flow(cwdfm.UniformSource(VOCAB), cwdfm.Polynomial(2.0)),
    "autoregressive": Autoregressive(VOCAB),
    "blocks": BlockDiffusion(cwdfm.MaskSource(VOCAB), cwdfm.Polynomial(1.0), 4),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, method in METHODS.items():
        tiny_model(ByteTokenizer(), method=method).save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep prepared data out of the user's cache."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))


def scored(model: Path, data: str | Path, *flags: str, out: Path) -> dict[str, Any]:
    perplexity.main([str(model), "--data", str(data), "--out", str(out), "--force", *flags])
    found: dict[str, Any] = json.loads(out.read_text())["results"][0]
    return found


@pytest.mark.parametrize("name", METHODS)
def test_padding_of_a_short_file_does_not_count(models: Path, tmp_path: Path, name: str) -> None:
    text = "whale"
    (tmp_path / "tiny.txt").write_text(text)
    found = scored(
        models / name, tmp_path / "tiny.txt", "--part", "all", out=tmp_path / "bound.json"
    )
    assert found["tokens"] == len(text) + 1  # including the end token
    assert found["standard_error"] is None
    trained = cwdfm.load(models / name)
    assert found["exact"] == trained.method.exact
    ids = torch.tensor([[*text.encode(), VOCAB - 1]])
    padded = torch.cat([ids, torch.full((1, LENGTH - 6), VOCAB - 1)], dim=1)
    place = torch.arange(LENGTH)
    if name == "autoregressive":  # equal to a shorter sequence
        truth = float(trained.method.likelihood(trained.model, ids).nats_B)
    elif name == "blocks":  # the first block, and the text in the second
        block = trained.method.likelihood(trained.model, padded[:, :4])
        given = ((place < 4) | (place >= 6))[None, :8]
        rest = trained.method.likelihood(trained.model, padded[:, :8], fixed=given)
        truth = float(block.nats_B + rest.nats_B)
    else:
        given = (place >= 6)[None]
        truth = float(trained.method.likelihood(trained.model, padded, fixed=given).nats_B)
    assert found["nats_per_token"] == pytest.approx(truth / 6, rel=1e-5)


def test_the_output_file_of_another_run_is_kept(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, text = tmp_path / "a.json", tmp_path / "a.txt"
    text.write_text("word " * 100)
    line = [str(models / "mask"), "--data", str(text), "--out", str(out)]
    with held(lock_file(out)), pytest.raises(cwdfm.InputError, match=rf"another run .*{out}"):
        perplexity.main([*line, "--force"])

    def finish_meanwhile(device: str) -> Any:
        out.write_text("of another run")
        return process_group(device)

    monkeypatch.setattr(perplexity, "process_group", finish_meanwhile)
    with pytest.raises(cwdfm.InputError, match=rf"{out} already exists.*--force"):
        perplexity.main(line)
    assert out.read_text() == "of another run"
    assert not lock_file(out).exists()


@pytest.mark.parametrize("name", METHODS)
def test_one_padded_sequence_among_many(models: Path, name: str) -> None:
    """The result does not depend on the batch size."""
    rows = np.random.default_rng(0).integers(VOCAB - 1, size=(7, LENGTH)).astype(np.int16)
    trained = cwdfm.load(models / name)
    flow = (trained.method, trained.model)
    bounds = [
        dataset_likelihood(*flow, rows, padding=(3, 9), draws=3, batch_size=size)
        for size in (1, 4, 50)
    ]
    assert {b.tokens for b in bounds} == {7 * LENGTH - 9}
    for bound in bounds[1:]:
        assert bound.nats_per_token == pytest.approx(bounds[0].nats_per_token, rel=1e-5)
        assert bound.standard_error == pytest.approx(bounds[0].standard_error, rel=1e-4)
    plain = dataset_likelihood(*flow, np.delete(rows, 3, axis=0), draws=3)
    assert plain.nats_per_token == pytest.approx(bounds[0].nats_per_token, rel=0.2)
    limited = dataset_likelihood(*flow, rows, padding=(3, 9), limit=2, draws=3)  # rows 0 and 3
    assert limited.tokens == 2 * LENGTH - 9


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (1599.7, 151.2, "1,600 ± 151"),
        (14.7223, 0.2149, "14.72 ± 0.21"),
        (17.54321, None, "17.543"),
        (1234567.8, None, "1,234,568"),
    ],
)
def test_numbers_are_rounded_to_their_error(value: float, error: float | None, shown: str) -> None:
    assert format_estimate(value, error) == shown


def test_too_large_radius_suggests_what_the_command_allows(models: Path) -> None:
    """boundary="cut" is available in the library only."""
    flags = ["--data", "nowhere.txt", "--weight", "neighbor", "--radius", "8"]
    with pytest.raises(cwdfm.InputError, match=r"^--radius 8 is .*; use --radius below 16/2$"):
        perplexity.main([str(models / "mask"), *flags])


@pytest.mark.parametrize("flags", ["--draws 8", "--seed=1"])
def test_options_of_random_draws_are_rejected_for_exact_likelihoods(
    models: Path, tmp_path: Path, flags: str
) -> None:
    """The error comes before the data is read, which does not exist here."""
    method = BlockDiffusion(cwdfm.MaskSource(VOCAB), cwdfm.Linear(), 1)
    tiny_model(ByteTokenizer(), method=method).save_pretrained(tmp_path / "b")
    for model in (models / "autoregressive", tmp_path / "b"):
        expected = rf"{flags[:6]}.*{model}.* exact"
        with pytest.raises(cwdfm.InputError, match=expected):
            perplexity.main([str(model), "--data", "nowhere.txt", *flags.split()])
    weighted = [str(models / "autoregressive"), "--data", "nowhere.txt", "--weight", "neighbor"]
    with pytest.raises(cwdfm.InputError, match="trained as Autoregressive"):
        perplexity.main([*weighted, *flags.split()])
    with pytest.raises(cwdfm.InputError, match="does not exist"):
        perplexity.main([str(models / "blocks"), "--data", "nowhere.txt", *flags.split()])


def windows(text: str) -> int:
    return -(-(len(text) + 1) // LENGTH)


@pytest.mark.parametrize("size", [1, 14, 15, 16, 30, 31, 100, 333, 351])
def test_position_of_the_padding(tmp_path: Path, size: int) -> None:
    text = "x" * size
    (tmp_path / "a.txt").write_text(text)
    data = load(tmp_path / "a.txt", tokenizer="bytes", length=LENGTH, part="all")
    count = windows(text) * LENGTH - size - 1
    assert data.report["filled"] == count
    found = held_out_padding(data)
    if not count:
        assert found is None
        return
    assert found is not None
    assert found[1] == count
    ends = np.asarray(data.valid) == VOCAB - 1
    assert ends.sum(1)[found[0]] == ends.sum() == count + 1


def test_position_of_the_padding_with_padded_training_sequences(tmp_path: Path) -> None:
    lines = ["y" * (3 + n % 7) for n in range(200)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    data = load(tmp_path / "a.txt", tokenizer="bytes", length=LENGTH, documents="lines")
    last = np.asarray(data.train[-1])
    to_train = LENGTH - 2 - int(np.flatnonzero(last != VOCAB - 1)[-1])
    found = held_out_padding(data)
    assert (found[1] if found else 0) == data.report["filled"] - to_train
    (tmp_path / "one.txt").write_text("z" * 500)  # its last sequences are held out
    data = load(tmp_path / "one.txt", tokenizer="bytes", length=LENGTH)
    assert held_out_padding(data) == (0, windows("z" * 500) * LENGTH - 501)


def test_held_out_part_does_not_need_the_training_part(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path))
    (tmp_path / "wikitext-2").mkdir()
    for part, text in (("valid", "the whale"), ("test", "a captain of the sea")):
        (tmp_path / "wikitext-2" / f"{part}.txt").write_text(f" = Title = \n\n {text} \n")
    out = tmp_path / "bound.json"
    default = scored(models / "autoregressive", "wikitext-2", out=out)
    valid = scored(models / "autoregressive", "wikitext-2", "--part", "valid", out=out)
    test = scored(models / "autoregressive", "wikitext-2", "--part", "test", out=out)
    assert default == valid
    assert test["tokens"] > valid["tokens"]
    # with the training part, the same sequences are held out
    (tmp_path / "wikitext-2" / "train.txt").write_text(" = Other = \n\n the ship \n" * 9)
    both = load("wikitext-2", tokenizer="bytes", length=LENGTH)
    valid_only = load("wikitext-2", tokenizer="bytes", length=LENGTH, part="valid")
    assert np.array_equal(both.valid, valid_only.valid)


def test_prepared_folder_takes_precedence_over_a_corpus_name(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a captain of the sea")
    prepare(TextFiles.of("a.txt"), ByteTokenizer(), LENGTH, Path("lambada"), part="all")
    found = scored(models / "mask", "lambada", out=tmp_path / "bound.json")
    assert found["tokens"] == len("a captain of the sea") + 1


def test_errors_for_molecules_suggest_what_the_command_allows(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has no --tokenizer and does not prepare molecules."""
    pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
    monkeypatch.chdir(tmp_path)
    Path("a.smi").write_text("CCO\nCCN\nCCC\n")
    load("a.smi", cache=False).save("a.npz")
    for model, flags, expected in (
        (models / "mask", "a.smi", "got 'bytes', 257 tokens"),
        ("qm9-mask-small", "a.smi --part all", r"--part .*text.*a\.smi"),
        ("qm9-mask-small", "a.npz", "different tokenizer.*raw data"),
    ):
        with pytest.raises(cwdfm.InputError, match=expected):
            perplexity.main([str(model), "--data", *flags.split()])
    assert scored(Path("qm9-mask-small"), "a.smi", out=tmp_path / "a.json")["tokens"] > 0


def test_another_tokenizer_and_another_length(models: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the whale and the sea " * 9)
    prepare(TextFiles.of(tmp_path / "a.txt"), "chars", 8, tmp_path / "chars", part="all")
    prepare(TextFiles.of(tmp_path / "a.txt"), "bytes", 8, tmp_path / "bytes", part="all")
    tokenizers = ("different tokenizer ('characters', ", "('bytes', 257")
    for name, parts in {
        "chars": (*tokenizers, "with length=8", "but 16 was requested"),
        "bytes": ("was prepared with length=8, but 16 was requested",),
    }.items():
        said = " ".join(rejected("perplexity", models / "mask", "--data", tmp_path / name).split())
        for part in (*parts, "again with the requested values"):
            assert part in said
        assert "with length 16 and bytes tokens, which are the model's" in said
