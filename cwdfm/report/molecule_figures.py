"""The pictures of a report on molecules: curves, a grid and histograms for each model."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from cwdfm.data.chemistry import canonical
from cwdfm.report.evaluation import Picture, endings
from cwdfm.report.molecule_plots import CurvePoint, curves, histogram_plot, molecule_grid
from cwdfm.report.molecule_scores import Scored
from cwdfm.report.reference import MoleculeReference

_DRAWN, _ACROSS = 20, 4  # molecules in a grid, and in one of its rows


def pictures(
    scored: Sequence[Scored], out: Path, reference: MoleculeReference | None
) -> tuple[tuple[Picture, ...], list[str]]:
    """Curves, a grid and histograms for each model, the last two of its most valid samples."""
    groups = [(name, list(rows)) for name, rows in groupby(scored, key=lambda s: s.samples.model)]
    ends = endings([name for name, _ in groups])
    drawn, notes = [], []
    for (model, rows), ending in zip(groups, ends, strict=True):
        if len({s.samples.steps for s in rows}) > 1:
            if len({s.scores.fold_size for s in rows}) > 1:
                least = min(s.scores.fold_size for s in rows)
                notes.append(
                    f"{model}: no curves, since the files hold different numbers of samples; a "
                    f"fold size of at most {least:,} lets them share an axis."
                )
            else:
                drawn.append(_curves(model, rows, out / f"curves{ending}.png"))
        best = max(rows, key=lambda s: s.scores.valid.mean / s.scores.fold_size)
        if sum(best.scores.valid.counts):
            drawn.append(_grid(best, out / f"molecules{ending}.png", reference))
        if best.histograms:
            drawn.append(_shares(best, out / f"histograms{ending}.png", reference))
    return tuple(drawn), notes


def _curves(model: str, rows: Sequence[Scored], path: Path) -> Picture:
    points = [
        CurvePoint(s.samples.solver, s.samples.steps, s.scores)
        for s in rows
        if s.samples.solver and s.samples.steps
    ]
    curves(points, path, title=model)
    one = all(p.scores.folds == 1 for p in points)
    bars = "one standard deviation of chance" if one else "standard deviations over folds"
    caption = f"{model}: molecules against the number of steps; bars are {bars}"
    return Picture(path.name, caption + ".", wide=True)


def _grid(found: Scored, path: Path, reference: MoleculeReference | None) -> Picture:
    """Novel molecules first; the others fill up."""
    distinct = dict.fromkeys(s for s in map(canonical, found.samples.texts) if s is not None)
    known = reference.known if reference else frozenset()
    novel = [s for s in distinct if s not in known]
    shown = (novel + [s for s in distinct if s in known])[:_DRAWN]
    molecule_grid(shown, path, columns=_ACROSS)
    new = min(len(novel), len(shown))
    what = f"{len(shown):,} of {len(distinct):,} different molecules"
    if reference and new == len(shown):
        what = f"{new} of {len(novel):,} novel molecules"
    elif reference:
        what += f", {new} novel ones first"
    return Picture(path.name, f"{found}: {what}, in the order of the samples.")


def _shares(found: Scored, path: Path, reference: MoleculeReference | None) -> Picture:
    histogram_plot(found.histograms or {}, path, title=str(found))
    data = reference.about["name"] if reference else "the data"
    caption = (
        f"{found}: how the valid samples (green) are made, beside molecules of {data} (grey): "
        f"length in characters, heavy atoms, and rings. Total variation is 0 for equal shares and "
        f"1 for nothing in common."
    )
    return Picture(path.name, caption, wide=True)
