"""Whether weights gain more than bolder draws do: quality at equal variety of samples, text."""

from dataclasses import replace

from cwdfm.repro.cell import Cell
from cwdfm.repro.experiment import Plan
from cwdfm.repro.experiments.solvers import TUNED, tuned_cells
from cwdfm.repro.figure import Curves
from cwdfm.repro.grid import Entry, grid, trained
from cwdfm.repro.job import Store
from cwdfm.repro.measure import measure
from cwdfm.repro.scale import Scale, held_out, size
from cwdfm.repro.table import Value

SOLVERS = ("Euler", "Neighbor", "Entropy", "Entropy-counted")
COOLER, HOTTER = (1.0, 0.95, 0.9, 0.85), (1.0, 1.05, 1.1)  # temperatures of Euler, and of weights
MAUVE, PERPLEXITY, ENTROPY = range(3)  # columns of text


def variety_cells(source: str, scale: Scale) -> dict[tuple[str, float], Cell]:
    """By solver and temperature, with the settings of the sweep at the scale's number of steps."""
    tuned, steps = tuned_cells(source, scale), size("text", scale).steps
    few = 2 if scale == "smoke" else None
    return {
        (name, t): replace(cell, choice=replace(cell.choice, temperature=t))
        for name in SOLVERS[:few]
        for cell in (tuned[name, steps],)
        for t in (COOLER if name == "Euler" else HOTTER)[:few]
    }


def variety(scale: Scale) -> Plan:
    """Solvers at several temperatures: perplexity against the entropy of samples, both sources.

    Weights lower both, and so does a lower temperature. What they are worth shows where entropies
    are equal: Euler's draws made bolder, or theirs more even.
    """

    def entries(scale: Scale) -> list[Entry]:
        return [
            Entry((source, name, f"{t:g}"), cell)
            for source in TUNED
            for (name, t), cell in variety_cells(source, scale).items()
        ]

    def drawn(source: str, store: Store) -> Curves:
        how, cells = measure("text", scale), variety_cells(source, scale)
        columns = tuple(how.columns[i] for i in (MAUVE, PERPLEXITY))
        lines: dict[str, list[tuple[float, tuple[Value, ...]]]] = {}
        for (name, _), cell in cells.items():
            values = how.barred(cell.values(store))
            if (bits := values[ENTROPY].value) is not None:
                lines.setdefault(name, []).append((bits, (values[MAUVE], values[PERPLEXITY])))
        own = how.values(store, held_out("text", scale, 0))
        data = own[ENTROPY].value
        told = "" if data is None else f" The data's entropy: {data:.2f} bits."
        return Curves(
            f"Quality at equal variety, text, {source} source",
            "entropy of samples, bits",
            columns,
            {name: sorted(points, key=lambda point: point[0]) for name, points in lines.items()},
            (own[MAUVE], own[PERPLEXITY]),
            note=f"Points of a line: temperatures.{told} {how.bars}",
            about=trained(next(iter(cells.values())).train(), store),
            measured=True,
        )

    title = f"Solvers at several temperatures, text, {size('text', scale).steps:,} steps"
    plan = grid(title, ("source", "solver", "temperature"), entries)(scale)
    return replace(plan, figures=lambda store: [drawn(source, store) for source in TUNED])
