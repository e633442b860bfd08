"""Figures of molecules: drawings in a grid, and histograms of features."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cwdfm.data.smiles import parse
from cwdfm.errors import load_extra
from cwdfm.files import replacing
from cwdfm.report.figure import figure_of, save_figure

_DATA, _SAMPLES = "#BBBBBB", "#009988"
_INVALID, _LABEL, _FRAME = "#BB3333", "#333333", "#E8E8E8"
_CELL, _DRAWING = 200, 170  # pixels: side of a cell, height of the drawing in it
_PIL = ("Image", "ImageDraw", "ImageFont")


def molecule_grid(smiles: Sequence[str], path: Path, columns: int = 4) -> None:
    """Draw molecules in rows of `columns`, each above its SMILES string.

    All drawings have the same bond length, unless a molecule does not fit. The cell of an invalid
    string says so.
    """
    columns = min(columns, len(smiles))
    rows = -(-len(smiles) // columns)
    image, pen, font = (load_extra(f"PIL.{name}", "molecules") for name in _PIL)
    sheet = image.new("RGB", (columns * _CELL, rows * _CELL), "white")
    canvas, typeface = pen.Draw(sheet), font.load_default(13)
    for cell, text in enumerate(smiles):
        left, top = cell % columns * _CELL, cell // columns * _CELL
        center, label = left + _CELL // 2, _label(text, typeface)
        if (molecule := parse(text)) is None:
            canvas.text((center, top + _DRAWING // 2), "invalid", _INVALID, typeface, anchor="mm")
        else:
            sheet.paste(image.open(io.BytesIO(_depict(molecule))), (left, top))
        color = _INVALID if molecule is None else _LABEL
        canvas.text((center, top + _DRAWING + 4), label, color, typeface, anchor="ma")
        canvas.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=_FRAME)
    with replacing(path) as part:
        sheet.save(part, format="PNG")


def _depict(molecule: Any) -> bytes:
    """Draw one molecule as a PNG; CoordGen gives the best layout for the small cages in QM9."""
    load_extra("rdkit.Chem.rdCoordGen", "molecules").AddCoords(molecule)
    draw = load_extra("rdkit.Chem.Draw.rdMolDraw2D", "molecules")
    canvas = draw.MolDraw2DCairo(_CELL, _DRAWING)
    options = canvas.drawOptions()
    options.fixedBondLength = 46
    options.bondLineWidth = 2
    options.maxFontSize = 22
    options.padding = 0.06
    options.flagCloseContactsDist = -1  # no red boxes around close atoms
    canvas.DrawMolecule(molecule)
    canvas.FinishDrawing()
    return bytes(canvas.GetDrawingText())


def _label(text: str, typeface: Any) -> str:
    """The string on one line, truncated to the width of a cell."""
    label = text = " ".join(text.split())[:_CELL]
    while typeface.getlength(label) > _CELL - 16:
        text = text[:-1]
        label = text + "…"
    return label


def histogram_plot(result: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Draw the result of `histograms`: the shares of data and samples side by side."""
    features = result["features"]
    figure = figure_of(13, 6.6)
    axes = list(figure.subplots(2, 3).flat)
    for axis, (name, feature) in zip(axes, features.items(), strict=False):
        bins = _bins(feature)
        for shift, side, color in ((-0.2, "reference", _DATA), (0.2, "samples", _SAMPLES)):
            shares = [feature[side].get(b, 0.0) for b in bins]
            axis.bar([i + shift for i in range(len(bins))], shares, 0.4, color=color)
        every = max(1, -(-len(bins) // 14))  # more labels would overlap
        axis.set_xticks(range(0, len(bins), every), bins[::every])
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


def _bins(feature: Mapping[str, Any]) -> list[str]:
    """All bins: integers in order without gaps, or names by decreasing share of the data."""
    found = {*feature["reference"], *feature["samples"]}
    if found and all(b.isdigit() for b in found):
        numbers = [int(b) for b in found]
        return [str(b) for b in range(min(numbers), max(numbers) + 1)]
    return sorted(found, key=lambda b: (-feature["reference"].get(b, 0.0), b))


def _legend(axis: Any, result: Mapping[str, Any]) -> None:
    """Draw the legend, with the numbers of molecules, into the unused panel."""
    axis.axis("off")
    for side, name, color in (("reference", "data", _DATA), ("samples", "samples", _SAMPLES)):
        label = f"{name}: {result[side]['valid']:,} valid of {result[side]['given']:,}"
        axis.bar([0], [0], color=color, label=label)
    axis.legend(loc="center", frameon=False, fontsize=11)
