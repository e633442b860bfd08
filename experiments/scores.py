"""The jobs that say what a model or its samples are worth."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from cwdfm.data import CORPORA, TokenData
from cwdfm.data.text import is_prepared
from cwdfm.errors import InputError, NotInstalled
from cwdfm.generation import fitting_batch, given
from cwdfm.likelihood.dataset import held_out_likelihood, load_held_out
from cwdfm.metrics.context import context_analysis
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.mauve import mauve_score
from cwdfm.metrics.molecule import score_molecules
from cwdfm.metrics.perplexity import generative_perplexity
from cwdfm.metrics.text import text_statistics
from cwdfm.metrics.text_model import hub_progress_bars, locate_model, model_fingerprint
from cwdfm.metrics.updates import update_statistics
from cwdfm.pretrained import Pretrained
from cwdfm.report.reference import MoleculeReference
from cwdfm.sample_file import read_samples
from cwdfm.solver_config import SolverChoice
from experiments.job import Job, Resources, Result, Store, Unavailable
from experiments.jobs import HeldOut, Sample, Train, drawn_from, tokens_of, trained_by
from experiments.places import check_corpus


@dataclass(frozen=True)
class Molecules(Job):
    """Valid, unique and novel molecules among samples."""

    samples: Sample | HeldOut
    fold_size: int

    def check(self, resources: Resources) -> None:
        check_corpus(resources.corpus("molecules"), text=False)

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        drawn = self.samples
        length = drawn.length if isinstance(drawn, HeldOut) else drawn.model.recipe.length
        try:
            reference = known_molecules(resources.corpus("molecules"), length)
        except InputError as error:
            raise Unavailable(str(error)) from error
        store.same(f"molecules-{length}", reference.about["fingerprint"])
        found = read_samples(store.place(drawn) / "samples.jsonl")
        scores = score_molecules(found.texts, reference.known, fold_size=self.fold_size)
        return {"fold_size": self.fold_size, **scores.to_json()}


@dataclass(frozen=True)
class Text(Job):
    """Perplexity under the judge, entropy and repetition; the judge's features beside."""

    samples: Sample | HeldOut
    judge: str  # what it is called; where it lies, the machine knows
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def leaves(self) -> tuple[str, ...]:
        return ("features.npy",)

    def check(self, resources: Resources) -> None:
        locate_model(self._judge(resources))  # a hub name is let through

    def _judge(self, resources: Resources) -> str:
        if resources.eval_model is None:
            what = "a causal language model" if self.judge == "any" else self.judge
            raise Unavailable(f"needs a judge of text ({what}): give it by --eval-model")
        return resources.eval_model

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        name = self._judge(resources)
        # First: what is no judge is not remembered as one.
        judge = loaded_evaluator(name, self.dtype, str(resources.device))
        store.same(evaluator_note(self.judge), evaluator_identity(name))
        found = read_samples(store.place(self.samples) / "samples.jsonl")
        folds = min(5, len(found.texts))
        np.save(place / "features.npy", judge.features(found.texts))
        tokens = torch.tensor(found.tokens)
        return {
            "perplexity": generative_perplexity(found.texts, judge, folds=folds).to_json(),
            "statistics": text_statistics(tokens, folds=folds).to_json(),
        }


@dataclass(frozen=True)
class MauveScore(Job):
    """MAUVE of texts against others, by the features of the judge that read both."""

    samples: Text
    reference: Text

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        sides = [np.load(store.place(t) / "features.npy") for t in (self.samples, self.reference)]
        try:
            return mauve_score(*sides).to_json()
        except NotInstalled as error:
            raise Unavailable(str(error)) from error


@dataclass(frozen=True)
class Likelihood(Job):
    """Negative log-likelihood of held-out rows, or the bound on it."""

    model: Train
    rows: int
    draws: int = 16

    def check(self, resources: Resources) -> None:
        self.model.check(resources)

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        trained = trained_by(self.model, store, resources)
        data = tokens_of(self.model.corpus, self.model.recipe.length, store, resources)
        return _bound(trained, data, self.rows, self.draws)


@dataclass(frozen=True)
class TestLikelihood(Job):
    """The same of a corpus that the model was not trained on.

    Of one by name its test part counts, if it has one; of a prepared one what is held out; files
    count whole.
    """

    model: Train
    test: str
    rows: int
    draws: int = 16

    def check(self, resources: Resources) -> None:
        check_corpus(resources.test(self.test), text=True, length=self.model.recipe.length)

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        trained, where = trained_by(self.model, store, resources), resources.test(self.test)
        part = None if is_prepared(Path(where)) else "all"
        if part and where in CORPORA:
            part = "test" if "test" in CORPORA[where].part_names else None
        data = load_held_out(trained, where, part)
        store.same(f"heldout-{self.test}-{trained.length}", data.fingerprint)
        return _bound(trained, data, self.rows, self.draws)


def _bound(trained: Pretrained, data: TokenData, rows: int, draws: int) -> Result:
    size = min(64, fitting_batch(trained))
    return held_out_likelihood(trained, data, limit=rows, draws=draws, batch_size=size).to_json()


@dataclass(frozen=True)
class Context(Job):
    """How hard masked tokens are to predict, by their context."""

    model: Train
    rows: int
    draws: int = 4

    def check(self, resources: Resources) -> None:
        self.model.check(resources)

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        trained = trained_by(self.model, store, resources)
        valid = tokens_of(self.model.corpus, self.model.recipe.length, store, resources).valid
        rows = torch.from_numpy(valid[: self.rows].astype(np.int64)).to(resources.device)
        analysis = context_analysis(
            trained.model,
            trained.source,
            trained.schedule,
            rows,
            draws=self.draws,
            batch_size=min(64, fitting_batch(trained)),
        )
        return analysis.to_json()


@dataclass(frozen=True)
class Updates(Job):
    """How often a solver changes tokens, and changes them back."""

    model: Train
    choice: SolverChoice
    steps: int
    n: int

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        trained = trained_by(self.model, store, resources)
        out, precision = drawn_from(trained, self.choice, self.n, self.steps)
        return {"precision": precision, **update_statistics(out, given(trained)[1]).to_json()}


@lru_cache(maxsize=1)
def known_molecules(name: str, length: int) -> MoleculeReference:
    """The molecules to train on, canonical."""
    reference = MoleculeReference.load(name, length=length)
    assert reference is not None
    return reference


def evaluator_note(name: str) -> str:
    """Under what a folder remembers the judge that a scale calls so: each scale has its own."""
    return f"judge-{name}"


def evaluator_identity(place: str) -> str:
    """What tells a judge from another: its files, or its name on the hub."""
    return model_fingerprint(place)["files"] or place


@lru_cache(maxsize=1)
def loaded_evaluator(
    place: str, dtype: Literal["float32", "bfloat16"], device: str
) -> LoadedEvaluatorLM:
    """The judge, read once, and without a bar between the lines of jobs."""
    with hub_progress_bars(shown=False):
        return EvaluatorLM(place, dtype=dtype, device=device).load()
