"""The paper's main table: flows beside autoregressive, block and diffusion models.

Every row has the same transformer, data, optimiser and batch, and about the same arithmetic.
"""

from dataclasses import dataclass
from typing import Any

from cwdfm.method.choice import Name, SolverChoice
from cwdfm.repro.cell import TRAINING, Cell
from cwdfm.repro.experiment import Plan
from cwdfm.repro.job import Store
from cwdfm.repro.jobs import Corpus
from cwdfm.repro.measure import measure
from cwdfm.repro.scale import CORPORA, Scale, held_out
from cwdfm.repro.table import Row, Table, Value


@dataclass(frozen=True)
class Kind:
    """A row: what it is called, how it is trained and sampled, and what the paper found."""

    type: str
    name: str
    fields: dict[str, Any]
    paper: tuple[Value, ...]  # MAUVE, generative perplexity, entropy
    solver: Name = "auto"
    effort: float = 1.0  # share of the training steps

    def cell(self, corpus: Corpus, scale: Scale) -> Cell:
        """The row's cell."""
        choice = SolverChoice(solver=self.solver)
        return Cell(corpus, scale, self.fields, choice, effort=self.effort)


def _paper(mauve: float, a: float, ppl: float, b: float, entropy: float) -> tuple[Value, ...]:
    return Value(mauve, a, 3), Value(ppl, b, 2), Value(entropy, 0.01, 2)


DATA = _paper(0.890, 0.008, 14.66, 0.13, 7.86)
MASK: dict[str, Any] = {"source": "mask", "masked_only": True}
UNIFORM: dict[str, Any] = {"source": "uniform", "masked_only": False}
SCE: dict[str, Any] = {"loss": "sce", "masked_only": False}
AR, NON, OURS = "(semi-)AR", "non-AR", "ours"


def _block(block: int, paper: tuple[Value, ...]) -> Kind:
    """Reads every sequence twice, noised and clean, and gets half the steps."""
    fields = {"method": "bd3lm", "block": block}
    return Kind(AR, f"BD3LM, block {block}", fields, paper, effort=0.5)


KINDS = (
    Kind(AR, "AR", {"method": "ar"}, _paper(0.817, 0.017, 12.72, 0.25, 7.57)),
    _block(4, _paper(0.784, 0.025, 24.19, 0.08, 7.69)),
    _block(8, _paper(0.734, 0.022, 29.47, 0.08, 7.70)),
    _block(16, _paper(0.727, 0.023, 32.95, 0.39, 7.71)),
    Kind(
        NON,
        "SEDD",
        {"method": "sedd", "source": "mask"},
        _paper(0.574, 0.024, 110.23, 0.63, 8.14),
    ),
    Kind(
        NON,
        "MDLM",
        {"method": "mdlm", "source": "mask"},
        _paper(0.685, 0.021, 41.73, 0.49, 7.73),
        solver="ancestral",
    ),
    Kind(NON, "DFM, uniform", UNIFORM, _paper(0.628, 0.030, 82.17, 0.84, 7.93)),
    Kind(NON, "DFM, mask", MASK, _paper(0.672, 0.024, 40.90, 0.08, 7.64)),
    Kind(OURS, "DFM + SCE, uniform", UNIFORM | SCE, _paper(0.777, 0.017, 30.20, 0.22, 7.66)),
    Kind(OURS, "DFM + SCE, mask", MASK | SCE, _paper(0.690, 0.010, 38.85, 0.50, 7.67)),
)
BOUND = (
    "Held-out PPL is exact for AR and an upper bound for the others, a loose one for flows with a "
    "uniform source."
)
SCALE = "The paper's columns are of OpenWebText at its own scale, judged by gpt2-large."


def table(corpus: Corpus, scale: Scale, store: Store) -> Table:
    """Quality, likelihood and cost; on text beside the paper's."""
    how, text = measure(corpus, scale), corpus == "text"
    own = how.values(store, held_out(corpus, scale, 0))
    blank = (Value(None),) * len(TRAINING)
    rows = [Row(("data", ""), (*own, *blank), DATA if text else ())]
    for kind in KINDS:
        cell = kind.cell(corpus, scale)
        values = (*cell.values(store), *cell.training(store))
        rows.append(Row((kind.type, kind.name), values, kind.paper if text else ()))
    return Table(
        "Baselines on text" if text else "Baselines on QM9",
        ("type", "method"),
        (*how.columns, *TRAINING),
        tuple(rows),
        paper=how.columns if text else (),
        notes=(BOUND, SCALE) if text else (BOUND,),
    )


def plan(scale: Scale) -> Plan:
    """Both tables."""
    jobs = [
        job
        for corpus in CORPORA
        for kind in KINDS
        for job in kind.cell(corpus, scale).jobs(likelihood=True)
    ]
    for corpus in CORPORA:
        jobs += measure(corpus, scale).jobs(held_out(corpus, scale, 0))
    return Plan(
        jobs=tuple(jobs),
        tables=lambda store: [table(corpus, scale, store) for corpus in CORPORA],
        cost={
            "smoke": "a minute on one CPU core",
            "small": "about an hour on one H200",
            "paper": "ten runs of 1M steps of 512 x 1,024 tokens, 36 days each on one H100 if the "
            "paper's 4.5 days on eight hold, and ten of 240 GPU minutes on QM9",
        }[scale],
    )
