"""A cell: a recipe and a solver, trained, sampled and measured, over one seed or several."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cwdfm.solver_config import SolverChoice
from experiments.measure import Measure, measure, over_seeds
from experiments.scale import Scale, size
from experiments.store import Store
from experiments.table import Column, Value
from experiments.tasks.base import Corpus, Task
from experiments.tasks.sample import Sample
from experiments.tasks.score import Likelihood
from experiments.tasks.train import Train

# Cost is counted, not timed: tasks may have shared their GPU.
ERROR = "Behind held-out PPL ± is one standard error."
TRAINING = (Column("held-out PPL", False), Column("tokens read, M"), Column("evaluations"))


@dataclass(frozen=True)
class Cell:
    """What differs from the scale's own recipe and solver."""

    corpus: Corpus
    scale: Scale
    fields: dict[str, Any] = field(default_factory=dict)  # of the recipe
    choice: SolverChoice = field(default_factory=SolverChoice)
    steps: int | None = None  # of the solver; None: the scale's
    seeds: int = 1  # of training and sampling
    effort: float = 1.0  # share of the scale's training steps
    sample_seed: int | None = None  # of sampling, where it shall be another
    snapshots: tuple[int, ...] = ()  # training steps after which the model is kept too
    at: int | None = None  # the one of them to look at; None: the end
    n: int | None = None  # samples; None: the scale's
    top_p: float | None = None  # the nucleus; None: the scale's

    def train(self, seed: int = 0) -> Train:
        """The run."""
        recipe = replace(size(self.corpus, self.scale).recipe, **self.fields, seed=seed)
        if self.effort != 1:
            steps = max(1, round(recipe.steps * self.effort))
            often = max(1, min(recipe.validate_every, steps // 4))
            warmup = round(recipe.warmup * self.effort)
            recipe = replace(recipe, steps=steps, warmup=warmup, validate_every=often)
        return Train(recipe, self.corpus, self.snapshots)

    def sample(self, seed: int = 0) -> Sample:
        """The samples."""
        sizes = size(self.corpus, self.scale)
        choice = replace(self.choice, top_p=self.top_p or sizes.top_p)
        drawn = seed if self.sample_seed is None else self.sample_seed + seed
        steps = self.steps or sizes.steps
        return Sample(self.train(seed), choice, steps, self.n or sizes.n, drawn, self.at)

    def likelihood(self, seed: int = 0) -> Likelihood:
        """How well the model predicts held-out data."""
        return Likelihood(self.train(seed), size(self.corpus, self.scale).rows)

    def tasks(self, *, likelihood: bool = False) -> tuple[Task, ...]:
        """All that must be done to know the cell's values."""
        found: list[Task] = []
        for seed in range(self.seeds):
            found += measure(self.corpus, self.scale).tasks(self.sample(seed))
            found += [self.likelihood(seed)] if likelihood else []
        return tuple(found)

    def values(self, store: Store) -> tuple[Value, ...]:
        """The measures, over all seeds."""
        how = measure(self.corpus, self.scale)
        return over_seeds([how.values(store, self.sample(seed)) for seed in range(self.seeds)])

    def one_run(self, store: Store) -> bool:
        """Whether samples and likelihood, if both are there, come from one run of the training."""
        runs = {store.run_date(self.train(), task) for task in (self.sample(), self.likelihood())}
        return len(runs - {None}) < 2

    def runs(self, store: Store) -> int:
        """How many of the seeds are done."""
        first = [
            measure(self.corpus, self.scale).values(store, self.sample(s))[0].value
            for s in range(self.seeds)
        ]
        return sum(value is not None for value in first)

    def training(self, store: Store) -> tuple[Value, ...]:
        """Likelihood, tokens that training reads, network evaluations a sample: see TRAINING."""
        task = self.train()
        bound, drawn = store.result(self.likelihood()), store.result(self.sample())
        likelihood = evaluations = Value(None)
        if bound is not None:
            found = bound["result"]
            likelihood = Value(found["perplexity"], found["perplexity_error"], 3)
        if drawn is not None:
            evaluations = Value(drawn["result"]["evaluations"], None, 1)
        recipe = task.recipe
        reads = 2 if recipe.method == "bd3lm" else 1  # every sequence noised and clean
        read = reads * recipe.steps * recipe.batch_size * recipe.length / 1e6
        return likelihood, Value(None if store.result(task) is None else read, None, 1), evaluations


def flow(source: str, loss: str = "ce", **more: Any) -> dict[str, Any]:
    """Fields of the recipe of a flow.

    All tokens count in the loss, as in the paper; in the NELBO with a mask source the masked ones
    alone, by its formula.
    """
    alone = source == "mask" and loss == "nelbo"
    return {"source": source, "loss": loss, "masked_only": alone} | more


def apart_note(rows: Sequence[tuple[tuple[str, ...], Cell]], store: Store) -> tuple[str, ...]:
    """Which rows of a table are of earlier runs of a training than others are."""
    drawn: dict[Train, dict[str, list[tuple[str, ...]]]] = {}
    for labels, cell in rows:
        for seed in range(cell.seeds):
            task = cell.train(seed)
            if date := store.run_date(task, cell.sample(seed)):
                drawn.setdefault(task, {}).setdefault(date, []).append(labels)
    every: dict[str, set[str]] = {}
    for labels, _ in rows:
        every.setdefault(labels[0], set()).add(" ".join(labels[1:]))
    earlier: list[dict[str, dict[str, None]]] = []  # by how many runs
    for runs in drawn.values():
        for age, date in enumerate(sorted(runs, reverse=True)[1:]):
            if age == len(earlier):
                earlier.append({})
            for labels in runs[date]:
                earlier[age].setdefault(labels[0], {})[" ".join(labels[1:])] = None
    told = [
        "; ".join(
            first + (f" ({', '.join(rest)})" if any(rest) and rest.keys() != every[first] else "")
            for first, rest in found.items()
        )
        for found in earlier
    ]
    if not told:
        return ()
    said = ". From one before that: ".join(told)
    return (f"From an earlier run of the same training, whose models were lost: {said}.",)


def weights_told(radius: int, scale: float) -> str:
    """The settings of Neighbor weights, as labels and notes have them."""
    return f"r = {radius}, s = {scale:g}"


def weights_of(choices: Iterable[SolverChoice]) -> dict[str, set[str]]:
    """The settings of context weights that solvers have, by kind of weight."""
    found: dict[str, set[str]] = {}
    for choice in choices:
        kind = choice.solver.removesuffix("-counted")
        if kind == "neighbor":
            found.setdefault(kind, set()).add(weights_told(choice.radius, choice.scale))
        elif kind == "entropy":
            found.setdefault(kind, set()).add(f"beta = {choice.beta:g}")
    return found


def weights_note(choices: Iterable[SolverChoice], where: str = "") -> tuple[str, ...]:
    """The settings of context weights, of solvers that have one setting throughout."""
    found = weights_of(choices)
    told = [f"{kind.capitalize()} {one}" for kind, (one, *more) in found.items() if not more]
    return (f"Weights{where}: {'; '.join(told)}.",) if told else ()


def solver_notes(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The same of a table's cells: those on a context-weighted path may have its weights.

    Where settings differ, each source may have one of its own.
    """
    found: dict[bool, dict[str, list[SolverChoice]]] = {False: {}, True: {}}
    for cell in cells:
        recipe = cell.train().recipe
        on_context = recipe.method == "flow" and recipe.path == "context"
        found[on_context].setdefault(recipe.source, []).append(cell.choice)
    plain, own = (
        weights_of(c for each in found[on].values() for c in each) for on in (False, True)
    )
    if all(settings == plain.get(kind) for kind, settings in own.items()):
        found[True] = {}  # the same as elsewhere: told once
    notes: list[str] = []
    for on_context, by_source in found.items():
        where = " on the context-weighted path" if on_context and found[False] else ""
        together = [choice for choices in by_source.values() for choice in choices]
        if len(by_source) > 1 and any(len(one) > 1 for one in weights_of(together).values()):
            for source, choices in by_source.items():
                notes += weights_note(choices, f"{where} with a {source} source")
        else:
            notes += weights_note(together, where)
    return tuple(notes)


def loss_note(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The settings of the weights in the scaled losses of a table, those that do not vary."""
    recipes = [cell.train().recipe for cell in cells]
    scaled = [recipe for recipe in recipes if recipe.method == "flow" and recipe.loss == "sce"]
    radii = {f"r = {recipe.loss_radius}" for recipe in scaled}
    scales = {f"s = {recipe.loss_scale:g}" for recipe in scaled}
    told = [one for one, *more in (radii, scales) if not more] if scaled else []
    return (f"Neighbor weights in the loss (SCE): {', '.join(told)}.",) if told else ()


def runs_note(rows: Sequence[tuple[tuple[str, ...], Cell]], store: Store) -> tuple[str, ...]:
    """How many runs rows of a table are of, which have fewer, and what is behind ±."""
    planned = max(cell.seeds for _, cell in rows)
    done = {labels: cell.runs(store) for labels, cell in rows}
    most = max(done.values())
    if most == 0:
        return ()
    how, samples = _measured([cell for _, cell in rows])
    alone, behind = how.alone(samples), "; ± is one standard deviation "
    if planned == 1:
        scatter = f"{behind}{alone}" if alone else f"; their scatter is {how.chance()}"
        return (f"One run of each training{scatter}.",)
    whole = f"{most} runs" if most == planned else f"{most} of {planned} runs"
    fewer = _fewer(done, most)
    less = f", over fewer in {'; '.join(fewer)}" if fewer else ""
    spreads = ["between runs"] if most > 1 else []
    spreads += [f"of the data {alone}"] if alone else []
    return (f"Means are over {whole}{less}{behind if spreads else ''}{', '.join(spreads)}.",)


def _fewer(done: Mapping[tuple[str, ...], int], most: int) -> list[str]:
    """Rows of fewer runs than most, with their runs; those of one first label together."""
    told: dict[str, None] = {}
    for labels, runs in done.items():
        if 0 < runs < most:
            alike = {n for other, n in done.items() if other[0] == labels[0]} == {runs}
            shown = labels[:1] if alike else labels
            told[f"{' '.join(filter(None, shown))} ({runs})"] = None
    return list(told)


def bars_note(cells: Sequence[Cell], store: Store) -> str:
    """What the bars of a figure are, whose cells are of one corpus."""
    runs = {cell.runs(store) for cell in cells} - {0} or {cell.seeds for cell in cells}
    how, samples = _measured(cells)
    alone = how.alone(samples) or how.chance()
    several = " or ".join(str(n) for n in sorted(runs) if n > 1)
    told = [f"between {several} runs"] if several else []
    if 1 in runs:
        told.append(f"of one run {alone}" if several else alone)
    return f"Bars: one standard deviation, {'; '.join(told)}."


def _measured(cells: Sequence[Cell]) -> tuple[Measure, int]:
    """By what cells are measured, and how many samples of each."""
    return measure(cells[0].corpus, cells[0].scale), cells[0].sample().n


def drawn_note(cells: Iterable[Cell]) -> str:
    """How many samples a run has, and in how many steps, where all are drawn in as many."""
    drawn = [cell.sample() for cell in cells]
    many = " or ".join(f"{n:,}" for n in sorted({each.n for each in drawn}))
    steps, *others = {each.steps for each in drawn}
    return f"{many} samples of each run" + ("." if others else f", in {steps:,} steps.")
