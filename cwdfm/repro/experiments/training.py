"""The paper's tables of what training changes: the loss, the path, and the path's scale."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cwdfm.method.choice import SolverChoice
from cwdfm.repro import paper
from cwdfm.repro.cell import Cell, runs_note
from cwdfm.repro.experiment import Plan
from cwdfm.repro.grid import COST, Entry, grid
from cwdfm.repro.job import Store
from cwdfm.repro.jobs import Corpus, TestLikelihood
from cwdfm.repro.measure import measure
from cwdfm.repro.scale import CORPORA, Scale, size
from cwdfm.repro.table import Column, Row, Table, Value

# The solver's weights beside a context-weighted path: those of the path itself.
CONTEXT = SolverChoice(solver="neighbor", radius=1, scale=1.0)
EULER = SolverChoice(solver="euler")
OWN_WEIGHTS = (
    f"A context path is sampled with its own weights (Neighbor, r = {CONTEXT.radius}, "
    f"s = {CONTEXT.scale:g}), a mixture path by Euler steps."
)


@dataclass(frozen=True)
class Line:
    """A row of one of these tables."""

    labels: tuple[str, ...]
    fields: dict[str, Any]
    choice: SolverChoice
    name: str  # in the paper's tables

    def cell(self, corpus: Corpus, scale: Scale) -> Cell:
        """The row's cell on one corpus."""
        seeds = size(corpus, scale).seeds
        return Cell(corpus, scale, self.fields, self.choice, seeds=seeds)

    def paper(self, corpus: Corpus) -> tuple[Value, ...]:
        """What the paper found."""
        return (paper.text if corpus == "text" else paper.molecules)(self.name)


SOURCES = ("uniform", "mask")


def _loss(source: str, loss: str) -> Line:
    # Masked tokens alone where that is the same loss: see CrossEntropy.
    alone = source == "mask" and loss != "sce"
    fields = {"source": source, "loss": loss, "masked_only": alone}
    return Line((source, loss.upper()), fields, EULER, f"{source}, {loss}")


def _context(source: str, label: str, **more: Any) -> Line:
    fields = {"source": source, "loss": "sce", "masked_only": False, "path": "context", **more}
    scale = more.get("path_scale", 1.0)
    return Line((source, label), fields, CONTEXT, f"{source}, sce, context {scale:g}")


LOSSES = tuple(_loss(s, loss) for s in SOURCES for loss in ("ce", "nelbo", "bregman", "sce"))
PATHS = tuple(
    line
    for s in SOURCES
    for line in (replace(_loss(s, "sce"), labels=(s, "mixture")), _context(s, "context"))
)
SCALES = tuple(
    _context(s, f"{scale:g}", path_radius=3, path_scale=scale)
    for s in SOURCES
    for scale in (0.5, 1.0)
)


def plan_of(
    title: str, labels: tuple[str, ...], lines: tuple[Line, ...]
) -> Callable[[Scale], Plan]:
    """The plan of a table with these rows, once on text and once on molecules."""

    def table(corpus: Corpus, scale: Scale, store: Store) -> Table:
        how, text = measure(corpus, scale), corpus == "text"
        rows = [
            Row(
                line.labels,
                line.cell(corpus, scale).values(store),
                line.paper(corpus),
            )
            for line in lines
        ]
        theirs = how.columns if text else (Column("valid", True), Column("novel", True))
        cells = [line.cell(corpus, scale) for line in lines]
        own = any(line.choice == CONTEXT for line in lines)
        return Table(
            f"{title}, {'text' if text else 'QM9'}",
            labels,
            how.columns,
            tuple(rows),
            paper=theirs,
            notes=(*([OWN_WEIGHTS] if own else []), *runs_note(cells, store)),
        )

    def plan(scale: Scale) -> Plan:
        corpora = [c for c in CORPORA if all(line.paper(c) for line in lines)]
        cells = [line.cell(corpus, scale) for corpus in corpora for line in lines]
        return Plan(
            jobs=tuple(job for cell in cells for job in cell.jobs()),
            tables=lambda store: [table(corpus, scale, store) for corpus in corpora],
            cost=COST[scale],
        )

    return plan


def radius(scale: Scale) -> Plan:
    """Radius of the loss's weights, uniform source, text: the paper's ablation of the vicinity."""

    def entries(scale: Scale) -> list[Entry]:
        found = []
        for r in RADII[:2] if scale == "smoke" else RADII:
            fields: dict[str, Any] = {"source": "uniform", "loss": "sce", "masked_only": False}
            cell = Cell("text", scale, fields | {"loss_radius": r}, EULER)
            found.append(Entry((str(r),), cell, "SCE", r))
        return found

    return grid("Radius of the loss's weights, text", ("radius",), entries, x="radius")(scale)


def revealed_entries(scale: Scale) -> list[Entry]:
    """Weights of revealed coordinates in the scaled loss, and the plain loss; QM9."""
    found = []
    for source in SOURCES[:1] if scale == "smoke" else SOURCES:
        line = _loss(source, "sce")
        for weight in ("one", "zero", "extended", "joint"):
            changed = replace(line, fields=line.fields | {"revealed": weight})
            found.append(Entry((source, weight), changed.cell("molecules", scale)))
        found.append(Entry((source, "CE"), _loss(source, "ce").cell("molecules", scale)))
    return found


def revealed(scale: Scale) -> Plan:
    """What the scaled loss weighs on revealed coordinates, which the paper leaves open; QM9."""
    title = "Weight of revealed coordinates in SCE, QM9"
    return grid(title, ("source", "weight"), revealed_entries)(scale)


def dynamics(scale: Scale) -> Plan:
    """Quality on the way, cross-entropy against its scaled form; uniform source, text."""

    def entries(scale: Scale) -> list[Entry]:
        steps = size("text", scale).recipe.steps
        looks = tuple(steps * k // 4 for k in (1, 2, 3))
        found = []
        for name, loss in (("CE", "ce"), ("SCE", "sce")):
            fields: dict[str, Any] = {"source": "uniform", "loss": loss, "masked_only": False}
            for at in (*looks, None):
                cell = Cell("text", scale, fields, EULER, snapshots=looks, at=at)
                found.append(Entry((name, str(at or steps)), cell, name, at or steps))
        return found

    title = "Quality during training, text"
    return grid(title, ("loss", "step"), entries, x="training steps")(scale)


RADII = (1, 2, 3, 5, 8)

losses = plan_of("Loss functions", ("source", "loss"), LOSSES)
paths = plan_of("Mixture and context path", ("source", "path"), PATHS)
scales = plan_of("Scale of the context path", ("source", "scale"), SCALES)


TESTS = {
    ("DFM", "uniform"): (63.38, 84.33, 48.20),
    ("DFM + SCE", "uniform"): (91.53, 133.25, 72.90),
    ("DFM", "mask"): (45.33, 57.88, 35.00),
    ("DFM + SCE", "mask"): (45.27, 59.59, 34.80),
}
TEST_CORPORA = ("wikitext-103", "lambada", "fineweb-edu")


def perplexity(scale: Scale) -> Plan:
    """Bounds on the perplexity of corpora that the models were not trained on."""

    def job(name: str, source: str, test: str) -> TestLikelihood:
        loss = "sce" if "SCE" in name else "ce"
        fields = _loss(source, loss).fields
        return TestLikelihood(Cell("text", scale, fields).train(), test, size("text", scale).rows)

    def tables(store: Store) -> list[Table]:
        rows = []
        for (name, source), reported in TESTS.items():
            values = []
            for test in TEST_CORPORA:
                done = store.result(job(name, source, test))
                found = {} if done is None else done["result"]
                values.append(Value(found.get("perplexity"), found.get("perplexity_error"), 2))
            theirs = tuple(Value(value, None, 2) for value in reported)
            rows.append(Row((name, source), tuple(values), theirs))
        columns = tuple(Column(f"{test}, at most", False) for test in TEST_CORPORA)
        return [Table("Test perplexity", ("model", "source"), columns, tuple(rows), columns)]

    jobs = [job(*key, test) for key in TESTS for test in TEST_CORPORA]
    return Plan(tuple(jobs), tables, COST[scale])
