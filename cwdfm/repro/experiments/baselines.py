"""The paper's main table: flows beside autoregressive, block and diffusion models.

Every row has the same transformer, data, optimiser and batch, and about the same arithmetic: block
diffusion reads every sequence twice, and is given half the steps.
"""

from dataclasses import dataclass, replace
from typing import Any

from cwdfm.method.choice import Name, SolverChoice
from cwdfm.repro.experiment import Plan, Scale
from cwdfm.repro.job import Job, Store
from cwdfm.repro.jobs import Corpus, HeldOut, Likelihood, MauveScore, Molecules, Sample, Text, Train
from cwdfm.repro.table import Column, Row, Table, Value
from cwdfm.train.recipe import Recipe
from cwdfm.train.recipes import RECIPES

JUDGE = {"smoke": "any", "small": "SmolLM2-135M", "paper": "gpt2-large"}


@dataclass(frozen=True)
class Kind:
    """A row: what it is called, how it is trained and sampled, and what the paper found."""

    type: str
    name: str
    fields: dict[str, Any]
    solver: Name = "auto"
    paper: tuple[Value, ...] = ()  # MAUVE, generative perplexity, entropy


def _paper(mauve: float, a: float, ppl: float, b: float, entropy: float) -> tuple[Value, ...]:
    return Value(mauve, a, 3), Value(ppl, b, 2), Value(entropy, 0.01, 2)


DATA = _paper(0.890, 0.008, 14.66, 0.13, 7.86)
MASK: dict[str, Any] = {"source": "mask", "masked_only": True}
UNIFORM: dict[str, Any] = {"source": "uniform", "masked_only": False}
SCE: dict[str, Any] = {"loss": "sce", "masked_only": False}

KINDS = (
    Kind("(semi-)AR", "AR", {"method": "ar"}, paper=_paper(0.817, 0.017, 12.72, 0.25, 7.57)),
    *(
        Kind(
            "(semi-)AR",
            f"BD3LM, block {block}",
            {"method": "bd3lm", "block": block},
            paper=paper,
        )
        for block, paper in (
            (4, _paper(0.784, 0.025, 24.19, 0.08, 7.69)),
            (8, _paper(0.734, 0.022, 29.47, 0.08, 7.70)),
            (16, _paper(0.727, 0.023, 32.95, 0.39, 7.71)),
        )
    ),
    Kind(
        "non-AR",
        "SEDD",
        {"method": "sedd", "source": "mask"},
        paper=_paper(0.574, 0.024, 110.23, 0.63, 8.14),
    ),
    Kind(
        "non-AR",
        "MDLM",
        {"method": "mdlm", "source": "mask"},
        "ancestral",
        _paper(0.685, 0.021, 41.73, 0.49, 7.73),
    ),
    Kind("non-AR", "DFM, uniform", UNIFORM, paper=_paper(0.628, 0.030, 82.17, 0.84, 7.93)),
    Kind("non-AR", "DFM, mask", MASK, paper=_paper(0.672, 0.024, 40.90, 0.08, 7.64)),
    Kind(
        "ours",
        "DFM + SCE, uniform",
        UNIFORM | SCE,
        paper=_paper(0.777, 0.017, 30.20, 0.22, 7.66),
    ),
    Kind("ours", "DFM + SCE, mask", MASK | SCE, paper=_paper(0.690, 0.010, 38.85, 0.50, 7.67)),
)


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    recipe: Recipe
    n: int  # samples a row
    steps: int  # of the solver
    rows: int  # held-out sequences for the likelihood
    fold_size: int = 1024


def size(corpus: Corpus, scale: Scale) -> Size:
    """The sizes of one scale."""
    quiet: dict[str, Any] = {"previews": 0, "elbo_rows": 0}
    if corpus == "molecules":
        small, paper = RECIPES["qm9-small"](), RECIPES["qm9-paper"]()
        tiny = replace(RECIPES["qm9-debug"](), steps=6, batch_size=16, validation_rows=16, **quiet)
        return {
            "smoke": Size(tiny, n=8, steps=4, rows=4, fold_size=8),
            "small": Size(replace(small, model="17m", steps=1500, **quiet), 1024, 128, 1024),
            "paper": Size(paper, 5120, 512, 4096),
        }[scale]
    small, paper = RECIPES["text-small"](), RECIPES["owt-paper"]()
    tiny = replace(RECIPES["text-debug"](), steps=4, batch_size=8, validation_rows=8, **quiet)
    return {
        "smoke": Size(tiny, n=5, steps=4, rows=4),
        "small": Size(
            replace(small, steps=1400, learning_rate=1e-3, dropout=0.0, **quiet), 256, 512, 256
        ),
        "paper": Size(paper, 5000, 1024, 5000),
    }[scale]


def train(kind: Kind, corpus: Corpus, scale: Scale) -> Train:
    """The run behind a row."""
    base = size(corpus, scale).recipe
    recipe = replace(base, **kind.fields)
    if recipe.method == "bd3lm":
        steps = max(1, recipe.steps // 2)
        recipe = replace(
            recipe,
            steps=steps,
            warmup=recipe.warmup // 2,
            validate_every=max(1, min(recipe.validate_every, steps // 4)),
        )
    return Train(replace(recipe, data=corpus, tokenizer=None), corpus)


def sample(kind: Kind, corpus: Corpus, scale: Scale) -> Sample:
    """The samples behind a row; the paper's nucleus at the paper's scale."""
    sizes = size(corpus, scale)
    top_p = 0.9 if scale == "paper" and corpus == "text" else 1.0
    choice = SolverChoice(solver=kind.solver, top_p=top_p)
    return Sample(train(kind, corpus, scale), choice, sizes.steps, sizes.n)


def likelihood(kind: Kind, corpus: Corpus, scale: Scale) -> Likelihood:
    """How well a row's model predicts held-out data."""
    return Likelihood(train(kind, corpus, scale), size(corpus, scale).rows)


def held_out(corpus: Corpus, scale: Scale, part: int) -> HeldOut:
    """As many held-out rows as a row of the table has samples."""
    sizes = size(corpus, scale)
    return HeldOut(corpus, sizes.recipe.length, sizes.n, part)


def text_jobs(scale: Scale) -> tuple[Job, ...]:
    """All of the table on text."""
    judge = JUDGE[scale]
    reference = Text(held_out("text", scale, 1), judge)
    found = [Text(sample(kind, "text", scale), judge) for kind in KINDS]
    found.append(Text(held_out("text", scale, 0), judge))
    bounds = [likelihood(kind, "text", scale) for kind in KINDS]
    return (*bounds, *found, *(MauveScore(text, reference) for text in found))


def molecule_jobs(scale: Scale) -> tuple[Job, ...]:
    """All of the table on molecules."""
    fold = size("molecules", scale).fold_size
    bounds = [likelihood(kind, "molecules", scale) for kind in KINDS]
    counts = [Molecules(sample(kind, "molecules", scale), fold) for kind in KINDS]
    return (*bounds, *counts, Molecules(held_out("molecules", scale, 0), fold))


def text_table(store: Store, scale: Scale) -> Table:
    """MAUVE, perplexity and entropy beside the paper's."""
    judge = JUDGE[scale]
    reference = Text(held_out("text", scale, 1), judge)

    def values(samples: Sample | HeldOut) -> tuple[Value, ...]:
        text = Text(samples, judge)
        read, score = store.result(text), store.result(MauveScore(text, reference))
        mauve = Value(None)
        if score is not None:
            mauve = Value(score["result"]["mauve"], score["result"]["std"], 3)
        if read is None:
            return mauve, Value(None), Value(None)
        judged, entropy = (
            read["result"]["perplexity"]["perplexity"],
            read["result"]["statistics"]["entropy"],
        )
        return (
            mauve,
            Value(judged["value"], judged["fold_std"], 1),
            Value(entropy["value"], entropy["fold_std"], 2),
        )

    blank = (Value(None),) * 3
    rows = [Row(("data", ""), (*values(held_out("text", scale, 0)), *blank), DATA)]
    for kind in KINDS:
        cells = (*values(sample(kind, "text", scale)), *_training(store, kind, "text", scale))
        rows.append(Row((kind.type, kind.name), cells, kind.paper))
    measures = (Column("MAUVE", True), Column("gen. PPL", False), Column("entropy", True))
    return Table(
        "Baselines on text",
        ("type", "method"),
        (*measures, *TRAINING),
        tuple(rows),
        paper=measures,
        notes=(
            "Held-out PPL is exact for AR, an upper bound for the others. The paper's columns are "
            "of OpenWebText at its own scale, judged by gpt2-large.",
        ),
    )


def molecule_table(store: Store, scale: Scale) -> Table:
    """Valid, unique and novel molecules; the paper has no such table."""

    def values(samples: Sample | HeldOut) -> tuple[Value, ...]:
        found = store.result(Molecules(samples, size("molecules", scale).fold_size))
        if found is None:
            return (Value(None),) * 3
        return tuple(
            Value(found["result"][name]["mean"], found["result"][name]["std"], 0)
            for name in ("valid", "unique", "novel")
        )

    blank = (Value(None),) * 3
    rows = [Row(("data", ""), (*values(held_out("molecules", scale, 0)), *blank))]
    for kind in KINDS:
        cells = values(sample(kind, "molecules", scale))
        rows.append(
            Row((kind.type, kind.name), (*cells, *_training(store, kind, "molecules", scale)))
        )
    measures = (Column("valid", True), Column("unique", True), Column("novel", True))
    return Table("Baselines on QM9", ("type", "method"), (*measures, *TRAINING), tuple(rows))


TRAINING = (Column("held-out PPL", False), Column("training, s"), Column("sampling, s"))


def _training(store: Store, kind: Kind, corpus: Corpus, scale: Scale) -> tuple[Value, ...]:
    """Likelihood, and the seconds that training and sampling took."""
    bound = store.result(likelihood(kind, corpus, scale))
    value = Value(None)
    if bound is not None:
        value = Value(bound["result"]["perplexity"], bound["result"]["perplexity_error"], 2)
    jobs = (train(kind, corpus, scale), sample(kind, corpus, scale))
    took = [store.result(job) for job in jobs]
    return value, *(Value(None if r is None else r["seconds"], None, 0) for r in took)


def plan(scale: Scale) -> Plan:
    """Both tables."""
    return Plan(
        jobs=(*text_jobs(scale), *molecule_jobs(scale)),
        tables=lambda store: [text_table(store, scale), molecule_table(store, scale)],
        cost={
            "smoke": "minutes on two CPU cores",
            "small": "about an hour on one H200",
            "paper": "ten runs of 512 x 1,024 x 1M tokens: 36 days each on one H100, if the "
            "paper's 4.5 days on eight hold; and ten of 240 GPU minutes on QM9",
        }[scale],
    )
