"""Figures of molecules: drawings in a grid, scores against steps, histograms of features."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.data.smiles import parse
from cwdfm.errors import InputError, check_strings, describe, load_extra
from cwdfm.metrics.molecule import SCORES, MoleculeScores
from cwdfm.report.figure import (
    Panel,
    Point,
    check_png,
    figure_of,
    save_figure,
    step_curves,
    write_png,
)

_DATA, _SAMPLES = "#BBBBBB", "#009988"
_INVALID, _LABEL, _FRAME = "#BB3333", "#333333", "#E8E8E8"
_CELL, _DRAWING = 200, 170  # pixels: side of a cell, height of the drawing in it
_PIL = ("Image", "ImageDraw", "ImageFont")
_MAX_PIXELS = 32_000  # Cairo is limited to 32,767


def molecule_grid(smiles: Sequence[str], path: Path, columns: int = 8) -> None:
    """Draw molecules in rows of `columns`, each above its SMILES string.

    All drawings have the same bond length, unless a molecule does not fit. The cell of an invalid
    string says so.
    """
    check_strings("smiles", smiles, "SMILES strings")
    check_png(path)
    if not isinstance(columns, int) or not 1 <= columns <= _MAX_PIXELS // _CELL:
        raise InputError(
            f"columns must be an integer in 1..{_MAX_PIXELS // _CELL}, got {columns!r}"
        )
    columns = min(columns, len(smiles))
    rows = -(-len(smiles) // columns)
    if rows * _CELL > _MAX_PIXELS:
        raise InputError(
            f"{len(smiles):,} molecules in {columns} columns do not fit into one image; "
            f"give at most {_MAX_PIXELS // _CELL * columns:,}, or more columns"
        )
    image, pen, font = (load_extra(f"PIL.{name}", "molecules") for name in _PIL)
    sheet = image.new("RGB", (columns * _CELL, rows * _CELL), "white")
    canvas, typeface = pen.Draw(sheet), font.load_default(13)
    for cell, text in enumerate(smiles):
        left, top = cell % columns * _CELL, cell // columns * _CELL
        center = left + _CELL // 2
        molecule = parse(text)
        if molecule is None:
            canvas.text((center, top + _DRAWING // 2), "invalid", _INVALID, typeface, anchor="mm")
        else:
            sheet.paste(image.open(io.BytesIO(_depict(molecule))), (left, top))
        color = _INVALID if molecule is None else _LABEL
        canvas.text(
            (center, top + _DRAWING + 4), _label(text, typeface), color, typeface, anchor="ma"
        )
        canvas.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=_FRAME)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    write_png(path, buffer.getvalue())


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


@dataclass(frozen=True)
class CurvePoint:
    """The scores of one solver at one number of steps."""

    solver: str
    steps: int
    scores: MoleculeScores


def curves(points: Sequence[CurvePoint], path: Path, *, title: str | None = None) -> None:
    """Draw valid, unique and novel molecules against the number of steps, one line per solver.

    Error bars are one standard deviation of a fold's count. The panel of novel molecules is omitted
    unless all points have a count.
    """
    if not points:
        raise InputError("points is empty; give at least one CurvePoint")
    sizes = sorted({p.scores.fold_size for p in points})
    if len(sizes) > 1:
        raise InputError(
            f"points were counted in folds of {' and '.join(f'{s:,}' for s in sizes)} samples and "
            f"cannot share an axis; score all of them with the same fold_size"
        )
    repeated = [key for key, n in Counter((p.solver, p.steps) for p in points).items() if n > 1]
    if repeated:
        solver, steps = repeated[0]
        raise InputError(
            f"points contains {solver!r} at {steps} steps more than once; give one point per "
            f"solver and number of steps, or use different names"
        )
    panels = []
    for name in SCORES:
        lines: dict[str, list[Point]] = {}
        for p in points:
            counts = p.scores.counts()[name]
            if counts is not None:
                point = (p.steps, counts.mean, p.scores.noise(name))
                lines.setdefault(p.solver, []).append(point)
        if sum(map(len, lines.values())) == len(points):
            panels.append(Panel(name, lines))
    step_curves(panels, path, title=title, ylabel=f"molecules of {sizes[0]:,}")


def histogram_plot(result: Mapping[str, Any], path: Path, *, title: str | None = None) -> None:
    """Draw the result of `histograms`: the shares of data and samples side by side."""
    if not isinstance(result, Mapping) or "features" not in result:
        raise InputError(f"result must be the return value of histograms(), got {describe(result)}")
    check_png(path)
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
        axis.set(title=name.replace("_", " ") + label, ylabel="share")
        axis.grid(alpha=0.3, axis="y")
        axis.set_axisbelow(True)
        axis.set_ylim(0, None if bins else 1)
        if not bins:
            axis.text(0.5, 0.5, "none", ha="center", va="center", transform=axis.transAxes)
    _legend(axes[len(features)], result)
    if title is not None:
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
        size = result[side]
        label = f"{name}: {size['valid']:,} valid of {size['given']:,}"
        axis.bar([0], [0], color=color, label=label)
    axis.legend(loc="center", frameon=False, fontsize=11)
