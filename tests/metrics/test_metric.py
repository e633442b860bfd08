"""Molecule metrics against hand-counted lists, and the figures of molecules."""

import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwdfm.data.smiles import canonical
from cwdfm.errors import InputError
from cwdfm.metrics.molecule import (
    CanonicalSet,
    FoldCounts,
    MoleculeScores,
    canonical_set,
    histograms,
    score_molecules,
)
from cwdfm.report import figure
from cwdfm.report.molecule_plots import CurvePoint, curves, histogram_plot, molecule_grid

pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
pytest.importorskip("matplotlib", reason="needs the extra 'plot'")


@pytest.mark.parametrize(
    "spellings",
    [
        ("CCO", "OCC", "C(O)C", "[CH3][CH2][OH]", " CCO\n"),
        ("C1CC1", "C2CC2", "C1C-C1", "C%11CC%11"),
        ("c1ccccc1", "C1=CC=CC=C1", "C1C=CC=CC=1"),
        ("C[C@H](N)O", "O[C@@H](N)C"),
        ("C.O", "O.C"),
    ],
    ids=lambda s: s[0],
)
def test_different_smiles_of_one_molecule_agree(spellings: tuple[str, ...]) -> None:
    found = {canonical(s) for s in spellings}
    assert len(found) == 1
    assert None not in found
    (one,) = found
    assert one is not None
    assert canonical(one) == one


def test_different_molecules_differ() -> None:
    different = ["CCO", "COC", "C1CC1", "CCC", "C[C@H](N)O", "C[C@@H](N)O", "CC(N)O", "C.O", "CO"]
    assert len({canonical(s) for s in different}) == len(different)


INVALID = {
    "empty": "",
    "blanks": "  \n",
    "open-ring": "C1CC",
    "five-bonds-on-carbon": "C(C)(C)(C)(C)C",
    "three-bonds-on-oxygen": "CO(C)C",
    "open-bracket": "C(C",
    "unknown-element": "[Xx]",
    "no-kekule-form": "n1cccc1",
    "words-after-it": "CC nonsense",
    "two-molecules": "CC\tCO",
    "special-token": "CC<pad>",
    "not-ascii": "日本",
    "nul": "C\0C",
}


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_invalid(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert canonical(text) is None
    assert capfd.readouterr() == ("", "")  # RDKit prints nothing


def test_scores_counted_by_hand() -> None:
    samples = ["CCO", "OCC", "C1CC1", "C1CC", "", "CC(=O)N", "c1ccccc1", "C1=CC=CC=C1"]
    scores = score_molecules(samples, ["OCC", "C1=CC=CC=C1", "C1C=CC=CC=1"], fold_size=8)
    # Six are valid; ethanol and benzene occur twice; cyclopropane and acetamide are novel.
    expected = FoldCounts((6,)), FoldCounts((4,)), FoldCounts((2,))
    assert (scores.valid, scores.unique, scores.novel) == expected
    assert (scores.samples, scores.fold_size, scores.folds) == (8, 8, 1)
    assert (scores.remainder, scores.short) == (0, False)
    assert scores.valid.std is None
    assert str(scores) == "valid 6, unique 4, novel 2 of 8 (1 fold)"


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys])
def test_novelty_ignores_the_form_of_smiles(kind: Callable[[list[str]], Collection[str]]) -> None:
    samples = ["CC(=O)N", "NC(C)=O", "CC(=O)N", "C1CC1", "CCO", "OCC"]
    scores = score_molecules(samples, kind(["C(O)C"]), fold_size=6)
    expected = FoldCounts((6,)), FoldCounts((3,)), FoldCounts((2,))
    assert (scores.valid, scores.unique, scores.novel) == expected


def test_folds_are_counted_separately() -> None:
    folds = [["C", "C", "CC", "x"], ["C", "CC", "CCC", "CCCC"], ["x", "x", "x", "O"]]
    samples = [s for fold in folds for s in fold] + ["CCCCC", "CCCCCC"]
    scores = score_molecules(samples, ["C"], fold_size=4)
    assert scores.novel is not None
    assert scores.valid.counts == (3, 4, 1)
    assert scores.unique.counts == (2, 4, 1)
    assert scores.novel.counts == (1, 3, 1)
    assert (scores.folds, scores.remainder, scores.samples) == (3, 2, 14)
    for count in (scores.valid, scores.unique, scores.novel):
        assert count.mean == pytest.approx(np.mean(count.counts))
        assert count.std == pytest.approx(np.std(count.counts, ddof=1))
    assert "of 4 (3 folds, 2 samples in no fold)" in str(scores)


def test_few_samples_form_one_short_fold() -> None:
    scores = score_molecules(["C", "CC", "x"], None)
    assert (scores.valid.mean, scores.unique.mean, scores.novel) == (2, 2, None)
    assert (scores.fold_size, scores.samples, scores.folds, scores.short) == (3, 3, 1, True)


def test_default_fold_size_is_that_of_the_paper() -> None:
    scores = score_molecules(["C"] * 2049, None)
    assert (scores.fold_size, scores.folds, scores.remainder) == (1024, 2, 1)


def test_no_valid_sample_scores_zero() -> None:
    scores = score_molecules(["x", "C1"], ["C"], fold_size=1)
    assert [c and c.mean for c in (scores.valid, scores.unique, scores.novel)] == [0, 0, 0]


def test_training_sets_can_be_canonicalized_once() -> None:
    known = canonical_set(["OCC", "C1CC", "C(O)C"])
    assert set(known) == {"CCO"}
    assert score_molecules(["CCO", "C"], known) == score_molecules(["CCO", "C"], ["OCC"])
    # A CanonicalSet is not canonicalized again.
    assert score_molecules(["CCO"], CanonicalSet(["OCC"])).novel == FoldCounts((1,))


@pytest.mark.parametrize("training", [None, ["C"]])
def test_scores_round_trip_through_json(training: list[str] | None) -> None:
    scores = score_molecules(["C", "CC", "CO", "x", "N"], training, fold_size=2)
    data = json.loads(json.dumps(scores.to_json()))
    assert MoleculeScores.from_json(data) == scores
    assert data["valid"] == {"mean": 1.5, "std": pytest.approx(0.5**0.5), "counts": [2, 1]}
    assert (data["folds"], data["remainder"]) == (2, 1)
    assert (data["novel"] is None) == (training is None)


def test_histograms_by_hand() -> None:
    # Ours: ethanol, cyclopropane twice. Theirs: methane, oxirane, bicyclobutane; one invalid each.
    found = histograms(["OCC", "C1CC1", "C1CC1", "C1CC"], ["C", "C1CO1", "C12CC1C2", "x"])
    assert json.loads(json.dumps(found)) == found
    assert found["samples"] == found["reference"] == {"given": 4, "valid": 3}
    third = pytest.approx(1 / 3)
    assert found["features"] == {
        "length": {
            "samples": {"3": third, "5": pytest.approx(2 / 3)},
            "reference": {"1": third, "5": third, "8": third},
            "total_variation": pytest.approx(2 / 3),
        },
        "heavy_atoms": {
            "samples": {"3": 1.0},
            "reference": {"1": third, "3": third, "4": third},
            "total_variation": pytest.approx(2 / 3),
        },
        "atom_types": {
            "samples": {"C": pytest.approx(8 / 9), "O": pytest.approx(1 / 9)},
            "reference": {"C": pytest.approx(7 / 8), "O": pytest.approx(1 / 8)},
            "total_variation": pytest.approx(1 / 8 - 1 / 9),
        },
        "ring_counts": {
            "samples": {"0": third, "1": pytest.approx(2 / 3)},
            "reference": {"0": third, "1": third, "2": third},
            "total_variation": third,
        },
        "ring_sizes": {"samples": {"3": 1.0}, "reference": {"3": 1.0}, "total_variation": 0.0},
    }


def test_explicit_hydrogen_is_not_a_heavy_atom() -> None:
    found = histograms(["[2H]C([2H])O"], ["CO"])["features"]
    assert found["atom_types"]["samples"] == {"C": 0.5, "O": 0.5}
    assert found["heavy_atoms"]["samples"] == {"2": 1.0}


def test_empty_histograms_have_no_distance() -> None:
    found = histograms(["x"], ["C", "[2H]C"])["features"]
    assert found["length"] == {
        "samples": {},
        "reference": {"1": 0.5, "5": 0.5},
        "total_variation": None,
    }
    assert found["heavy_atoms"]["reference"] == {"1": 1.0}
    assert found["ring_sizes"] == {"samples": {}, "reference": {}, "total_variation": None}


def pixels(path: Path) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    from PIL import Image

    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB"))


def test_grid_shows_every_string_in_its_cell(tmp_path: Path) -> None:
    path = tmp_path / "new" / "grid.png"
    molecule_grid(["CCO", "C1CC", "C12C3C4C1C5C2C3C45", "C" * 60, "O"], path, columns=3)
    image = pixels(path)
    assert image.shape == (400, 600, 3)
    cells = [image[r : r + 200, c : c + 200] for r in (0, 200) for c in (0, 200, 400)]
    drawn = [bool((cell[10:160, 10:190] < 128).any()) for cell in cells]
    labelled = [bool((cell[170:195, 10:190] < 128).any()) for cell in cells]
    assert drawn == labelled == [True, True, True, True, True, False]
    assert [p.name for p in path.parent.iterdir()] == ["grid.png"]
    molecule_grid(["C"], path)
    assert pixels(path).shape == (200, 200, 3)


def test_crowded_drawings_are_not_flagged(tmp_path: Path) -> None:
    """Close atoms are not marked; there is no oxygen, whose color is red."""
    molecule_grid(["C1=CC2C3CCNC2N3C1"], tmp_path / "grid.png")
    red, green, blue = pixels(tmp_path / "grid.png").transpose(2, 0, 1)
    assert not ((red > 200) & (green < 60) & (blue < 60)).any()
    assert ((blue > 200) & (red < 60)).any()  # nitrogen's


def test_grid_accepts_any_string(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    strange = [*INVALID.values(), "CC\nnext line", "[C@@H]" * 60, "C.[Na+].[Cl-]", "*", "[H][H]"]
    molecule_grid(strange, path, columns=1)
    image = pixels(path)
    assert image.shape == (200 * len(strange), 200, 3)
    assert (image[:, 1:7] > 200).all()
    assert (image[:, -7:-1] > 200).all()


def point(solver: str, steps: int, *counts: int, size: int = 8, novel: bool = True) -> CurvePoint:
    folds = FoldCounts(counts)
    scores = MoleculeScores(folds, folds, folds if novel else None, size, size, 0, False)
    return CurvePoint(solver, steps, scores)


def has_color(image: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", color: str) -> bool:
    rgb = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((image == rgb).all(-1).any())


def test_curves_use_the_color_of_each_solver(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    points = [point("entropy", 16, 1, 2), point("Euler", 16, 3, 5), point("Euler", 8, 2)]
    curves(points, path, title="small")
    image = pixels(path)
    assert image.shape[:2] == (429, 1386)
    colors = {"Euler": "#333333", "Entropy": "#EE7733", "Neighbor": "#009988"}
    shown = {name for name, color in colors.items() if has_color(image, color)}
    assert shown == {"Euler", "Entropy"}
    curves([*points, point("Neighbor-weighted", 4, 7, novel=False)], path)
    image = pixels(path)
    assert image.shape[:2] == (429, 924)  # without novelty everywhere, two panels
    assert has_color(image, "#009988")


def test_curves_of_one_fold_show_binomial_errors(tmp_path: Path) -> None:
    path, drawn = tmp_path / "curves.png", []
    for count in (8, 4):  # of 8: nothing is left to chance, and most of all
        curves([point("Euler", 8, count)], path)
        drawn.append(int((pixels(path) == 0x33).all(-1).sum()))
    assert drawn[1] > drawn[0] + 200


def test_each_panel_has_its_own_error_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figure, "save_figure", lambda figure, path: drawn.append(figure))
    valid, unique, novel = (FoldCounts((count,)) for count in (8, 4, 2))  # of 8
    scores = MoleculeScores(valid, unique, novel, 8, 8, 0, False)
    curves([CurvePoint("Euler", 1024, scores)], tmp_path / "a.png")
    assert [text.get_text() for text in drawn[0].axes[0].get_xticklabels()] == ["1,024"]
    spreads = []
    for axis, count in zip(drawn[0].axes, (8, 4, 2), strict=True):
        ((low, high),) = axis.containers[0].lines[2][0].get_segments()
        assert (low[1] + high[1]) / 2 == pytest.approx(count)
        spreads.append((high[1] - low[1]) / 2)
    assert spreads == pytest.approx([0, 2**0.5, 1.5**0.5])  # by chance alone
    curves([point("Euler", 8, 2, 4)], tmp_path / "a.png")  # two folds
    for axis in drawn[1].axes:
        (segment,) = axis.containers[0].lines[2][0].get_segments()
        assert segment[:, 1] == pytest.approx([3 - 2**0.5, 3 + 2**0.5])


def test_histogram_plot(tmp_path: Path) -> None:
    path = tmp_path / "histogram.png"
    histogram_plot(histograms(["CCO", "C1CC1"], ["C", "N", "C1CC1"]), path, title="small")
    image = pixels(path)
    assert image.shape[:2] == (726, 1430)
    assert has_color(image, "#009988")
    assert has_color(image, "#BBBBBB")
    histogram_plot(histograms(["x"], ["C"]), path)  # nothing valid: the data alone
    assert has_color(pixels(path), "#BBBBBB")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "grid.png"
    path.write_bytes(b"old")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        molecule_grid(["C"], path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


PNG = Path("never-written.png")
TWO_SIZES = [point("Euler", 8, 1), point("Euler", 16, 1, size=1024)]
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no-samples": (lambda: score_molecules([], None), "samples is empty.*at least one"),
    "one-string": (lambda: score_molecules("CCO", None), "samples must be a sequence.*str 'CCO'"),
    "samples-in-a-set": (
        lambda: score_molecules({"C"}, None),  # type: ignore[arg-type]
        "samples must be a sequence.*such as a list, got set",
    ),
    "tokens-for-strings": (
        lambda: score_molecules([[1, 2]], None),  # type: ignore[list-item]
        "must contain strings, got list.*decode",
    ),
    "fold-size-zero": (lambda: score_molecules(["C"], None, fold_size=0), "integer >= 1, got 0"),
    "fold-size-float": (
        lambda: score_molecules(["C"], None, fold_size=2.5),  # type: ignore[arg-type]
        r"integer >= 1, got 2\.5",
    ),
    "training-empty": (lambda: score_molecules(["C"], []), "training is empty"),
    "training-no-molecules": (
        lambda: score_molecules(["C"], ["index", "gdb_1"]),
        "none of the 2 strings in training.*'index'.*None",
    ),
    "reference-empty": (lambda: histograms(["C"], []), "reference is empty"),
    "reference-no-molecules": (lambda: histograms(["C"], ["x"]), "none of the 1 strings.*'x'"),
    "grid-empty": (lambda: molecule_grid([], PNG), "smiles is empty"),
    "grid-columns": (lambda: molecule_grid(["C"], PNG, columns=0), r"columns.*1\.\.160, got 0"),
    "grid-too-tall": (lambda: molecule_grid(["C"] * 161, PNG, columns=1), "at most 160, or more"),
    "not-png": (lambda: molecule_grid(["C"], Path("a.jpg")), "end in .png, got 'a.jpg'"),
    "no-points": (lambda: curves([], PNG), "points is empty"),
    "mixed-folds": (lambda: curves(TWO_SIZES, PNG), "folds of 8 and 1,024.*fold_size"),
    "point-twice": (lambda: curves(TWO_SIZES[:1] * 2, PNG), "'Euler' at 8 steps more than once"),
    "not-histograms": (lambda: histogram_plot({}, PNG), "histograms.., got dict"),
}


@pytest.mark.parametrize("row", REFUSED)
def test_refused(row: str) -> None:
    act, message = REFUSED[row]
    with pytest.raises(InputError, match=f"(?s){message}"):
        act()
    assert not PNG.exists()


@pytest.mark.parametrize(
    ("module", "extra", "act"),
    [
        ("rdkit.Chem", "molecules", lambda: canonical("C")),
        ("rdkit.Chem", "molecules", lambda: score_molecules(["C"], None)),
        ("rdkit.Chem", "molecules", lambda: histograms(["C"], ["C"])),
        ("PIL.Image", "molecules", lambda: molecule_grid(["C"], PNG)),
        ("matplotlib.figure", "plot", lambda: curves([point("Euler", 8, 1)], PNG)),
    ],
)
def test_a_missing_extra_is_named(
    module: str, extra: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"pip install 'cwdfm\[{extra}\]'"):
        act()
