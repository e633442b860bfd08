"""Figures of molecules: grids of drawings, and histograms of features and properties."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.smiles import parse, rdkit
from cwdfm.files import replacing
from cwdfm.report.figure import figure_of, save_figure

_DATA, _SAMPLES = "#BBBBBB", "#009988"
_CELL, _LABEL = 200, 24  # side of a cell in pixels, maximum characters of a label


def molecule_grid(
    smiles: Sequence[str], path: Path, columns: int = 4, highlight: Sequence[Any] = ()
) -> None:
    """Draw valid molecules in a grid, each above its SMILES string.

    All drawings have the same bond length, except for molecules that would not fit. Atoms and bonds
    that match a pattern in `highlight` are colored.
    """
    columns = min(columns, len(smiles))
    rows = -(-len(smiles) // columns)
    molecules = [parse(text) for text in smiles]
    for molecule in molecules:  # CoordGen gives the best layout for the small cages in QM9
        rdkit("Chem.rdCoordGen").AddCoords(molecule)
    draw = rdkit("Chem.Draw.rdMolDraw2D")
    canvas = draw.MolDraw2DCairo(columns * _CELL, rows * _CELL, _CELL, _CELL)
    options = canvas.drawOptions()
    options.fixedBondLength = 46
    options.drawMolsSameScale = False  # otherwise one large molecule would shrink all others
    options.bondLineWidth = 2
    options.maxFontSize = 22
    options.legendFontSize = 13
    options.legendFraction = 0.15
    options.padding = 0.06
    options.flagCloseContactsDist = -1  # no red boxes around close atoms
    labels = [text if len(text) <= _LABEL else text[: _LABEL - 3] + "..." for text in smiles]
    matches = [
        {i for pattern in highlight for i in molecule.GetSubstructMatch(pattern)}
        for molecule in molecules
    ]
    bonds = [
        [b.GetIdx() for b in m.GetBonds() if {b.GetBeginAtomIdx(), b.GetEndAtomIdx()} <= atoms]
        for m, atoms in zip(molecules, matches, strict=True)
    ]
    atoms = [sorted(match) for match in matches]
    canvas.DrawMolecules(molecules, highlightAtoms=atoms, highlightBonds=bonds, legends=labels)
    canvas.FinishDrawing()
    with replacing(path) as temporary:
        temporary.write_bytes(canvas.GetDrawingText())


def histogram_plot(result: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw the result of `histograms`, with data and samples side by side."""
    features = result["features"]
    figure = figure_of(13, 6.6)
    axes = list(figure.subplots(2, 3).flat)
    for axis, (name, feature) in zip(axes, features.items(), strict=False):
        bins = _bins(feature)
        for shift, side, color in ((-0.2, "reference", _DATA), (0.2, "samples", _SAMPLES)):
            shares = [feature[side].get(b, 0.0) for b in bins]
            axis.bar([i + shift for i in range(len(bins))], shares, 0.4, color=color)
        stride = max(1, -(-len(bins) // 14))  # more labels would overlap
        axis.set_xticks(range(0, len(bins), stride), bins[::stride])
        distance = feature["total_variation"]
        label = "" if distance is None else f" (total variation {distance:.3f})"
        axis.set(title=name.replace("_", " ") + label, ylabel="share", axisbelow=True)
        axis.grid(alpha=0.3, axis="y")
        axis.set_ylim(0, None if bins else 1)
        if not bins:
            axis.text(0.5, 0.5, "none", ha="center", va="center", transform=axis.transAxes)
    _legend(axes[len(features)], result)
    figure.suptitle(title)
    save_figure(figure, path)


def property_plot(
    samples: Mapping[str, NDArray[np.float64]],
    data: Mapping[str, NDArray[np.float64]],
    path: Path,
    *,
    title: str,
) -> None:
    """Draw density histograms of properties, with the means in the titles."""
    figure = figure_of(13, 3.4)
    axes = figure.subplots(1, len(samples), squeeze=False)[0]
    for axis, (name, values) in zip(axes, samples.items(), strict=True):
        low, high = np.percentile(np.concatenate([values, data[name]]), (0.5, 99.5))
        bins = np.linspace(low, high, 41) if low < high else 1
        axis.hist(data[name], bins, density=True, color=_DATA, label="data")
        style = {"histtype": "step", "color": _SAMPLES, "linewidth": 1.8, "label": "samples"}
        axis.hist(values, bins, density=True, **style)
        means = f"{values.mean():.4g}, data {data[name].mean():.4g}"
        axis.set(title=f"{name} (mean {means})", yticks=[])
    axes[-1].legend(frameon=False)
    figure.suptitle(title)
    save_figure(figure, path)


def _bins(feature: Mapping[str, Any]) -> list[str]:
    """All bins: consecutive integers, or names by decreasing share in the data."""
    names = {*feature["reference"], *feature["samples"]}
    if names and all(b.isdigit() for b in names):
        numbers = [int(b) for b in names]
        return [str(b) for b in range(min(numbers), max(numbers) + 1)]
    return sorted(names, key=lambda b: (-feature["reference"].get(b, 0.0), b))


def _legend(axis: Any, result: Mapping[str, Any]) -> None:
    """Draw the legend with the numbers of molecules in the unused panel."""
    axis.axis("off")
    for side, name, color in (("reference", "data", _DATA), ("samples", "samples", _SAMPLES)):
        valid, given = result[side]["valid"], result[side]["given"]
        label = f"{name}: {valid:,} valid of {given:,} ({valid / given:.1%})"
        axis.bar([0], [0], color=color, label=label)
    axis.legend(loc="center", frameon=False, fontsize=11)
