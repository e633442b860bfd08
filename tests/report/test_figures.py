"""Figures: the molecule grid, curves, histograms, and the plots of the analyses."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.data.smiles import canonical
from cwdfm.errors import InputError
from cwdfm.metrics.analysis import UpdateStatistics, context_analysis
from cwdfm.metrics.molecule import FoldCounts, MoleculeScores, histograms, score_molecules
from cwdfm.report.analysis import context_plot, updates_plot, updates_table
from cwdfm.report.figure import figure_of, save_figure, styles_of
from cwdfm.report.molecule_plots import histogram_plot, molecule_grid
from cwdfm.report.molecules import ScoredMolecules, curves
from cwdfm.report.sample_set import SampleSet
from tests.support.cases import slow
from tests.support.models import SmallModel

pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
pytest.importorskip("matplotlib", reason="needs the extra 'plot'")

Image = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def pixels(path: Path) -> Image:
    from PIL import Image

    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB"))


def has_color(image: Image, color: str) -> bool:
    return bool((image == list(bytes.fromhex(color[1:]))).all(-1).any())


def test_grid_shows_every_string_in_its_cell(tmp_path: Path) -> None:
    path = tmp_path / "new" / "grid.png"
    molecule_grid(["CCO", "C1CC1", "C12C3C4C1C5C2C3C45", "[C@@H]" * 60, "C.*"], path, columns=3)
    image = pixels(path)
    assert image.shape == (400, 600, 3)
    cells = [image[r : r + 200, c : c + 200] for r in (0, 200) for c in (0, 200, 400)]
    drawn = [bool((cell[10:160, 10:190] < 128).any()) for cell in cells]
    labeled = [bool((cell[170:195, 10:190] < 128).any()) for cell in cells]
    assert drawn == labeled == [True, True, True, True, True, False]
    assert [p.name for p in path.parent.iterdir()] == ["grid.png"]
    molecule_grid(["C"], path)
    assert pixels(path).shape == (200, 200, 3)


def test_crowded_drawings_are_not_flagged(tmp_path: Path) -> None:
    """Close atoms are not marked; there is no oxygen, whose color is red."""
    molecule_grid(["C1=CC2C3CCNC2N3C1"], tmp_path / "grid.png")
    red, green, blue = pixels(tmp_path / "grid.png").transpose(2, 0, 1)
    assert not ((red > 200) & (green < 60) & (blue < 60)).any()
    assert ((blue > 200) & (red < 60)).any()  # nitrogen's


def full(part: Path, data: bytes) -> None:
    part.touch()
    raise OSError(28, "No space left on device")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "grid.png"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        molecule_grid(["C"], path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def scored(solver: str, steps: int, *counts: FoldCounts | None, size: int = 8) -> ScoredMolecules:
    valid, unique, novel = counts if len(counts) == 3 else counts * 3
    assert valid is not None
    assert unique is not None
    scores = MoleculeScores(valid, unique, novel, size, size, 0, False)
    return ScoredMolecules(SampleSet("m", solver, steps, ()), scores, None)


def test_curves_use_the_color_of_each_solver(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    counts = {"entropy": (1, 2), "Euler": (3, 5)}
    rows = [scored(solver, 16, FoldCounts(n)) for solver, n in counts.items()]
    curves([*rows, scored("Euler", 8, FoldCounts((2,)))], path)
    image = pixels(path)
    assert image.shape[:2] == (429, 1386)
    colors = {"Euler": "#333333", "Entropy": "#EE7733", "Neighbor": "#009988"}
    shown = {name for name, color in colors.items() if has_color(image, color)}
    assert shown == {"Euler", "Entropy"}
    seven = FoldCounts((7,))
    curves([scored("Neighbor-weighted", steps, seven, seven, None) for steps in (4, 8)], path)
    image = pixels(path)
    assert image.shape[:2] == (429, 924)  # without novelty, two panels
    assert has_color(image, "#009988")


def test_each_panel_has_its_own_error_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one fold the binomial standard deviation, otherwise the one over folds."""
    drawn: list[Any] = []
    monkeypatch.setattr("cwdfm.report.figure.save_figure", lambda figure, _: drawn.append(figure))
    curves([scored("Euler", 1024, *(FoldCounts((n,)) for n in (8, 4, 2)))], tmp_path / "a.png")
    assert [text.get_text() for text in drawn[0].axes[0].get_xticklabels()] == ["1,024"]
    spreads = []
    for axis, count in zip(drawn[0].axes, (8, 4, 2), strict=True):
        ((low, high),) = axis.containers[0].lines[2][0].get_segments()
        assert (low[1] + high[1]) / 2 == pytest.approx(count)
        spreads.append((high[1] - low[1]) / 2)
    assert spreads == pytest.approx([0, 2**0.5, 1.5**0.5])
    curves([scored("Euler", 8, FoldCounts((2, 4)))], tmp_path / "a.png")
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
    histogram_plot(histograms(["x"], ["C"]), path, title="nothing valid")
    assert has_color(pixels(path), "#BBBBBB")


def test_updates_table_and_plot(tmp_path: Path) -> None:
    results = {
        "Euler": UpdateStatistics(1.234, 0.01, 0.05, (100, 500, 168), 64),
        "Neighbor-weighted": UpdateStatistics(1.5, None, 0.0, (0, 768), 64),
    }
    assert updates_table(results).rows == (
        ("Euler", "1.234 ± 0.010", "5.000%", "21.88%", "768"),
        ("Neighbor-weighted", "1.5", "0.000%", "0.00%", "768"),
    )
    path = tmp_path / "updates.png"
    updates_plot(results, path, title="small")
    image = pixels(path)
    assert image.shape[:2] == (462, 792)
    assert has_color(image, "#333333")
    assert has_color(image, "#009988")


@pytest.mark.parametrize("sequences", [40, slow(1)])  # of one: no error bars, some bins empty
def test_context_plot(tmp_path: Path, sequences: int) -> None:
    path = tmp_path / "context.png"
    x = torch.randint(3, (sequences, 5), generator=torch.Generator().manual_seed(0))
    found = context_analysis(SmallModel(4), cwdfm.MaskSource(3), cwdfm.Polynomial(2.0), x, radius=2)
    context_plot(found, path, title="small")
    image = pixels(path)
    assert image.shape[:2] == (792, 1056)
    assert has_color(image, "#0077BB")
    for style in styles_of(["Neighbor", "Entropy"]).values():
        assert not has_color(image, style.color)


PNG = Path("never-written.png")


@pytest.mark.parametrize(
    ("module", "extra", "act"),
    [
        ("rdkit.Chem", "molecules", lambda: canonical("C")),
        ("rdkit.Chem", "molecules", lambda: score_molecules(["C"], None)),
        ("rdkit.Chem", "molecules", lambda: histograms(["C"], ["C"])),
        ("rdkit.Chem.Draw.rdMolDraw2D", "molecules", lambda: molecule_grid(["C"], PNG)),
        ("matplotlib.figure", "plot", lambda: curves([scored("Euler", 8, FoldCounts((1,)))], PNG)),
    ],
)
def test_a_missing_extra_is_named(
    module: str, extra: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"pip install 'cwdfm\[{extra}\]'"):
        act()


def test_dollar_signs_in_names_are_not_formulas(tmp_path: Path) -> None:
    figure = figure_of(2, 2)
    axis = figure.subplots()
    axis.plot([1, 1000], label=r"$\frac$")
    axis.set(title="run$1_{$.smi", yscale="log")
    axis.legend()
    save_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert any("mathdefault" in text.get_text() for text in axis.get_yticklabels())
