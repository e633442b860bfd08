"""A cell of a table: one training and one solver, sampled and scored with one or more seeds."""

from dataclasses import dataclass, field, replace
from typing import Any

from experiments.measure import measure, over_seeds
from experiments.scale import Scale, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Column, Value
from experiments.tasks.base import Corpus, Task
from experiments.tasks.sample import Sample
from experiments.tasks.score import Likelihood
from experiments.tasks.train import Train

# Cost is counted in evaluations, not in seconds, because tasks may have shared a GPU.
TRAINING = (Column("held-out PPL", False), Column("tokens read, M"), Column("evaluations"))


@dataclass(frozen=True)
class Cell:
    """The differences from the recipe and solver of the scale."""

    corpus: Corpus
    scale: Scale
    fields: dict[str, Any] = field(default_factory=dict)  # changes to the recipe
    choice: SolverChoice = field(default_factory=SolverChoice)
    steps: int | None = None  # solver steps; None: the number of the scale
    seeds: int = 1  # number of seeds of training and sampling
    effort: float = 1.0  # fraction of the scale's training steps
    sample_seed: int | None = None  # first seed of sampling; None: that of training
    snapshots: tuple[int, ...] = ()  # training steps after which the model is saved as well
    at: int | None = None  # the snapshot to sample from; None: the final model
    until: int = 0  # stop training after this many of the recipe's steps; 0 for all of them
    n: int | None = None  # number of samples; None: that of the scale
    top_p: float | None = None  # nucleus; None: that of the scale
    dropout: bool = False  # leave the network's dropout on while sampling
    carry_over: bool = True  # with a mask source: keep revealed tokens

    def train(self, seed: int = 0) -> Train:
        recipe = replace(size(self.corpus, self.scale).recipe, **self.fields, seed=seed)
        if self.effort != 1:
            steps = max(1, round(recipe.steps * self.effort))
            often = max(1, min(recipe.validate_every, steps // 4))
            warmup = round(recipe.warmup * self.effort)
            recipe = replace(recipe, steps=steps, warmup=warmup, validate_every=often)
        return Train(recipe, self.corpus, self.snapshots, self.until)

    def sample(self, seed: int = 0) -> Sample:
        sizes = size(self.corpus, self.scale)
        choice = replace(self.choice, top_p=self.top_p or sizes.top_p)
        drawn = seed if self.sample_seed is None else self.sample_seed + seed
        steps = self.steps or sizes.steps
        return Sample(
            self.train(seed),
            choice,
            steps,
            self.n or sizes.n,
            drawn,
            self.at,
            self.dropout,
            self.carry_over,
        )

    def likelihood(self, seed: int = 0) -> Likelihood:
        return Likelihood(self.train(seed), size(self.corpus, self.scale).rows)

    def tasks(self, *, likelihood: bool = False) -> tuple[Task, ...]:
        found: list[Task] = []
        for seed in range(self.seeds):
            found += measure(self.corpus, self.scale).tasks(self.sample(seed))
            found += [self.likelihood(seed)] if likelihood else []
        return tuple(found)

    def values(self, store: Store) -> tuple[Value, ...]:
        """The scores, averaged over seeds."""
        how = measure(self.corpus, self.scale)
        return over_seeds([how.values(store, self.sample(seed)) for seed in range(self.seeds)])

    def one_run(self, store: Store) -> bool:
        """Whether samples and likelihood, if finished, use the same training run."""
        runs = {store.run_date(self.train(), task) for task in (self.sample(), self.likelihood())}
        return len(runs - {None}) < 2

    def runs(self, store: Store) -> int:
        """The number of seeds that are finished."""
        first = [
            measure(self.corpus, self.scale).values(store, self.sample(s))[0].value
            for s in range(self.seeds)
        ]
        return sum(value is not None for value in first)

    def training(self, store: Store) -> tuple[Value, ...]:
        """Likelihood, training tokens and network evaluations per sample: the columns TRAINING."""
        task = self.train()
        bound, drawn = store.result(self.likelihood()), store.result(self.sample())
        likelihood = evaluations = Value(None)
        if bound is not None:
            likelihood = Value(bound["perplexity"], bound["perplexity_error"], 3)
        if drawn is not None:
            evaluations = Value(drawn["evaluations"], None, 1)
        recipe = task.recipe
        reads = 2 if recipe.method == "bd3lm" else 1  # it processes every sequence noised and clean
        read = reads * recipe.steps * recipe.batch_size * recipe.length / 1e6
        return likelihood, Value(None if store.result(task) is None else read, None, 1), evaluations


def flow(source: str, loss: str = "ce", **more: Any) -> dict[str, Any]:
    """Recipe fields of a flow.

    The loss covers all tokens, as in the paper. The NELBO with a mask source covers only masked
    tokens, by its formula.
    """
    masked_only = source == "mask" and loss == "nelbo"
    return {"source": source, "loss": loss, "masked_only": masked_only} | more


def weight_label(radius: int, scale: float) -> str:
    """The settings of Neighbor weights in labels and notes."""
    return f"r = {radius}, s = {scale:g}"
