"""The paper's tables of what training changes: the loss, the path, and the path's scale."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from cwdfm.method.choice import SolverChoice
from cwdfm.repro import paper
from cwdfm.repro.cell import Cell, flow, runs_note
from cwdfm.repro.experiment import Plan
from cwdfm.repro.figure import Curves
from cwdfm.repro.grid import COST, Entry, grid
from cwdfm.repro.job import Store
from cwdfm.repro.jobs import Corpus
from cwdfm.repro.measure import measure
from cwdfm.repro.scale import CORPORA, Scale, size
from cwdfm.repro.scores import TestLikelihood
from cwdfm.repro.table import Column, Row, Table, Value

EULER = SolverChoice(solver="euler")
PATH_RADIUS: dict[Corpus, int] = {"text": 3, "molecules": 1}  # the paper has 3 on text


@dataclass(frozen=True)
class Line:
    """A row of one of these tables."""

    labels: tuple[str, ...]
    fields: dict[str, Any]
    name: str  # in the paper's tables

    @property
    def on_context(self) -> bool:
        """Whether it is trained on a context-weighted path."""
        return self.fields.get("path") == "context"

    def choice(self, corpus: Corpus) -> SolverChoice:
        """How it is sampled: with the weights of the path itself."""
        if not self.on_context:
            return EULER
        return SolverChoice("neighbor", PATH_RADIUS[corpus], self.fields["path_scale"])

    def cell(self, corpus: Corpus, scale: Scale) -> Cell:
        """The row's cell on one corpus."""
        radius = {"path_radius": PATH_RADIUS[corpus]} if self.on_context else {}
        seeds = size(corpus, scale).seeds
        return Cell(corpus, scale, self.fields | radius, self.choice(corpus), seeds=seeds)

    def paper(self, corpus: Corpus) -> tuple[Value, ...]:
        """What the paper found."""
        return (paper.text if corpus == "text" else paper.molecules)(self.name)


SOURCES = ("uniform", "mask")


LOSS_NAMES = {"ce": "CE", "nelbo": "NELBO", "bregman": "Bregman", "sce": "SCE"}


def _loss(source: str, loss: str) -> Line:
    return Line((source, LOSS_NAMES[loss]), flow(source, loss), f"{source}, {loss}")


def _context(source: str, label: str, scale: float = 1.0) -> Line:
    fields = flow(source, "sce", path="context", path_scale=scale)
    return Line((source, label), fields, f"{source}, sce, context {scale:g}")


LOSSES = tuple(_loss(s, loss) for s in SOURCES for loss in LOSS_NAMES)
PATHS = tuple(
    line
    for s in SOURCES
    for line in (replace(_loss(s, "sce"), labels=(s, "mixture")), _context(s, "context"))
)
SCALES = tuple(_context(s, f"{scale:g}", scale) for s in SOURCES for scale in (0.5, 1.0))


def own_weights(lines: tuple[Line, ...], corpus: Corpus) -> tuple[str, ...]:
    """How context paths among the rows are sampled, as a note."""
    scales = sorted({line.choice(corpus).scale for line in lines if line.on_context})
    if not scales:
        return ()
    weights = f"r = {PATH_RADIUS[corpus]}, s = {' or '.join(f'{scale:g}' for scale in scales)}"
    mixture = "" if all(line.on_context for line in lines) else ", a mixture path by Euler steps"
    return (f"A context path is sampled with its own weights (Neighbor, {weights}){mixture}.",)


def tokens_that_count(lines: tuple[Line, ...]) -> tuple[str, ...]:
    """Of which tokens the losses of rows are, as a note."""
    alone = [", ".join(line.labels) for line in lines if line.fields["masked_only"]]
    if not alone:
        return ()
    return (f"In the loss of {'; '.join(alone)} masked tokens alone count, in others all tokens.",)


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
        cells = [(line.labels, line.cell(corpus, scale)) for line in lines]
        return Table(
            f"{title}, {'text' if text else 'QM9'}",
            labels,
            how.columns,
            tuple(rows),
            paper=theirs,
            notes=(
                *own_weights(lines, corpus),
                *tokens_that_count(lines),
                *runs_note(cells, store),
            ),
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
            cell = Cell("text", scale, flow("uniform", "sce", loss_radius=r), EULER)
            found.append(Entry((str(r),), cell, "SCE", r))
        return found

    title = "Radius of the loss's weights, text, uniform source"
    return grid(title, ("radius",), entries, x="radius")(scale)


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


COUNTING = {
    ("CE", "masked"): flow("mask"),
    ("CE", "all"): flow("mask", masked_only=False),
    ("SCE", "masked"): flow("mask", "sce", revealed="zero"),
    ("SCE", "all"): flow("mask", "sce"),
}


def counting(corpus: Corpus) -> Callable[[Scale], Plan]:
    """Losses of masked tokens alone and of all tokens, mask source.

    Of the first nothing is asked about tokens that are there to see. What is best is the same, and
    the way there need not be: a network may learn to read its context sooner by copying it.
    """

    def entries(scale: Scale) -> list[Entry]:
        # Runs on text with a mask source end far apart, so that one of each tells little.
        seeds = max(size(corpus, scale).seeds, 2 if scale == "small" else 1)
        return [
            Entry(labels, Cell(corpus, scale, fields, EULER, seeds=seeds))
            for labels, fields in COUNTING.items()
        ]

    title = f"Tokens that count in the loss, {'text' if corpus == 'text' else 'QM9'}, mask source"
    return grid(title, ("loss", "tokens"), entries)


def sweep(source: str) -> Callable[[Scale], Plan]:
    """Radius and scale of the loss's weights, and of the path's with its own solver; QM9.

    Samples are of another seed than the one that other experiments report.
    """

    def entries(scale: Scale) -> list[Entry]:
        radii, strengths = ((1,), (0.5,)) if scale == "smoke" else ((1, 2, 3), (0.5, 1.0, 2.0))
        found = []
        for r, s in product(radii, strengths):
            weighed = flow(source, "sce", loss_radius=r, loss_scale=s)
            ordered = _context(source, "", s).fields | {"path_radius": r}
            for name, fields, choice in (
                ("SCE", weighed, EULER),
                ("SCE, context path", ordered, SolverChoice("neighbor", r, s)),
            ):
                cell = Cell("molecules", scale, fields, choice, sample_seed=1000)
                found.append(Entry((name, f"r = {r}, s = {s:g}"), cell))
        return sorted(found, key=lambda entry: entry.labels[0])

    title = f"Training settings, QM9, {source} source"
    return grid(title, ("training", "settings"), entries)


def dynamics(scale: Scale) -> Plan:
    """Quality and loss on the way, cross-entropy against its scaled form; uniform source, text."""
    steps = size("text", scale).recipe.steps
    looks = tuple(steps * k // 4 for k in (1, 2, 3))

    def cell(loss: str, at: int | None) -> Cell:
        return Cell("text", scale, flow("uniform", loss), EULER, snapshots=looks, at=at)

    def entries(scale: Scale) -> list[Entry]:
        return [
            Entry(
                (LOSS_NAMES[loss], str(at or steps)), cell(loss, at), LOSS_NAMES[loss], at or steps
            )
            for loss in ("ce", "sce")
            for at in (*looks, None)
        ]

    def validated(store: Store) -> Curves:
        lines = {}
        for loss in ("ce", "sce"):
            done = store.result(cell(loss, None).train())
            metrics = done["result"]["metrics"] if done is not None else []
            seen = {each["step"]: each.get("validation_loss") for each in metrics}
            lines[LOSS_NAMES[loss]] = [(k, (Value(v),)) for k, v in seen.items() if v]
        column = Column("validation loss, nats", False)
        title = "Loss during training, text, uniform source"
        note = "SCE weighs tokens otherwise than CE."
        return Curves(title, "training steps", (column,), lines, note=note)

    title = "Quality during training, text, uniform source"
    plan = grid(title, ("loss", "step"), entries, x="training steps")(scale)
    return replace(plan, figures=lambda store: [*plan.figures(store), validated(store)])


RADII = (1, 2, 3, 5, 8)

losses = plan_of("Loss functions", ("source", "loss"), LOSSES)
paths = plan_of("Mixture and context path", ("source", "path"), PATHS)
scales = plan_of("Scale of the context path", ("source", "scale"), SCALES)


# The paper's, and one that is easier to come by: WikiText-2's articles are WikiText-103's.
TEST_CORPORA = (*paper.TEST_CORPORA, "wikitext-2")
SAME_ARTICLES = (
    "Of `wikitext-2` the test articles are those of `wikitext-103`, in a smaller vocabulary: as "
    "published, every word beyond it is `<unk>`."
)


def perplexity(scale: Scale) -> Plan:
    """Bounds on the perplexity of corpora that the models were not trained on."""

    def job(name: str, source: str, test: str) -> TestLikelihood:
        fields = flow(source, "sce" if "SCE" in name else "ce")
        return TestLikelihood(Cell("text", scale, fields).train(), test, size("text", scale).rows)

    def tables(store: Store) -> list[Table]:
        rows = []
        for (name, source), reported in paper.TESTS.items():
            values = []
            for test in TEST_CORPORA:
                done = store.result(job(name, source, test))
                found = {} if done is None else done["result"]
                values.append(Value(found.get("perplexity"), found.get("perplexity_error"), 2))
            theirs = tuple(Value(value, None, 2) for value in reported)
            rows.append(Row((name, source), tuple(values), theirs))
        columns = tuple(Column(f"{test}, at most", False) for test in TEST_CORPORA)
        known = columns[: len(paper.TEST_CORPORA)]
        labels, notes = ("model", "source"), (SAME_ARTICLES,)
        return [Table("Test perplexity", labels, columns, tuple(rows), known, notes)]

    jobs = [job(*key, test) for key in paper.TESTS for test in TEST_CORPORA]
    return Plan(tuple(jobs), tables, COST[scale])
