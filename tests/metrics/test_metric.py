"""Molecule metrics against hand-counted lists."""

import json
from collections.abc import Callable, Collection
from typing import Any, cast

import numpy as np
import pytest

from cwdfm.data.smiles import CanonicalSet, canonical
from cwdfm.errors import InputError
from cwdfm.metrics.molecule import FoldCounts, canonical_set, histograms
from cwdfm.metrics.molecule import score_molecules as score
from tests.support.smiles import INVALID_SMILES

pytest.importorskip("rdkit", reason="needs the extra 'molecules'")


@pytest.mark.parametrize(
    "variants",
    [
        ("CCO", "OCC", "C(O)C", "[CH3][CH2][OH]", " CCO\n"),
        ("C1CC1", "C2CC2", "C1C-C1", "C%11CC%11"),
        ("c1ccccc1", "C1=CC=CC=C1", "C1C=CC=CC=1"),
        ("C[C@H](N)O", "O[C@@H](N)C"),
        ("C.O", "O.C"),
    ],
    ids=lambda s: s[0],
)
def test_different_smiles_of_one_molecule_agree(variants: tuple[str, ...]) -> None:
    (one,) = {canonical(s) for s in variants}
    assert one is not None
    assert canonical(one) == one


def test_different_molecules_differ() -> None:
    different = ["CCO", "COC", "C1CC1", "CCC", "C[C@H](N)O", "C[C@@H](N)O", "CC(N)O", "C.O", "CO"]
    assert len({canonical(s) for s in different}) == len(different)


@pytest.mark.parametrize("text", INVALID_SMILES.values(), ids=INVALID_SMILES)
def test_invalid(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert canonical(text) is None
    assert capfd.readouterr() == ("", "")  # RDKit prints nothing


# Samples, training set, fold size; valid, unique and novel counts.
Counts = tuple[int, ...] | None
COUNTED: dict[str, tuple[list[str], Collection[str] | None, int, tuple[Counts, ...]]] = {
    # Ethanol and benzene occur twice; cyclopropane and acetamide are novel.
    "duplicates": (
        ["CCO", "OCC", "C1CC1", "C1CC", "", "CC(=O)N", "c1ccccc1", "C1=CC=CC=C1"],
        ["OCC", "C1=CC=CC=C1", "C1C=CC=CC=1"],
        8,
        ((6,), (4,), (2,)),
    ),
    "folds": (
        ["C", "C", "CC", "x", "C", "CC", "CCC", "CCCC", "x", "x", "x", "O", "CCCCC", "CCCCCC"],
        ["C"],
        4,
        ((3, 4, 1), (2, 4, 1), (1, 3, 1)),
    ),
    "short": (["C", "CC", "x"], None, 1024, ((2,), (2,), None)),
    "invalid": (["x", "C1"], ["C"], 1, ((0, 0), (0, 0), (0, 0))),
}


@pytest.mark.parametrize("row", COUNTED)
def test_counted_by_hand(row: str) -> None:
    samples, training, fold_size, counts = COUNTED[row]
    scores = score(samples, training, fold_size=fold_size)
    size = min(fold_size, len(samples))
    found = (scores.valid, scores.unique, scores.novel)
    assert tuple(fold and fold.counts for fold in found) == counts
    assert (scores.samples, scores.fold_size, scores.folds) == (
        len(samples),
        size,
        len(samples) // size,
    )
    assert (scores.remainder, scores.short) == (len(samples) % size, len(samples) < fold_size)
    for fold in found:
        if fold is not None:
            assert fold.mean == pytest.approx(np.mean(fold.counts))
            one = scores.folds == 1
            assert fold.std == (None if one else pytest.approx(np.std(fold.counts, ddof=1)))


def test_scores_as_text() -> None:
    text = str(score(["C", "CO", "x"], ["C"]))
    assert text == "valid 2 (66.7%), unique 2 (66.7%), novel 1 (33.3%) of 3 (1 fold)"
    assert "of 2 (2 folds, 1 samples in no fold)" in str(score(["C"] * 5, None, fold_size=2))


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys])
def test_novelty_ignores_the_form_of_smiles(kind: Callable[[list[str]], Collection[str]]) -> None:
    samples = ["CC(=O)N", "NC(C)=O", "CC(=O)N", "C1CC1", "CCO", "OCC"]
    assert score(samples, kind(["C(O)C"])).novel == FoldCounts((2,))


def test_default_fold_size_is_that_of_the_paper() -> None:
    scores = score(["C"] * 2049, None)
    assert (scores.fold_size, scores.folds, scores.remainder) == (1024, 2, 1)


def test_noise_of_one_fold_is_binomial() -> None:
    scores = score(["C"] * 3 + ["x"], None)
    assert scores.noise("valid") == pytest.approx((4 * 0.75 * 0.25) ** 0.5)
    assert scores.noise("novel") is None
    scores = score(["C", "C", "x", "x"], None, fold_size=2)
    assert scores.noise("valid") == scores.valid.std == pytest.approx(2**0.5)


def test_training_sets_can_be_canonicalized_once() -> None:
    known = canonical_set(["OCC", "C1CC", "C(O)C"])
    assert set(known) == {"CCO"}
    assert score(["CCO", "C"], known) == score(["CCO", "C"], ["OCC"])
    # A CanonicalSet is not canonicalized again.
    assert score(["CCO"], CanonicalSet(["OCC"])).novel == FoldCounts((1,))


@pytest.mark.parametrize("training", [None, ["C"]])
def test_scores_as_json(training: list[str] | None) -> None:
    scores = score(["C", "CC", "CO", "x", "N"], training, fold_size=2)
    data = json.loads(json.dumps(scores.to_json()))
    assert data["valid"] == {"mean": 1.5, "std": pytest.approx(0.5**0.5), "counts": [2, 1]}
    assert (data["folds"], data["remainder"]) == (2, 1)
    assert (data["novel"] is None) == (training is None)


def test_histograms_by_hand() -> None:
    # Ours: ethanol, cyclopropane twice. Theirs: methane, oxirane, bicyclobutane; one invalid each.
    found = histograms(["OCC", "C1CC1", "C1CC1", "C1CC"], ["C", "C1CO1", "C12CC1C2", "x"])
    assert json.loads(json.dumps(found)) == found
    assert found["samples"] == found["reference"] == {"given": 4, "valid": 3}
    expected: dict[str, tuple[dict[str, float], dict[str, float], float]] = {
        "length": ({"3": 1 / 3, "5": 2 / 3}, {"1": 1 / 3, "5": 1 / 3, "8": 1 / 3}, 2 / 3),
        "heavy_atoms": ({"3": 1}, {"1": 1 / 3, "3": 1 / 3, "4": 1 / 3}, 2 / 3),
        "atom_types": ({"C": 8 / 9, "O": 1 / 9}, {"C": 7 / 8, "O": 1 / 8}, 1 / 8 - 1 / 9),
        "ring_counts": ({"0": 1 / 3, "1": 2 / 3}, {"0": 1 / 3, "1": 1 / 3, "2": 1 / 3}, 1 / 3),
        "ring_sizes": ({"3": 1}, {"3": 1}, 0),
    }
    assert found["features"].keys() == expected.keys()
    for name, (ours, theirs, distance) in expected.items():
        feature = found["features"][name]
        assert feature["samples"] == pytest.approx(ours)
        assert feature["reference"] == pytest.approx(theirs)
        assert feature["total_variation"] == pytest.approx(distance)


def test_explicit_hydrogen_is_not_a_heavy_atom() -> None:
    found = histograms(["[2H]C([2H])O"], ["CO"])["features"]
    assert found["atom_types"]["samples"] == {"C": 0.5, "O": 0.5}
    assert found["heavy_atoms"]["samples"] == {"2": 1.0}


def test_empty_histograms_have_no_distance() -> None:
    found = histograms(["x"], ["C", "[2H]C"])["features"]
    lengths = {"1": 0.5, "5": 0.5}
    assert found["length"] == {"samples": {}, "reference": lengths, "total_variation": None}
    assert found["heavy_atoms"]["reference"] == {"1": 1.0}
    assert found["ring_sizes"] == {"samples": {}, "reference": {}, "total_variation": None}


def test_training_in_any_collection() -> None:
    """Such as a column of a pandas table, whose truth value is an error."""

    class Series(list[str]):
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    assert score(["CCO", "CC"], Series(["OCC"])).novel == FoldCounts((1,))


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no-samples": (lambda: score([], None), "samples is empty.*at least one"),
    "one-string": (lambda: score("CCO", None), "samples must be a sequence.*str 'CCO'"),
    "set": (lambda: score(cast(Any, {"C"}), None), "samples must be a sequence.*list, got set"),
    "tokens": (lambda: score(cast(Any, [[1, 2]]), None), "must contain strings, got list.*decode"),
    "fold-size-zero": (lambda: score(["C"], None, fold_size=0), "integer >= 1, got 0"),
    "fold-size-float": (lambda: score(["C"], None, fold_size=cast(Any, 2.5)), r"got 2\.5"),
    "training-empty": (lambda: score(["C"], []), "training is empty"),
    "training-no-molecules": (
        lambda: score(["C"], ["index", "gdb_1"]),
        "none of the 2 strings in training.*'index'.*None",
    ),
    "reference-empty": (lambda: histograms(["C"], []), "reference is empty"),
    "reference-no-molecules": (lambda: histograms(["C"], ["x"]), "none of the 1 strings.*'x'"),
}


@pytest.mark.parametrize("row", WRONG)
def test_wrong_input(row: str) -> None:
    act, message = WRONG[row]
    with pytest.raises(InputError, match=f"(?s){message}"):
        act()
