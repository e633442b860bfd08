"""Whether weights gain more than bolder draws do: quality at equal variety of samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.catalog.solvers import steps_cells, tuned_cells
from experiments.catalog.training import SOURCES
from experiments.cell import Cell, bars_note
from experiments.experiment import Plan
from experiments.figure import Curves
from experiments.grid import Entry, grid, settings, trained
from experiments.measure import measure
from experiments.scale import NAMES, Scale, held_out, size
from experiments.store import Store
from experiments.table import Value
from experiments.tasks.base import Corpus


@dataclass(frozen=True)
class Tried:
    """What is tried on a corpus, and by which of its measures."""

    solvers: tuple[str, ...]
    cooler: tuple[float, ...]  # temperatures of Euler
    hotter: tuple[float, ...]  # of weights
    quality: tuple[int, ...]  # columns
    varied: int  # the column that tells how varied samples are
    axis: str  # what it is called


TRIED: dict[Corpus, Tried] = {
    "text": Tried(
        ("Euler", "Neighbor", "Entropy", "Entropy-counted"),
        (1.0, 0.95, 0.9, 0.85),
        (1.0, 1.05, 1.1),
        quality=(0, 1),
        varied=2,
        axis="entropy of samples, bits",
    ),
    "molecules": Tried(
        ("Euler", "Neighbor", "Entropy"),
        (1.0, 0.9, 0.8, 0.7, 0.6, 0.5),
        (1.0, 1.1, 1.2, 1.3),
        quality=(0,),
        varied=2,
        axis="novel molecules",
    ),
}


def variety_cells(corpus: Corpus, source: str, scale: Scale) -> dict[tuple[str, float], Cell]:
    """By solver and temperature, at the scale's number of steps.

    On text with the settings of the sweep, on molecules with the paper's.
    """
    found = tuned_cells(source, scale) if corpus == "text" else steps_cells(corpus, source, scale)
    tried, few = TRIED[corpus], 2 if scale == "smoke" else None
    return {
        (name, t): replace(cell, choice=replace(cell.choice, temperature=t))
        for name in tried.solvers[:few]
        for cell in (found[name, size(corpus, scale).steps],)
        for t in (tried.cooler if name == "Euler" else tried.hotter)[:few]
    }


def variety(corpus: Corpus) -> Callable[[Scale], Plan]:
    """Solvers at several temperatures: quality against the variety of samples, both sources.

    Weights change both, and so does a lower temperature. What they are worth shows where samples
    are equally varied: Euler's draws made bolder, or theirs more even.
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
        warmth: dict[str, list[str]] = {}
        for (name, t), cell in cells.items():  # a line goes from temperature to temperature
            values = how.barred(cell.values(store))
            if (x := values[tried.varied].value) is not None:
                lines.setdefault(name, []).append((x, tuple(values[i] for i in tried.quality)))
                warmth.setdefault(name, []).append(f"{t:g}")
        own = how.values(store, held_out(corpus, scale, 0))
        tested = list(cells.values())
        bars = " ".join([*settings(tested), bars_note(tested, store)])
        data = own[tried.varied]
        text = corpus == "text" and data.value is not None
        told = f" The data's entropy: {data.value:.2f} bits." if text else ""
        return Curves(
            f"Quality at equal variety, {NAMES[corpus]}, {source} source",
            tried.axis,
            tuple(how.columns[i] for i in tried.quality),
            lines,
            tuple(own[i] for i in tried.quality),
            note=f"A line goes from temperature to temperature, told at its ends.{told} {bars}",
            about=trained(next(iter(cells.values())).train(), store),
            measured=True,
            told=warmth,
        )

    def plan(scale: Scale) -> Plan:
        steps = size(corpus, scale).steps
        title = f"Solvers at several temperatures, {NAMES[corpus]}, {steps:,} steps"
        found = grid(title, ("source", "solver", "temperature"), entries)(scale)
        return replace(
            found, figures=lambda store: [drawn(source, scale, store) for source in SOURCES]
        )

    return plan
