"""Pictures of molecules and of their scores: a grid, quality against steps, histograms.

All are PNG files, and each is either the old file or the whole new one.
"""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.data.chemistry import parse
from cwdfm.errors import InputError, check_strings, describe, load_extra
from cwdfm.metrics.molecule import FoldCounts, MoleculeScores
from cwdfm.report.figure import NUMBER, check_png, figure_of, save_figure, styles_of, write_png

_DATA, _SAMPLES = "#BBBBBB", "#009988"
_INVALID, _LABEL, _FRAME = "#BB3333", "#333333", "#E8E8E8"
_CELL, _DRAWN = 200, 170  # pixels of a square cell, and of the drawing's height in it
_PIL = ("Image", "ImageDraw", "ImageFont")
_TALLEST = 32_000  # Cairo's images end at 32,767 pixels


def molecule_grid(smiles: Sequence[str], path: Path, columns: int = 8) -> None:
    """Draw molecules in rows of `columns`, each above its string as given.

    All have the same bond length unless they would not fit. A string that is no valid molecule
    keeps its cell, marked as invalid.
    """
    check_strings("smiles", smiles, "SMILES strings")
    check_png(path)
    if not isinstance(columns, int) or not 1 <= columns <= _TALLEST // _CELL:
        raise InputError(f"columns must be an integer in 1..{_TALLEST // _CELL}, got {columns!r}")
    columns = min(columns, len(smiles))
    rows = -(-len(smiles) // columns)
    if rows * _CELL > _TALLEST:
        raise InputError(
            f"{len(smiles):,} molecules in {columns} columns make too tall a picture; "
            f"give at most {_TALLEST // _CELL * columns:,}, or more columns"
        )
    image, pen, font = (load_extra(f"PIL.{name}", "molecules") for name in _PIL)
    sheet = image.new("RGB", (columns * _CELL, rows * _CELL), "white")
    canvas, letters = pen.Draw(sheet), font.load_default(13)
    for cell, text in enumerate(smiles):
        left, top = cell % columns * _CELL, cell // columns * _CELL
        middle = left + _CELL // 2
        molecule = parse(text)
        if molecule is None:
            canvas.text((middle, top + _DRAWN // 2), "invalid", _INVALID, letters, anchor="mm")
        else:
            sheet.paste(image.open(io.BytesIO(_depict(molecule))), (left, top))
        color = _INVALID if molecule is None else _LABEL
        canvas.text((middle, top + _DRAWN + 4), _label(text, letters), color, letters, anchor="ma")
        canvas.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=_FRAME)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    write_png(path, buffer.getvalue())


def _depict(molecule: Any) -> bytes:
    """One molecule as a PNG; CoordGen lays out the many small cages of QM9 best."""
    load_extra("rdkit.Chem.rdCoordGen", "molecules").AddCoords(molecule)
    draw = load_extra("rdkit.Chem.Draw.rdMolDraw2D", "molecules")
    canvas = draw.MolDraw2DCairo(_CELL, _DRAWN)
    options = canvas.drawOptions()
    options.fixedBondLength = 46
    options.bondLineWidth = 2
    options.maxFontSize = 22
    options.padding = 0.06
    options.flagCloseContactsDist = -1  # no red boxes: a crowded drawing says nothing of a molecule
    canvas.DrawMolecule(molecule)
    canvas.FinishDrawing()
    return bytes(canvas.GetDrawingText())


def _label(text: str, letters: Any) -> str:
    """The string on one line, cut where it would leave its cell."""
    label = text = " ".join(text.split())[:_CELL]  # one letter a pixel is more than will fit
    while letters.getlength(label) > _CELL - 16:
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
    """Draw valid, unique and novel molecules against steps, one line a solver.

    Error bars are the scores' noise, one standard deviation. Without novelty in every point its
    panel is left out.
    """
    if not points:
        raise InputError("points is empty; give at least one CurvePoint")
    sizes = sorted({p.scores.fold_size for p in points})
    if len(sizes) > 1:
        raise InputError(
            f"points were counted in folds of {' and '.join(f'{s:,}' for s in sizes)} samples and "
            f"cannot share an axis; score all of them with one fold_size"
        )
    check_png(path)
    twice = [key for key, n in Counter((p.solver, p.steps) for p in points).items() if n > 1]
    if twice:
        raise InputError(
            f"points holds {twice[0][0]!r} at {twice[0][1]} steps more than once; give one point "
            f"for a solver and number of steps, or name the solvers apart"
        )
    names = ["valid", "unique"] + ["novel"] * all(p.scores.novel is not None for p in points)
    figure = figure_of(4.2 * len(names), 3.9)
    axes = figure.subplots(1, len(names), sharey=True)
    steps = sorted({p.steps for p in points})
    styles = styles_of(list(dict.fromkeys(p.solver for p in points)))
    for axis, name in zip(axes, names, strict=True):
        for solver, style in styles.items():
            line = sorted((p for p in points if p.solver == solver), key=lambda p: p.steps)
            counts: list[FoldCounts] = [getattr(p.scores, name) for p in line]
            axis.errorbar(
                [p.steps for p in line],
                [c.mean for c in counts],
                yerr=[p.scores.noise(name) for p in line],
                label=solver,
                **style.drawn,
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(steps, [NUMBER.format(x=s) for s in steps])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set(xlabel="steps", title=name)
    axes[0].set(ylabel=f"molecules of {sizes[0]:,}")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    if title is not None:
        figure.suptitle(title)
    save_figure(figure, path)


def histogram_plot(result: Mapping[str, Any], path: Path, *, title: str | None = None) -> None:
    """Draw what `histograms` returned: the data's and the samples' shares side by side."""
    if not isinstance(result, Mapping) or "features" not in result:
        raise InputError(f"result must be what histograms() returned, got {describe(result)}")
    check_png(path)
    features = result["features"]
    figure = figure_of(13, 6.6)
    axes = list(figure.subplots(2, 3).flat)
    for axis, (name, feature) in zip(axes, features.items(), strict=False):
        bins = _bins(feature)
        for shift, side, color in ((-0.2, "reference", _DATA), (0.2, "samples", _SAMPLES)):
            shares = [feature[side].get(b, 0.0) for b in bins]
            axis.bar([i + shift for i in range(len(bins))], shares, 0.4, color=color)
        every = max(1, -(-len(bins) // 14))  # more labels than that run into each other
        axis.set_xticks(range(0, len(bins), every), bins[::every])
        apart = feature["total_variation"]
        distance = "" if apart is None else f" (total variation {apart:.3f})"
        axis.set(title=name.replace("_", " ") + distance, ylabel="share")
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
    """All bins: numbers from the lowest to the highest, or names by their share of the data."""
    found = {*feature["reference"], *feature["samples"]}
    if found and all(b.isdigit() for b in found):
        numbers = [int(b) for b in found]
        return [str(b) for b in range(min(numbers), max(numbers) + 1)]
    return sorted(found, key=lambda b: (-feature["reference"].get(b, 0.0), b))


def _legend(axis: Any, result: Mapping[str, Any]) -> None:
    """Use the panel left over for the legend, with the numbers behind the shares."""
    axis.axis("off")
    for side, name, color in (("reference", "data", _DATA), ("samples", "samples", _SAMPLES)):
        size = result[side]
        label = f"{name}: {size['valid']:,} valid of {size['given']:,}"
        axis.bar([0], [0], color=color, label=label)
    axis.legend(loc="center", frameon=False, fontsize=11)
