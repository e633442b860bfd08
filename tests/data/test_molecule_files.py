"""Files of molecules in all formats, standardization, and SELFIES."""

import gzip
from pathlib import Path
from typing import Any

import pytest

import cwdfm
from cwdfm.data import SelfiesTokenizer, SmilesTokenizer, Standardize, load, tokenizer_from_json
from cwdfm.data.reference import canonical_texts, load_reference
from cwdfm.data.smiles import canonical
from cwdfm.errors import InputError
from cwdfm.sample_file import SampleFile, read_samples, write_samples
from tests.support.command import command, rejected

chem = pytest.importorskip("rdkit.Chem", reason="needs the extra 'molecules'")
pytest.importorskip("selfies", reason="needs the extra 'molecules'")

# A stereo center, a double bond, an isotope, a charge, a salt; an invalid and a blank row.
MOLECULES = ["CCO", "C[C@H](N)C(=O)O", "C/C=C/C", "[13CH3]O", "C[N+](C)(C)C", "CC(=O)[O-].[Na+]"]
ROWS = [*MOLECULES, "C(", ""]
COUNTS = {"read": 8, "kept": 6, "unparsable": 1, "blank": 1, "duplicate": 0, "too_long": 0}


def write(path: Path) -> Path:
    """All rows in the format of the suffix, written by other libraries where possible."""
    if path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"id": list(range(8)), "Smiles": ROWS}), path)
    elif path.suffix in (".csv", ".tsv"):
        comma = "," if path.suffix == ".csv" else "\t"
        path.write_text(
            "".join(f"{i}{comma}{s}\n" for i, s in [("id", "Smiles"), *enumerate(ROWS)])
        )
    elif path.name.endswith((".sdf", ".sdf.gz")):
        blocks = [chem.MolToMolBlock(chem.MolFromSmiles(s)) for s in MOLECULES]
        wrong = blocks[0].replace(" C  ", " Qq ", 1)  # no such element
        empty = chem.MolToMolBlock(chem.Mol())
        text = "".join(f"{block}$$$$\n" for block in (*blocks, wrong, empty))
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    else:
        path.write_text("\n".join(ROWS) + "\n")
    return path


@pytest.mark.parametrize("name", ["a.smi", "a.csv", "a.tsv", "a.parquet", "a.sdf", "a.sdf.gz"])
def test_every_format_gives_the_same_molecules(name: str, tmp_path: Path) -> None:
    """Every row is counted, and nothing is removed by default."""
    data = load(write(tmp_path / name), cache=False)
    assert {*data.texts("train"), *data.texts("valid")} == set(map(canonical, MOLECULES))
    assert {key: data.report[key] for key in COUNTS} == COUNTS
    assert data.report["unknown_tokens"] == 0
    assert sorted(load_reference(str(tmp_path / name), cache=False).training) == sorted(
        {*data.texts("train"), *data.texts("valid")}
    )


@pytest.mark.parametrize("name", ["a.smi", "a.csv", "a.tsv", "a.parquet", "a.sdf"])
def test_samples_of_other_programs(name: str, tmp_path: Path) -> None:
    found = read_samples(write(tmp_path / name)).texts
    assert len(found) == len(ROWS)
    assert [canonical(text) for text in found[:6]] == [canonical(text) for text in MOLECULES]
    assert [canonical(text) for text in found[6:]] == [None, None]


def test_structures_are_written(tmp_path: Path) -> None:
    """RDKit reads them with coordinates; an invalid sample is a record without atoms."""
    write_samples(tmp_path / "a.sdf", SampleFile(ROWS))
    assert read_samples(tmp_path / "a.sdf").texts[6:] == ["C(", ""]
    found = list(chem.SDMolSupplier(str(tmp_path / "a.sdf")))
    smiles = [chem.MolToSmiles(molecule) for molecule in found]
    assert smiles == [*map(canonical, MOLECULES), "", ""]
    assert [m.GetProp("index") for m in found] == [str(i) for i in range(8)]
    assert [m.GetProp("SMILES") for m in found[:7]] == ROWS[:7]
    assert found[0].GetConformer().GetAtomPosition(0).Length() > 0


def test_a_parquet_file_is_text_or_molecules(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    both = {"text": MOLECULES, "structure": MOLECULES}
    parquet.write_table(arrow.table(both), tmp_path / "both.parquet")
    text = load(tmp_path / "both.parquet", tokenizer="bytes", length=8, cache=False)
    assert text.tokenizer.kind == "bytes"
    asked: dict[str, Any] = {"representation": "smiles", "cache": False}
    assert load(tmp_path / "both.parquet", column="Structure", **asked).report["kept"] == 6
    with pytest.raises(InputError, match="no column 'smiles', its columns are 'text', 'structure'"):
        load(tmp_path / "both.parquet", **asked)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(InputError, match="not a complete parquet file"):
        load(tmp_path / "bad.parquet")


# The same for all rules: RDKit's own standardization is what they call; these are known answers.
RULES: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"components": "largest"}, {"CC(=O)[O-].[Na+]": "CC(=O)[O-]", "O.CCN.Cl": "CCN"}),
    ({"components": "largest"}, {"[Cl-].[Cl-].[Ca+2]": "[Ca+2]", "CCO": "CCO"}),
    ({"charges": "neutralize"}, {"CC(=O)[O-]": "CC(=O)O", "C[NH3+]": "CN"}),
    ({"charges": "neutralize"}, {"C[N+](C)(C)C": "C[N+](C)(C)C", "C[N+](=O)[O-]": "C[N+](=O)[O-]"}),
    ({"isotopes": "remove"}, {"[13CH3]O": "CO", "[2H]OC": "CO", "CCO": "CCO"}),
    ({"stereo": "remove"}, {"C[C@H](N)C(=O)O": "CC(N)C(=O)O", "C/C=C/C": "CC=CC"}),
    (
        {"components": "largest", "charges": "neutralize"},
        {"CC(=O)[O-].[Na+]": "CC(=O)O", "C[NH3+].[Cl-]": "CN"},
    ),
]


@pytest.mark.parametrize(("rules", "pairs"), RULES)
def test_standardization(rules: dict[str, Any], pairs: dict[str, str], tmp_path: Path) -> None:
    """The rows that change are counted by rule, and remain in the count of kept rows."""
    (tmp_path / "a.smi").write_text("\n".join([*pairs, "CCCC", "CCCCC"]))
    data = load(tmp_path / "a.smi", standardize=Standardize(**rules), cache=False)
    expected = {canonical(after) for after in pairs.values()} | {"CCCC", "CCCCC"}
    assert {*data.texts("train"), *data.texts("valid")} == expected
    changed = sum(canonical(before) != canonical(after) for before, after in pairs.items())
    counts = [data.report[f"changed_{name}"] for name in rules]
    assert max(counts) == changed <= sum(counts)
    reasons = ("blank", "unparsable", "too_long", "unknown_tokens", "duplicate", "mixture", "kept")
    assert sum(data.report[name] for name in reasons) == data.report["read"]


def test_mixtures_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi")
    ended = command("prepare", path, "--out", tmp_path / "a.npz", "--components", "drop")
    assert ended.returncode == 0, ended
    data = load(tmp_path / "a.npz")
    assert (data.report["mixture"], data.report["kept"]) == (1, 5)
    with pytest.raises(InputError, match="was prepared with standardize"):
        load(tmp_path / "a.npz", standardize=Standardize(stereo="remove"))
    (tmp_path / "a.txt").write_text("some text")
    said = rejected(
        "prepare", tmp_path / "a.txt", "--out", tmp_path / "t", "--charges", "neutralize"
    )
    assert "--charges" in said
    with pytest.raises(InputError, match=r"Standardize.*'largest'"):
        load(tmp_path / "a.smi", standardize="largest", cache=False)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="stereo must be one of 'keep', 'remove'"):
        Standardize(stereo="none")  # type: ignore[arg-type]


def test_standardized_molecules_fit_a_model(tmp_path: Path) -> None:
    """They can be prepared for a model, in order to fine-tune it."""
    path, out, name = write(tmp_path / "a.smi"), tmp_path / "a.npz", "qm9-uniform-small"
    prepare = ("prepare", path, "--out", out, "--components", "largest", "--stereo", "remove")
    assert command(*prepare, "--length", 32).returncode == 0
    assert "--force" in rejected(*prepare, "--tokenizer", name)  # another vocabulary
    assert command(*prepare, "--tokenizer", name, "--force").returncode == 0
    model = cwdfm.load(name)
    data = load(out, tokenizer=model.tokenizer, length=model.length)
    texts = {*data.texts("train"), *data.texts("valid")}
    assert texts >= {"CC(N)C(=O)O", "CC(=O)[O-]"}
    with pytest.raises(InputError, match=r"unknown_tokens 1") as error:
        load_reference(str(out), cache=False)
    assert "a.smi" not in str(error.value)  # it still has the salts
    assert "2,048 tokens" in rejected(*prepare, "--tokenizer", "novels-small", "--force")


def test_selfies_are_read_back_as_the_same_molecules(tmp_path: Path) -> None:
    """Any sequence of the tokens decodes to a valid molecule."""
    data = load(write(tmp_path / "a.smi"), representation="selfies", cache=False)
    assert isinstance(data.tokenizer, SelfiesTokenizer)
    assert set(canonical_texts(data, "train")) | set(canonical_texts(data, "valid")) == set(
        map(canonical, MOLECULES)
    )
    assert tokenizer_from_json(data.tokenizer.to_json()) == data.tokenizer
    other: object = SmilesTokenizer(data.tokenizer.tokens)
    assert data.tokenizer != other
    ids = [1, *range(3, data.tokenizer.vocab_size), 2, 0]
    assert canonical(data.tokenizer.decode(ids)) is not None
    with pytest.raises(InputError, match="SMILES model"):
        data.tokenizer.encode_template("C[3]")
    data.save(tmp_path / "a.npz")
    with pytest.raises(InputError, match="representation='selfies', but 'smiles' was requested"):
        load(tmp_path / "a.npz", representation="smiles")
    with pytest.raises(InputError, match="differs from that of the tokenizer, 'selfies'"):
        load(tmp_path / "a.smi", tokenizer=data.tokenizer, representation="smiles", cache=False)
    with pytest.raises(InputError, match=r"representation must be one of 'smiles', 'selfies'"):
        load(tmp_path / "a.smi", representation="inchi")  # type: ignore[arg-type]


def test_train_and_sample_selfies(tmp_path: Path) -> None:
    """All samples are valid, whatever the model has learned."""
    (tmp_path / "a.smi").write_text("\n".join("C" * n + end for n in range(1, 8) for end in "ONF"))
    options = {"steps": 2, "batch-size": 4, "warmup": 1, "previews": 2, "preview-steps": 2}
    ended = command(
        *("train", "qm9-debug", "--out", tmp_path / "run", "--data", tmp_path / "a.smi"),
        *("--representation", "selfies"),
        *(word for name, value in options.items() for word in (f"--{name}", value)),
    )
    assert ended.returncode == 0, ended
    out = tmp_path / "a.jsonl"
    ended = command("sample", tmp_path / "run", "--out", out, "--n", 8, "--steps", 4)
    assert ended.returncode == 0, ended
    texts = read_samples(out).texts
    assert all(canonical(text) is not None for text in texts if text)
    report = command(
        *("eval", out, "--data", tmp_path / "a.smi", "--no-distribution"),
        *("--out", tmp_path / "report"),
    )
    assert report.returncode == 0, report
