"""Quality at equal diversity: do weights improve it more than a lower temperature does?"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.catalog.solvers import steps_cells, tuned_cells
from experiments.catalog.training import SOURCES
from experiments.cell import Cell
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, grid, model_note, settings
from experiments.measure import measure
from experiments.notes import bars_note
from experiments.scale import NAMES, Scale, held_out, size
from experiments.store import Store
from experiments.table import Value
from experiments.tasks.base import Corpus


@dataclass(frozen=True)
class Tried:
    """The solvers and temperatures of a corpus, and the columns of its figure."""

    solvers: tuple[str, ...]
    euler: tuple[float, ...]  # temperatures of Euler
    weighted: tuple[float, ...]  # temperatures of weighted solvers
    quality: tuple[int, ...]  # columns on the y axes
    diversity: int  # column on the x axis
    axis: str  # label of the x axis


TRIED: dict[Corpus, Tried] = {
    "text": Tried(
        ("Euler", "Neighbor", "Entropy", "Entropy-counted"),
        (1.0, 0.95, 0.9, 0.85),
        (1.0, 1.05, 1.1),
        quality=(0, 1),
        diversity=2,
        axis="entropy of samples, bits",
    ),
    "molecules": Tried(
        ("Euler", "Neighbor", "Entropy"),
        (1.0, 0.9, 0.8, 0.7, 0.6, 0.5),
        (1.0, 1.1, 1.2, 1.3),
        quality=(0,),
        diversity=2,
        axis="novel molecules",
    ),
}


def variety_cells(corpus: Corpus, source: str, scale: Scale) -> dict[tuple[str, float], Cell]:
    """The cells by solver and temperature, at the scale's number of steps.

    With tuned settings on text, and the paper's settings on molecules.
    """
    found = tuned_cells(source, scale) if corpus == "text" else steps_cells(corpus, source, scale)
    tried, few = TRIED[corpus], 2 if scale == "smoke" else None
    return {
        (name, t): replace(cell, choice=replace(cell.choice, temperature=t))
        for name in tried.solvers[:few]
        for cell in (found[name, size(corpus, scale).steps],)
        for t in (tried.euler if name == "Euler" else tried.weighted)[:few]
    }


def variety(corpus: Corpus) -> Callable[[Scale], Plan]:
    """Solvers at several temperatures: quality against diversity of samples, both sources.

    Weights trade diversity for quality, and so does a lower temperature. A fair comparison is at
    equal diversity: Euler at lower temperatures against weights at higher ones.
    """
    tried = TRIED[corpus]

    def entries(scale: Scale) -> list[Entry]:
        return [
            Entry((source, name, f"{t:g}"), cell)
            for source in SOURCES
            for (name, t), cell in variety_cells(corpus, source, scale).items()
        ]

    def drawn(source: str, scale: Scale, store: Store) -> Curves:
        how, cells = measure(corpus, scale), variety_cells(corpus, source, scale)
        lines: dict[str, list[tuple[float, tuple[Value, ...]]]] = {}
        temperatures: dict[str, list[str]] = {}
        for (name, t), cell in cells.items():
            values = how.with_error_bars(cell.values(store))
            if (x := values[tried.diversity].value) is not None:
                lines.setdefault(name, []).append((x, tuple(values[i] for i in tried.quality)))
                temperatures.setdefault(name, []).append(f"{t:g}")
        own = how.values(store, held_out(corpus, scale, 0))
        tested = list(cells.values())
        bars = " ".join([*settings(tested), bars_note(tested, store)])
        data = own[tried.diversity]
        text = corpus == "text" and data.value is not None
        entropy = f" Entropy of the data: {data.value:.2f} bits." if text else ""
        return Curves(
            f"Quality at equal diversity, {NAMES[corpus]}, {source} source",
            tried.axis,
            tuple(how.columns[i] for i in tried.quality),
            lines,
            tuple(own[i] for i in tried.quality),
            note=f"Lines connect temperatures; labels show the first and the last.{entropy} {bars}",
            about=model_note(next(iter(cells.values())).train(), store),
            measured=True,
            point_labels=temperatures,
        )

    def plan(scale: Scale) -> Plan:
        steps = size(corpus, scale).steps
        title = f"Solvers at several temperatures, {NAMES[corpus]}, {steps:,} steps"
        found = grid(title, ("source", "solver", "temperature"))(entries)(scale)
        return replace(
            found, figures=lambda store: [drawn(source, scale, store) for source in SOURCES]
        )

    return plan
