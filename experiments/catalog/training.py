"""The paper's tables on training: the loss, the path, and the scale of the path."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

from experiments import paper
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.grid import data_row
from experiments.measure import measure
from experiments.notes import loss_note, runs_note, samples_note
from experiments.scale import CORPORA, NAMES, Scale, held_out, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Column, Row, Table, Value
from experiments.tasks.base import Corpus

EULER = SolverChoice(solver="euler")
PATH_RADIUS: dict[Corpus, int] = {"text": 3, "molecules": 1}  # 3 on text in the paper


@dataclass(frozen=True)
class Line:
    """A row of one of these tables."""

    labels: tuple[str, ...]
    fields: dict[str, Any]
    name: str  # name in the paper's tables

    @property
    def on_context(self) -> bool:
        return self.fields.get("path") == "context"

    def choice(self, corpus: Corpus) -> SolverChoice:
        """The solver: on a context-weighted path, the weights of the path."""
        if not self.on_context:
            return EULER
        return SolverChoice("neighbor", PATH_RADIUS[corpus], self.fields["path_scale"])

    def cell(self, corpus: Corpus, scale: Scale) -> Cell:
        radius = {"path_radius": PATH_RADIUS[corpus]} if self.on_context else {}
        seeds = size(corpus, scale).seeds
        return Cell(corpus, scale, self.fields | radius, self.choice(corpus), seeds=seeds)

    def paper(self, corpus: Corpus) -> tuple[Value, ...]:
        return (paper.text if corpus == "text" else paper.molecules)(self.name)


SOURCES = ("uniform", "mask")
LOSS_NAMES = {"ce": "CE", "nelbo": "NELBO", "bregman": "Bregman", "sce": "SCE"}


def loss_line(source: str, loss: str) -> Line:
    """The row of a loss, on the mixture path."""
    return Line((source, LOSS_NAMES[loss]), flow(source, loss), f"{source}, {loss}")


def context_line(source: str, label: str, scale: float = 1.0) -> Line:
    """The row of a context-weighted path with the scaled loss."""
    fields = flow(source, "sce", path="context", path_scale=scale)
    return Line((source, label), fields, f"{source}, sce, context {scale:g}")


LOSSES = tuple(loss_line(s, loss) for s in SOURCES for loss in LOSS_NAMES)
PATHS = tuple(
    line
    for s in SOURCES
    for line in (replace(loss_line(s, "sce"), labels=(s, "mixture")), context_line(s, "context"))
)
SCALES = tuple(context_line(s, f"{scale:g}", scale) for s in SOURCES for scale in (0.5, 1.0))


# The columns of the paper.
COUNTED = (Column(f"valid of {paper.FOLD:,}", True), Column("novel", True))


def searched(scale: Scale) -> list[tuple[int, float]]:
    """The search grid of the paper for losses, paths and their solvers: radii and scales."""
    few = scale == "smoke"
    return list(product((1,) if few else (1, 2, 3), (0.5,) if few else (0.5, 1.0, 2.0)))


def own_weights(lines: tuple[Line, ...], corpus: Corpus) -> tuple[str, ...]:
    """A note that says how models trained on context paths are sampled."""
    scales = sorted({line.choice(corpus).scale for line in lines if line.on_context})
    if not scales:
        return ()
    weights = f"r = {PATH_RADIUS[corpus]}, s = {' or '.join(f'{scale:g}' for scale in scales)}"
    mixture = "" if all(line.on_context for line in lines) else ", a mixture path with Euler steps"
    return (f"A context path is sampled with its own weights (Neighbor, {weights}){mixture}.",)


def masked_only_note(lines: tuple[Line, ...]) -> tuple[str, ...]:
    """A note that says which tokens the losses cover."""
    masked = [", ".join(line.labels) for line in lines if line.fields["masked_only"]]
    if not masked:
        return ()
    rows = "; ".join(masked)
    return (f"The loss of {rows} covers only masked tokens; the others cover all tokens.",)


def plan_of(
    title: str, labels: tuple[str, ...], lines: tuple[Line, ...]
) -> Callable[[Scale], Plan]:
    """The plan of a table with these rows, on text and on molecules."""

    def table(corpus: Corpus, scale: Scale, store: Store) -> Table:
        how, text = measure(corpus, scale), corpus == "text"
        rows = [
            Row(line.labels, line.cell(corpus, scale).values(store), line.paper(corpus))
            for line in lines
        ]
        own, none = how.values(store, held_out(corpus, scale, 0)), (Value(None),) * len(COUNTED)
        rows.append(data_row(labels, own, paper.text("data") if text else none))
        cells = [(line.labels, line.cell(corpus, scale)) for line in lines]
        return Table(
            f"{title}, {NAMES[corpus]}",
            labels,
            how.columns,
            tuple(rows),
            paper=how.columns if text else COUNTED,
            notes=(
                *own_weights(lines, corpus),
                *loss_note(cell for _, cell in cells),
                *masked_only_note(lines),
                samples_note(cell for _, cell in cells),
                *runs_note(cells, store),
                paper.TEXT_NOTE if text else paper.MOLECULE_NOTE,
            ),
        )

    def plan(scale: Scale) -> Plan:
        corpora = [c for c in CORPORA if all(line.paper(c) for line in lines)]
        cells = [line.cell(corpus, scale) for corpus in corpora for line in lines]
        data = [measure(c, scale).tasks(held_out(c, scale, 0)) for c in corpora]
        return Plan(
            tasks=(*chain.from_iterable(cell.tasks() for cell in cells), *chain(*data)),
            tables=lambda store: [table(corpus, scale, store) for corpus in corpora],
        )

    return plan


losses = plan_of("Loss functions", ("source", "loss"), LOSSES)
paths = plan_of("Mixture and context path", ("source", "path"), PATHS)
scales = plan_of("Scale of the context path", ("source", "scale"), SCALES)
