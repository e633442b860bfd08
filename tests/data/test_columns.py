"""Columns of data: read from tables, computed from molecules, kept with their sequences."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwdfm.data import SmilesFile, Standardize, TokenData, canonical, load, randomize
from cwdfm.data.columns import is_missing
from cwdfm.data.molecules import MoleculeOptions
from cwdfm.data.smiles import parse
from cwdfm.errors import InputError
from cwdfm.model.conditions import Categorical, Numeric, condition_of, encode_columns
from tests.support.cases import slow

pytest.importorskip("rdkit")

SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "C1CCCCC1", "CCCCCC", "OCC", "N#CC", "CCN"]
HEAVY = {"CCO": 3, "c1ccccc1": 6, "CC(=O)O": 4, "C1CCCCC1": 6, "CCCCCC": 6, "CC#N": 3, "CCN": 3}


def table(path: Path, values: dict[str, list[str]]) -> Path:
    """A table of SMILES (OCC repeats CCO) and other columns."""
    if path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        typed = {n: list(map(float, v)) if n == "Heavy" else v for n, v in values.items()}
        parquet.write_table(arrow.table({"smiles": SMILES, **typed}), path)
    elif path.suffix == ".sdf":
        from rdkit.Chem import MolFromSmiles, MolToMolBlock

        records = ["\n\n\ndamaged\n>  <Heavy>\n50\n\n"]
        for smiles, *cells in zip(SMILES, *values.values(), strict=True):
            fields = [f">  <{name}>\n{cell}\n\n" for name, cell in zip(values, cells, strict=True)]
            records.append(MolToMolBlock(MolFromSmiles(smiles)) + "".join(fields))
        path.write_text("".join(f"{record}$$$$\n" for record in records))
    else:
        rows = zip(SMILES, *values.values(), strict=True)
        lines = [",".join(("smiles", *values)), *map(",".join, rows)]
        path.write_text("\n".join(lines))
    return path


def values_of(data: TokenData, name: str) -> dict[str, object]:
    texts = data.texts("train") + data.texts("valid")
    return dict(zip(texts, data.columns[name].tolist(), strict=True))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.sdf"])
def test_columns_belong_to_their_molecules(tmp_path: Path, name: str) -> None:
    heavy = ["3", "6", "4", "6", "6", "99", "3", "3"]  # of the repeated row, which is left out
    kind = ["chain", "ring", "chain", "ring", "chain", "chain", "chain", "chain"]
    path = table(tmp_path / name, {"Heavy": heavy, "kind": kind})
    data = load(path, condition=["heavy", "kind", "rings"], cache=False)
    assert values_of(data, "heavy") == HEAVY
    rings = {smiles: float("1" in smiles) for smiles in HEAVY}
    assert values_of(data, "rings") == rings
    assert values_of(data, "kind") == {s: "ring" if r else "chain" for s, r in rings.items()}
    data.save(tmp_path / "a.npz")
    again = load(tmp_path / "a.npz", condition=["tpsa"])
    assert list(again.columns) == ["heavy", "kind", "rings", "tpsa"]
    assert values_of(again, "kind") == values_of(data, "kind")
    assert values_of(again, "tpsa")["CCCCCC"] == 0.0
    plain = load(path, cache=False)
    assert plain.fingerprint != data.fingerprint
    assert np.array_equal(plain.train, data.train)


def test_randomized_molecules_keep_their_columns(tmp_path: Path) -> None:
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdMolDescriptors import CalcExactMolWt

    path = table(tmp_path / "a.csv", {})
    data = randomize(load(path, condition=["weight"], cache=False), 5, seed=3)
    texts = data.texts("train") + data.texts("valid")
    exact = [CalcExactMolWt(MolFromSmiles(text)) for text in texts]
    np.testing.assert_allclose(data.columns["weight"].astype(float), exact, rtol=2e-3)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "", "3.5", "n/a", "5", "6", " NaN ", "8"], [1, None, 3.5, None, 5, None, 8]),
        (["1,5", "2", "0,125", "-4,0", "", "6", "7", "8"], [1.5, 2, 0.125, -4, None, 7, 8]),
        (["a", "", "b", "1", "a", "a", "a", "b"], ["a", "", "b", "1", "a", "a", "b"]),
    ],
    ids=["missing", "decimal-commas", "categories"],
)
def test_cells_become_values(tmp_path: Path, cells: list[str], values: list[object]) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "\n".join(f"{s};{c}" for s, c in zip(["smiles", *SMILES], ["v", *cells], strict=True))
    )
    data = load(path, condition=["v"], cache=False)
    missing = "" if "a" in cells else float("nan")
    expected = {
        smiles: missing if v is None else v for smiles, v in zip(HEAVY, values, strict=True)
    }
    np.testing.assert_equal(values_of(data, "v"), expected)
    assert data.report["no_v"] == sum(value in (None, "") for value in values)
    (condition,) = conditions = (condition_of("v", data),)
    encoded = encode_columns(conditions, data)[:, 0]
    np.testing.assert_equal(encoded != encoded, is_missing(data.columns["v"]))
    known = [value for value in values if value not in (None, "")]
    if isinstance(condition, Numeric):
        assert set(known) >= {condition.low, condition.high}
    else:
        assert condition == Categorical("v", tuple(sorted(map(str, set(known)))))


@pytest.mark.parametrize(
    ("cells", "facts"),
    [
        (["1", "2", ">10", "4", "5", "6", "7", "8"], ["'>10'", "line 4"]),
        (["1,234", "2", "3", "4", "5", "6", "7", "8"], ["'1,234'", "line 2"]),
        (["1", "inf", "3", "4", "5", "6", "7", "8"], ["'inf'", "line 3"]),
        ([""] * 8, ["no value"]),
        ([*"abcdefgh"], ["'a'", "line 2", "7 distinct", "3 categories"]),
    ],
    ids=["censored", "thousands", "infinite", "empty", "names"],
)
def test_unclear_values_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: list[str], facts: list[str]
) -> None:
    monkeypatch.setattr("cwdfm.data.columns._FEW_CATEGORIES", 3)
    cells[5] = cells[0]  # of the repeated row
    path = table(tmp_path / "a.csv", {"v": [f'"{cell}"' for cell in cells]})
    with pytest.raises(InputError) as error:
        load(path, condition=["v"], cache=False)
    assert all(fact in str(error.value) for fact in ("'v'", *facts))


def test_repeated_molecules_with_other_values_are_counted(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", {"logP": list("12345678"), "same": list("12345178")})
    data = load(path, condition=["logp", "same"], cache=False)  # the column, not the property
    assert (data.report["duplicate"], data.report["different_values"]) == (1, 1)
    assert values_of(data, "logp")["CCO"] == 1
    assert "6; 1" in data.examples["duplicate"][0]
    assert "different_values" not in load(path, condition=["same"], cache=False).report


def test_unknown_columns_name_the_known_ones(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", {"v": list("12345678")})
    with pytest.raises(InputError, match=r"smiles, v.*qed"):
        load(path, condition=["w"], cache=False)
    with pytest.raises(InputError, match="twice"):
        load(path, condition=["v", "V"], cache=False)
    text = tmp_path / "a.jsonl"
    text.write_text('{"text": "a b"}\n')
    with pytest.raises(InputError, match="condition"):
        load(text, condition=["v"], tokenizer="bytes", cache=False)


def test_each_molecule_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rdkit.Chem import QED, MolFromSmiles
    from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors, CalcTPSA

    def logp(molecule: Any) -> float:
        return float(CalcCrippenDescriptors(molecule)[0])

    load(table(tmp_path / "a.csv", {}), cache=False).save(tmp_path / "a.npz")
    parsed: list[str] = []

    def counted(smiles: str) -> object:
        parsed.append(smiles)
        return parse(smiles)

    monkeypatch.setattr("cwdfm.data.properties.parse", counted)
    data = load(tmp_path / "a.npz", condition=["logp", "qed", "tpsa"])
    assert parsed == data.texts("train") + data.texts("valid")
    functions: dict[str, Any] = {"logp": logp, "qed": QED.qed, "tpsa": CalcTPSA}
    assert list(data.columns) == list(functions)
    for name, function in functions.items():
        assert values_of(data, name) == {text: function(MolFromSmiles(text)) for text in parsed}


@pytest.mark.parametrize("representation", ["selfies", slow("smiles")])
def test_processes_prepare_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, representation: str
) -> None:
    monkeypatch.setattr("cwdfm.data.properties._CHUNK", 3)  # more chunks than are in flight
    monkeypatch.setattr("cwdfm.data.properties._FEW", 4)
    rows = ["wrong!", "", "C" * 30, "CS.O", "[NH4+].C", "[S@@](C)(=O)CC"]
    rows += [f"{'C' * (i % 12 + 1)}{end}" for i in range(24) for end in ("O", "N")]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["smiles,v", *(f"{row},{i}" for i, row in enumerate(rows))]))
    how = {"representation": representation, "condition": ["v", "qed", "rings"], "cache": False}
    how["standardize"] = Standardize(components="largest", charges="neutralize")
    one, two = (load(path, workers=workers, **how) for workers in (1, 2))  # type: ignore[arg-type]
    assert two.fingerprint == one.fingerprint
    assert (two.report, two.examples, two.source) == (one.report, one.examples, one.source)
    dropped = {"blank": 1, "too_long": 0, "unparsable": 1, "duplicate": 24}
    assert {name: two.report[name] for name in dropped} == dropped
    numbers = {str(canonical(row)): float(i) for i, row in reversed(list(enumerate(rows[6:], 6)))}
    found = values_of(two, "v")
    assert {text: found[text] for text in numbers} == numbers


def test_progress_names_the_stages(tmp_path: Path) -> None:
    path = tmp_path / "a.smi"
    path.write_text("CC\nCO\nCN\n" * 400)
    calls: list[tuple[str, int, int | None]] = []
    options = MoleculeOptions(8, condition=["logp"])
    SmilesFile.of(path).prepare(options, progress=lambda *call: calls.append(call))
    assert calls == [("reading a.smi", 1000, None), ("properties", 3, 3)]
