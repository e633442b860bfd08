"""`cwdfm analyze` and `cwdfm perplexity`: their numbers against the functions, and bad input."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.cli import analyze, perplexity
from cwdfm.data import ByteTokenizer, SmilesTokenizer, TextFiles, load, prepare
from cwdfm.generation import generate
from cwdfm.likelihood.dataset import dataset_likelihood
from cwdfm.metrics.analysis import context_analysis, update_statistics
from tests.support.command import rejected
from tests.support.tiny import MODEL_LENGTH as LENGTH
from tests.support.tiny import tiny_model

pytest.importorskip("safetensors", reason="needs the extra 'cli'")
pytest.importorskip("tyro", reason="needs the extra 'cli'")

TEXT = "the whale and the sea, the captain and the whale. " * 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep prepared data out of the user's cache."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text model, a molecule model with a fixed first token, and data for both."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "whale.txt").write_text(TEXT)
    prepare(TextFiles.of(folder / "whale.txt"), "bytes", LENGTH, folder / "whale", part="all")
    tiny_model(ByteTokenizer()).save_pretrained(folder / "text")
    tiny_model(SmilesTokenizer(("C", "N", "O")), fix_first=True).save_pretrained(
        folder / "molecules"
    )
    (folder / "my.smi").write_text("\n".join("C" * n + end for n in range(1, 13) for end in "NO"))
    return folder


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def words(*arguments: object) -> list[str]:
    return [str(a) for a in arguments]


def test_perplexity_matches_the_function(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bound.json"
    flags = ["--rows", 20, "--draws", 3, "--seed", 5]
    data = folder / "whale"
    perplexity.main(words(folder / "text", "--data", data, *flags, "--out", out))
    record = read(out)
    (result,) = record["results"]
    trained, rows = cwdfm.load(folder / "text"), load(data).valid
    direct = dataset_likelihood(trained.method, trained.model, rows, limit=20, draws=3, seed=5)
    for key, value in direct.to_json().items():
        assert result[key] == pytest.approx(value, rel=1e-6), key
    assert result["perplexity"] == pytest.approx(math.exp(result["nats_per_token"]))
    assert result["standard_error"] > 0
    assert record["weights"] == trained.fingerprint()
    printed = capsys.readouterr().out
    assert f"{direct.perplexity:,.0f} ± " in printed  # random weights: without powers of ten
    assert f"20 of {len(rows):,}" in printed
    # The batch size changes nothing.
    line = [folder / "text", "--data", data, *flags, "--out", out, "--force", "--batch-size", 7]
    perplexity.main(words(*line))
    again = read(out)["results"][0]
    assert again["nats_per_token"] == pytest.approx(result["nats_per_token"], rel=1e-6)


def test_perplexity_of_several_datasets(folder: Path, tmp_path: Path) -> None:
    """A text file is read with the model's tokenizer; all of it with --part all."""
    out = tmp_path / "bound.json"
    given = ["--data", folder / "whale.txt", "--part", "all", "--rows", 0, "--draws", 2]
    perplexity.main(words(folder / "text", *given, "--out", out))
    (result,) = read(out)["results"]
    assert result["sequences"] == result["of"] == len(load(folder / "whale").valid)
    two = ["--data", folder / "whale", folder / "whale", "--rows", 4, "--draws", 2]
    perplexity.main(words(folder / "text", *two, "--out", out, "--force"))
    first, second = read(out)["results"]
    assert first == second


def test_perplexity_of_molecules(folder: Path, tmp_path: Path) -> None:
    """What is given, here the first token, is not counted."""
    pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
    out = tmp_path / "bound.json"
    perplexity.main(words(folder / "molecules", "--data", folder / "my.smi", "--out", out))
    (result,) = read(out)["results"]
    assert result["tokens"] == result["sequences"] * (LENGTH - 1)


def test_context_analysis_matches_the_function(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--radius", 2, "--farthest", 3, "--rows", 24, "--draws", 2, "--seed", 1]
    given = words(folder / "text", "--data", folder / "whale", "--out", tmp_path / "o", *flags)
    analyze.main(["context", *given])
    found = read(tmp_path / "o" / "context.json")
    trained, rows = cwdfm.load(folder / "text"), load(folder / "whale").valid
    x_1 = torch.from_numpy(rows[np.arange(24) * len(rows) // 24].astype(np.int64))
    flow = (trained.model, trained.source, trained.schedule)
    direct = context_analysis(*flow, x_1, radius=2, farthest=3, draws=2, seed=1).to_json()
    for curve in ("neighbors", "distance"):
        for key, values in direct[curve].items():
            assert found[curve][key] == pytest.approx(list(values), rel=1e-5)
    assert found["options"]["rows"] == 24
    assert (tmp_path / "o" / "context.png").stat().st_size > 20_000
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["neighbors", "within", "2", "tokens"]
    assert lines[1].split()[:2] == ["0", f"{direct['neighbors']['tokens'][0]:,}"]
    assert lines[-2].startswith("distance 3 includes larger distances")
    assert len(lines) == 1 + 5 + 1 + 3 + 2


def test_fixed_tokens_count_as_context(folder: Path, tmp_path: Path) -> None:
    """A model that always had its first token: that one is never masked, and always revealed."""
    pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
    given = [folder / "molecules", "--data", folder / "my.smi", "--out", tmp_path / "o"]
    analyze.main(words("context", *given, "--radius", 1, "--farthest", 40))
    found = read(tmp_path / "o" / "context.json")
    trained = cwdfm.load(folder / "molecules")
    assert trained.fix_first
    bins, tokens = found["distance"]["bins"], found["distance"]["tokens"]
    reached = [bin for bin, count in zip(bins, tokens, strict=True) if count]
    assert max(reached) <= trained.length // 2, "half of the ring, which the first token is on"


def test_update_statistics_match_the_function(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--n", 12, "--steps", 8, "--scale", 1.0, "--batch-size", 5]
    analyze.main(words("updates", folder / "molecules", "--out", tmp_path / "o", *flags))
    found = read(tmp_path / "o" / "updates.json")
    trained = cwdfm.load(folder / "molecules")
    neighbor = "Neighbor (radius 1, scale 1)"
    assert list(found["solvers"]) == ["Euler", neighbor]
    for name, weight in (("Euler", None), (neighbor, cwdfm.Neighbor(1, 1.0))):
        samples = generate(trained, cwdfm.Euler(weight=weight), n=12, steps=8)
        direct = update_statistics(samples, torch.arange(LENGTH) == 0)
        assert found["solvers"][name] == json.loads(json.dumps(direct.to_json()))
        assert direct.tokens == 12 * (LENGTH - 1)
    assert (tmp_path / "o" / "updates.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert f"\n{neighbor} " in printed
    assert str(tmp_path / "o") in printed
    assert "note:" not in printed


def test_mask_source_updates_each_token_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A note says so. With a corrector, tokens change again and there is no note."""
    model = tiny_model(SmilesTokenizer(("C", "N", "O")), cwdfm.MaskSource)
    model.save_pretrained(tmp_path / "model")
    few = [tmp_path / "model", "--n", 16, "--steps", 8, "--solvers", "euler"]
    analyze.main(words("updates", *few, "--out", tmp_path / "one"))
    assert capsys.readouterr().out.splitlines().count(analyze.MASK_NOTE) == 1
    found = read(tmp_path / "one" / "updates.json")["solvers"]["Euler"]
    assert found["updates_per_token"] == 1.0
    assert found["loop_share"] == 0.0
    analyze.main(words("updates", *few, "--out", tmp_path / "more", "--corrector", 2.0))
    assert "note:" not in capsys.readouterr().out
    assert read(tmp_path / "more" / "updates.json")["solvers"]["Euler"]["updates_per_token"] > 1.0


def test_invalid_input(folder: Path, tmp_path: Path) -> None:
    text, whale, out = folder / "text", folder / "whale", tmp_path / "out"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.json").write_text("mine")
    full = tmp_path / "full"
    prepare(TextFiles.of(folder / "whale.txt"), "bytes", 8, tmp_path / "short", part="all")
    bound = ["perplexity", text, "--data"]
    context = ["analyze", "context", text, "--data", whale, "--out"]
    updates = ["analyze", "updates", text, "--out"]
    entropy = [*updates, out, "--solvers", "euler", "entropy"]
    weighted = "applies only with --weight neighbor, got --weight none"
    solvers = "applies only with --solvers"
    cases: list[tuple[list[object], str]] = [
        (["analyse"], "unknown command 'analyse'"),
        (["analyze"], "an analysis is required: context, updates"),
        (["analyze", "mood"], "unknown analysis 'mood'; choose from context, updates"),
        (["perplexity", text], "data"),
        (["perplexity", text, "--data"], "specify at least one"),
        (["perplexity", "nowhere", "--data", whale], "neither a folder nor a bundled model"),
        ([*bound, "qm9"], "which are the model's: qm9 is read as molecules"),
        (["perplexity", folder / "molecules", "--data", whale], "requested ('smiles', "),
        ([*bound, tmp_path / "no.txt"], "does not exist"),
        ([*bound, tmp_path / "short"], "was prepared with length=8, but 16 was requested"),
        ([*bound, whale, "--rows", -1], "rows must be an integer >= 0"),
        ([*bound, whale, "--draws", 1], "draws must be an integer >= 2"),
        ([*bound, whale, "--out", full / "mine.json"], "already exists"),
        ([*bound, whale, "--out", out], "must end in .json"),
        ([*bound, whale, "--device", "abacus"], "device must be auto"),
        ([*bound, whale, "--radius", 1], f"--radius {weighted}"),
        ([*bound, whale, "--weight", "none", "--scale=2"], f"--scale {weighted}"),
        ([*bound, whale, "--draws", 10**12], "--draws must be an integer <= 1,000,000, got 1000"),
        ([*bound, whale, "--seed", -1], "cwdfm: --seed must be an integer in 0..2^64-1"),
        ([*bound, "no", "--weight", "neighbor", "--radius", 8], "cwdfm: --radius 8 is too large"),
        ([*bound, whale, "--force"], "--force applies only with --out"),
        (["analyze", "context", text, "--out", out], "data"),
        ([*context, full], "is not empty"),
        ([*context, full / "mine.json"], "is a file"),
        ([*context, out, "--radius", 0], "radius must be an integer >= 1"),
        ([*context, out, "--radius", 99], "below 16/2, or --boundary cut"),
        ([*context, out, "--rows", 0], "rows must be an integer >= 1"),
        ([*context, out, "--draws", 10**12], "--draws must be an integer <= 1,000,000, got 1000"),
        ([*context, out, "--farthest", 10**12], "--farthest must be an integer <= 10,000, got 1"),
        ([*context[:4], "no", "--out", out, "--seed", -1], "cwdfm: --seed must be an integer"),
        ([*context[:4], "qm9", "--out", out], "require a SmilesTokenizer"),
        ([*updates, out, "--n", 0], "n must be an integer >= 1"),
        ([*updates, out, "--steps", 0], "steps must be an integer >= 1"),
        ([*updates, out, "--solvers", "magic"], "invalid choice"),
        ([*updates, out, "--solvers"], "no solvers; specify at least one"),
        ([*updates, out, "--top-p", 2], "--top-p must"),
        ([*updates, full], "is not empty"),
        ([*updates, out, "--seed", -1], "cwdfm: --seed must be an integer in 0..2^64-1"),
        ([*updates, out, "--beta", 6], f"--beta {solvers} entropy, got --solvers euler and neigh"),
        (
            [*entropy, "--radius", 2],
            f"--radius {solvers} neighbor, got --solvers euler and entropy",
        ),
        ([*entropy[:-1], "--scale", 2], f"--scale {solvers} neighbor, got --solvers euler;"),
    ]
    for arguments, message in cases:
        assert message in rejected(*arguments), arguments
        assert not out.exists(), arguments
    assert [path.name for path in full.iterdir()] == ["mine.json"]
    assert (full / "mine.json").read_text() == "mine"


def test_window_size_is_checked_before_sampling(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window of the second solver is checked before the first one draws samples."""
    drawn: list[object] = []
    monkeypatch.setattr(analyze, "generate", lambda *_, **__: drawn.append(None))
    line = ["analyze", "updates", folder / "text", "--out", tmp_path / "out", "--radius", 8]
    printed = rejected(*line)
    assert "cwdfm: --radius 8 is too large for 16" in printed
    assert printed.endswith("; use --radius below 16/2\n")  # this command has no --boundary
    assert not drawn


@pytest.mark.parametrize("what", [["context", "--data", "whale.txt"], ["updates"]])
def test_missing_matplotlib_is_reported_first(
    what: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    name, *more = what
    with pytest.raises(cwdfm.InputError, match=r"pip install 'cwdfm\[plot\]'"):
        analyze.main([name, "no-such-model", *more, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
