"""The main table of the paper: flows and autoregressive, block and diffusion models.

All rows use the same transformer, data, optimizer and batch size, and about the same compute.
"""

from dataclasses import dataclass
from typing import Any

from cwdfm.solver_config import Name
from experiments import paper
from experiments.cell import TRAINING, Cell, flow
from experiments.experiment import Plan
from experiments.grid import data_row
from experiments.measure import measure
from experiments.notes import ERROR, loss_note, runs_note, samples_note
from experiments.scale import CORPORA, Scale, held_out, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Row, Table
from experiments.tasks.base import Corpus


@dataclass(frozen=True)
class Kind:
    """A row: its name, training and solver, and the matching row of the paper."""

    type: str
    name: str
    fields: dict[str, Any]
    row: str  # name in the paper's tables
    solver: Name = "auto"
    effort: float = 1.0  # fraction of the training steps

    def cell(self, corpus: Corpus, scale: Scale) -> Cell:
        choice = SolverChoice(solver=self.solver)
        # First hitting takes one step per token.
        steps = size(corpus, scale).recipe.length if self.solver == "first-hitting" else None
        return Cell(corpus, scale, self.fields, choice, steps, effort=self.effort)


AR, NON, OURS = "(semi-)AR", "non-AR", "ours"


def _block(block: int) -> Kind:
    """BD3LM processes every sequence twice, noised and clean, so it gets half the training steps.

    As in its authors' code, it is sampled one token at a time: with fewer steps, neighbors in a
    block would be revealed together.
    """
    name, fields = f"BD3LM, block {block}", {"method": "bd3lm", "block": block}
    return Kind(AR, name, fields, name, solver="first-hitting", effort=0.5)


KINDS = (
    Kind(AR, "AR", {"method": "ar"}, "AR"),
    *(_block(block) for block in (4, 8, 16)),
    Kind(NON, "SEDD", {"method": "sedd", "source": "mask"}, "SEDD"),
    Kind(NON, "MDLM", {"method": "mdlm", "source": "mask"}, "MDLM", solver="ancestral"),
    # Not "auto": the name is part of the key, and other experiments share these cells.
    Kind(NON, "DFM, uniform", flow("uniform"), "uniform, ce", "euler"),
    Kind(NON, "DFM, mask", flow("mask"), "mask, ce, main table", "euler"),
    Kind(OURS, "DFM + SCE, uniform", flow("uniform", "sce"), "uniform, sce", "euler"),
    Kind(OURS, "DFM + SCE, mask", flow("mask", "sce"), "mask, sce", "euler"),
)
LABELS = ("type", "method")
BOUND = (
    "Held-out PPL is exact for AR and an upper bound for the others, a loose one for flows with a "
    "uniform source. BD3LM reads every sequence twice, noised and clean, and gets half the training "
    "steps; it samples one token at a time, SEDD, MDLM and flows in {} steps. Evaluations: network "
    "evaluations per sample; AR and BD3LM evaluate only the tokens after a cache."
)
TWO_RUNS = (
    "For {} the samples and the held-out PPL come from different runs of the same training: the "
    "models were deleted and trained again."
)


def table(corpus: Corpus, scale: Scale, store: Store) -> Table:
    """Quality, likelihood and cost, on text with the paper's values."""
    how, text = measure(corpus, scale), corpus == "text"
    own = how.values(store, held_out(corpus, scale, 0))
    rows = [data_row(LABELS, own, paper.text("data") if text else (), more=len(TRAINING))]
    apart = []
    for kind in KINDS:
        cell = kind.cell(corpus, scale)
        apart += [] if cell.one_run(store) else [kind.name]
        values = (*cell.values(store), *cell.training(store))
        rows.append(Row((kind.type, kind.name), values, paper.text(kind.row) if text else ()))
    cells = [((kind.name,), kind.cell(corpus, scale)) for kind in KINDS]
    return Table(
        "Baselines on text" if text else "Baselines on QM9",
        LABELS,
        (*how.columns, *TRAINING),
        tuple(rows),
        paper=how.columns if text else (),
        notes=(
            BOUND.format(f"{size(corpus, scale).steps:,}"),
            *loss_note(cell for _, cell in cells),
            samples_note(cell for _, cell in cells),
            *runs_note(cells, store),
            ERROR,
            *([TWO_RUNS.format("; ".join(apart))] if apart else []),
            *([paper.TEXT_NOTE] if text else []),
        ),
    )


def plan(scale: Scale) -> Plan:
    tasks = [
        task
        for corpus in CORPORA
        for kind in KINDS
        for task in kind.cell(corpus, scale).tasks(likelihood=True)
    ]
    for corpus in CORPORA:
        tasks += measure(corpus, scale).tasks(held_out(corpus, scale, 0))
    return Plan(
        tasks=tuple(tasks), tables=lambda store: [table(corpus, scale, store) for corpus in CORPORA]
    )
