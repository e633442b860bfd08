"""Conditions from a table to samples: prepare, train, sample."""

import json
from pathlib import Path

import pytest

from tests.support.command import rejected, succeeded

pytest.importorskip("rdkit")
HALOGENS = {"fluoride": "F", "chloride": "Cl", "bromide": "Br"}
TRAIN = "--steps 110 --batch-size 48 --warmup 5 --learning-rate 4e-3 --validate-every 1000"
BROMIDE = ("--property", "halogen=bromide")
TRAIN += " --elbo-rows 0 --previews 0 --ema 0.9 --condition-dropout 0.2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of alkyl halides, conditioned on the halogen and on the number of carbons."""
    folder = tmp_path_factory.mktemp("conditions")
    rows = [f"{'C' * n}{x},{name},{n}" for n in range(1, 10) for name, x in HALOGENS.items()]
    (folder / "my.csv").write_text("smiles,halogen,carbons\n" + "\n".join(rows))
    prepared = folder / "my.npz"
    columns = ["--condition", "halogen", "carbons"]
    options = ["--length", "12", *columns]
    succeeded("prepare", folder / "my.csv", "--out", prepared, *options)
    out = ["--data", prepared, "--out", folder / "run", *columns, *TRAIN.split()]
    succeeded("train", "qm9-debug", *out)
    return folder


def sampled(folder: Path, name: str, *options: str) -> list[str]:
    """The texts of samples with some properties."""
    out = folder / f"{name}.smi"
    few = ["--n", "48", "--steps", "16", "--solver", "euler", "--hazard", "integrated"]
    succeeded("sample", folder / "run", "--out", out, *few, *options)
    return out.read_text().split()


def test_samples_have_the_property(folder: Path) -> None:
    options = ((), BROMIDE, (*BROMIDE, "--guidance", "2"))
    shares = [
        sum("Br" in text and "F" not in text and "Cl" not in text for text in texts) / len(texts)
        for texts in (sampled(folder, f"bromide-{len(each)}", *each) for each in options)
    ]
    assert shares[0] < 0.5 < 0.6 < shares[1]
    assert shares[2] > 0.7
    short = sampled(folder, "short", "--property", "carbons=2", "Halogen=chloride")
    long = sampled(folder, "long", "--property", "carbons=8", "halogen=chloride")
    carbons = [sum(text.count("C") - text.count("Cl") for text in t) / 48 for t in (short, long)]
    assert carbons[0] < 4.5 < 5.5 < carbons[1]


def test_the_property_is_recorded(folder: Path) -> None:
    words = ["--n", "4", "--steps", "2", "--property", "carbons=3", "--out"]
    succeeded("sample", folder / "run", *words, folder / "few.jsonl")
    head = json.loads((folder / "few.jsonl").read_text().splitlines()[0])
    assert head["options"]["property"] == ["carbons=3"]


def test_conditions_are_added_to_a_trained_model(folder: Path) -> None:
    """The new network has the condition, and without training predicts as before."""
    base, fine = folder / "base", folder / "fine"
    none = ["--steps", "2", "--previews", "0", "--elbo-rows", "0"]
    succeeded("train", "qm9-debug", "--data", folder / "my.npz", "--out", base, *none)
    words = ["--init", base, "--data", folder / "my.npz", "--out", fine, "--learning-rate", "1e-9"]
    words += ["--min-learning-rate", "0", "--condition", "halogen"]
    succeeded("train", "finetune", *words, *none)
    few = ["--n", "8", "--steps", "4", "--out"]
    succeeded("sample", base, *few, folder / "before.jsonl")
    words = ["--property", "halogen=bromide"]
    succeeded("sample", fine, *few, folder / "after.jsonl", *words)
    before, after = (
        [json.loads(line)["text"] for line in (folder / name).read_text().splitlines()[1:]]
        for name in ("before.jsonl", "after.jsonl")
    )
    assert before == after


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--property", "logp=2"], ["logp", "halogen, carbons"]),
        (["--property", "carbons=99"], ["99", "1", "9"]),
        (["--property", "carbons=few"], ["'few'"]),
        (["--property", "halogen=iodide"], ["'iodide'", "bromide, chloride, fluoride"]),
        (["--property", "carbons"], ["NAME=VALUE", "'carbons'"]),
        (["--property", "carbons=2", "Carbons=3"], ["twice"]),
        (["--guidance", "2"], ["--property"]),
        (["--property", "carbons=2", "--guidance", "-1"], ["--guidance", "-1"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_properties_are_rejected_before_sampling(
    folder: Path, options: list[str], facts: list[str]
) -> None:
    said = rejected("sample", folder / "run", "--out", folder / "wrong.smi", *options)
    assert all(fact in said for fact in facts), said
    assert not (folder / "wrong.smi").exists()


def test_models_without_conditions_have_no_properties(tmp_path: Path) -> None:
    words = ["--out", tmp_path / "a.smi", "--property", "logp=2"]
    assert "trained without conditions" in rejected("sample", "qm9-mask-small", *words)
