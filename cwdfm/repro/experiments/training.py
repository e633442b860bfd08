"""The paper's tables of what training changes: the loss, the path, and the path's scale."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cwdfm.method.choice import SolverChoice
from cwdfm.repro.cell import Cell
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


@dataclass(frozen=True)
class Line:
    """A row of one of these tables."""

    labels: tuple[str, ...]
    fields: dict[str, Any]
    choice: SolverChoice
    text: tuple[Value, ...]  # the paper's: MAUVE, perplexity, entropy
    molecules: tuple[Value, ...] = ()  # the paper's: valid, novel

    def cell(self, corpus: Corpus, scale: Scale) -> Cell:
        """The row's cell on one corpus."""
        seeds = size(corpus, scale).seeds
        return Cell(corpus, scale, self.fields, self.choice, seeds=seeds)


def _text(mauve: float, a: float, ppl: float, b: float, entropy: float) -> tuple[Value, ...]:
    return Value(mauve, a, 3), Value(ppl, b, 2), Value(entropy, 0.01, 2)


def _molecules(valid: float, a: float, novel: float, b: float) -> tuple[Value, ...]:
    return Value(valid, a, 1), Value(novel, b, 1)


def _loss(source: str, loss: str, text: tuple[Value, ...], molecules: tuple[Value, ...]) -> Line:
    # Masked tokens alone where that is the same loss: see CrossEntropy.
    alone = source == "mask" and loss != "sce"
    fields = {"source": source, "loss": loss, "masked_only": alone}
    return Line((source, loss.upper()), fields, EULER, text, molecules)


LOSSES = (
    _loss(
        "uniform",
        "ce",
        _text(0.628, 0.030, 82.17, 0.84, 7.93),
        _molecules(475.4, 17.1, 287.0, 15.6),
    ),
    _loss(
        "uniform",
        "nelbo",
        _text(0.677, 0.035, 74.18, 0.40, 7.88),
        _molecules(481.4, 14.4, 299.0, 15.8),
    ),
    _loss(
        "uniform",
        "bregman",
        _text(0.682, 0.015, 63.06, 0.53, 7.85),
        _molecules(494.4, 10.4, 308.0, 8.7),
    ),
    _loss(
        "uniform",
        "sce",
        _text(0.777, 0.017, 30.20, 0.22, 7.66),
        _molecules(556.0, 16.1, 297.6, 10.1),
    ),
    _loss(
        "mask", "ce", _text(0.672, 0.024, 40.90, 0.31, 7.64), _molecules(134.8, 12.4, 114.8, 10.5)
    ),
    _loss(
        "mask", "nelbo", _text(0.685, 0.020, 40.46, 0.24, 7.66), _molecules(158.8, 7.0, 128.6, 7.4)
    ),
    _loss(
        "mask", "bregman", _text(0.594, 0.018, 51.02, 0.50, 7.74), _molecules(119.8, 4.7, 98.2, 6.9)
    ),
    _loss(
        "mask", "sce", _text(0.690, 0.010, 38.85, 0.50, 7.67), _molecules(177.2, 11.3, 137.8, 7.6)
    ),
)


def _path(source: str, path: str, text: tuple[Value, ...], molecules: tuple[Value, ...]) -> Line:
    fields: dict[str, Any] = {"source": source, "loss": "sce", "masked_only": False, "path": path}
    choice = EULER if path == "mixture" else CONTEXT
    return Line((source, path), fields, choice, text, molecules)


PATHS = (
    _path(
        "uniform",
        "mixture",
        _text(0.777, 0.017, 30.20, 0.22, 7.66),
        _molecules(556.0, 16.1, 297.6, 10.1),
    ),
    _path(
        "uniform",
        "context",
        _text(0.768, 0.017, 37.45, 0.38, 7.70),
        _molecules(658.4, 20.3, 310.2, 19.6),
    ),
    _path(
        "mask",
        "mixture",
        _text(0.690, 0.010, 38.85, 0.50, 7.67),
        _molecules(177.2, 11.3, 137.8, 7.6),
    ),
    _path(
        "mask",
        "context",
        _text(0.751, 0.012, 36.25, 0.52, 7.65),
        _molecules(298.0, 13.6, 181.6, 9.62),
    ),
)


def _scale(source: str, scale: float, text: tuple[Value, ...]) -> Line:
    fields: dict[str, Any] = {"source": source, "loss": "sce", "masked_only": False}
    fields |= {"path": "context", "path_radius": 3, "path_scale": scale}
    return Line((source, f"{scale:g}"), fields, CONTEXT, text)


SCALES = (
    _scale("uniform", 0.5, _text(0.779, 0.017, 48.91, 0.29, 7.83)),
    _scale("uniform", 1.0, _text(0.768, 0.017, 37.45, 0.38, 7.70)),
    _scale("mask", 0.5, _text(0.712, 0.023, 35.48, 0.26, 7.60)),
    _scale("mask", 1.0, _text(0.751, 0.012, 36.25, 0.52, 7.65)),
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
                line.text if text else line.molecules,
            )
            for line in lines
        ]
        paper = how.columns if text else (Column("valid", True), Column("novel", True))
        return Table(
            f"{title}, {'text' if text else 'QM9'}",
            labels,
            how.columns,
            tuple(rows),
            paper=paper,
        )

    def plan(scale: Scale) -> Plan:
        corpora = [c for c in CORPORA if c == "text" or lines[0].molecules]
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
        fields = _loss(source, loss, (), ()).fields
        return TestLikelihood(Cell("text", scale, fields).train(), test, size("text", scale).rows)

    def tables(store: Store) -> list[Table]:
        rows = []
        for (name, source), paper in TESTS.items():
            values = []
            for test in TEST_CORPORA:
                done = store.result(job(name, source, test))
                found = {} if done is None else done["result"]
                values.append(Value(found.get("perplexity"), found.get("perplexity_error"), 2))
            theirs = tuple(Value(value, None, 2) for value in paper)
            rows.append(Row((name, source), tuple(values), theirs))
        columns = tuple(Column(f"{test}, at most", False) for test in TEST_CORPORA)
        return [Table("Test perplexity", ("model", "source"), columns, tuple(rows), columns)]

    jobs = [job(*key, test) for key in TESTS for test in TEST_CORPORA]
    return Plan(tuple(jobs), tables, COST[scale])
