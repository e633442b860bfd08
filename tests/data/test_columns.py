"""Columns of data: read from tables, computed from molecules, kept with their sequences."""

from pathlib import Path

import numpy as np
import pytest

from cwdfm.data import TokenData, load, randomize
from cwdfm.errors import InputError

pytest.importorskip("rdkit")

SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "C1CCCCC1", "CCCCCC", "OCC", "N#CC", "CCN"]
HEAVY = {"CCO": 3, "c1ccccc1": 6, "CC(=O)O": 4, "C1CCCCC1": 6, "CCCCCC": 6, "CC#N": 3, "CCN": 3}


def table(path: Path, values: dict[str, list[str]]) -> Path:
    """A table of SMILES (OCC repeats CCO) and other columns."""
    if path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        typed = {n: list(map(float, v)) if n == "Heavy" else v for n, v in values.items()}
        parquet.write_table(arrow.table({"smiles": SMILES, **typed}), path)
    else:
        rows = zip(SMILES, *values.values(), strict=True)
        lines = [",".join(("smiles", *values)), *map(",".join, rows)]
        path.write_text("\n".join(lines))
    return path


def values_of(data: TokenData, name: str) -> dict[str, object]:
    texts = data.texts("train") + data.texts("valid")
    return dict(zip(texts, data.columns[name].tolist(), strict=True))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
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
    ("column", "facts"),
    [
        (["1", "2", "", "4", "5", "6", "7", "8"], ["'v'", "line 4"]),
        (["1", "nan", "3", "4", "5", "6", "7", "8"], ["'v'", "line 3"]),
    ],
    ids=["empty", "nan"],
)
def test_missing_values_are_errors(tmp_path: Path, column: list[str], facts: list[str]) -> None:
    path = table(tmp_path / "a.csv", {"v": column})
    with pytest.raises(InputError) as error:
        load(path, condition=["v"], cache=False)
    assert all(fact in str(error.value) for fact in facts)


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


def test_many_texts_are_no_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cwdfm.data.columns.MAX_CATEGORIES", 3)
    path = table(tmp_path / "a.csv", {"v": ["1", "2", "3,5".replace(",", ";"), *"45678"]})
    with pytest.raises(InputError, match=r"'3;5'.*line 4"):
        load(path, condition=["v"], cache=False)
