"""The jobs that experiments are made of: train, sample, score, bound."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cwdfm.analyze import context_analysis, update_statistics
from cwdfm.data import TokenData
from cwdfm.data import load as load_tokens
from cwdfm.errors import InputError
from cwdfm.generation import fitting_batch, generate, given
from cwdfm.method.choice import SolverChoice
from cwdfm.metric import (
    Judge,
    LoadedJudge,
    bound_split,
    generative_perplexity,
    mauve_score,
    score_molecules,
    text_statistics,
)
from cwdfm.pretrained import Pretrained, load
from cwdfm.report.cells import model_identity
from cwdfm.report.reference import MoleculeReference
from cwdfm.repro.job import Job, Resources, Result, Store, Unavailable
from cwdfm.sample_file import SampleFile, read_samples, write_samples
from cwdfm.solver import Samples
from cwdfm.train.loop import fit
from cwdfm.train.recipe import Recipe
from cwdfm.train.run import Run

Corpus = Literal["molecules", "text"]


@dataclass(frozen=True)
class Train(Job):
    """A training run. The recipe's `data` is the name of a corpus, which the machine knows."""

    recipe: Recipe
    corpus: Corpus
    snapshots: tuple[int, ...] = ()  # steps after which the model is kept too

    @property
    def leaves(self) -> tuple[str, ...]:
        return ("model", *(f"model-{step}" for step in self.snapshots))

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        recipe = replace(self.recipe, data=resources.corpus(self.corpus))
        tokens = tokens_of(self.corpus, recipe.length, store, resources)
        _forget_others(recipe)
        run = Run(recipe, tokens, place / "run", resources.device)
        run.resume()
        fit(run, [Snapshots(run, self.snapshots, place)])
        if run.step < recipe.steps:
            raise KeyboardInterrupt  # told to stop; a checkpoint is there
        run.averaged().save_pretrained(place / "model")
        lines = (place / "run" / "metrics.jsonl").read_text().splitlines()
        return {
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "data": tokens.fingerprint,
            "metrics": [json.loads(line) for line in lines],
        }


# What compiled passes are for: runs that agree in these can share them.
_NETWORK = (
    *("method", "block", "time", "source", "model", "learned_positions", "length", "dropout"),
    *("batch_size", "accumulation", "precision", "compile"),
)
_compiled: list[Any] = []


def _forget_others(recipe: Recipe) -> None:
    """Forget what was compiled for other networks, which would count towards a limit.

    What was compiled for this one stays: the next run is ready at once.
    """
    network = [getattr(recipe, name) for name in _NETWORK]
    if network != _compiled:
        torch.compiler.reset()
        _compiled[:] = network


@dataclass(frozen=True)
class Sample(Job):
    """Samples of a trained model."""

    model: Train
    choice: SolverChoice
    steps: int
    n: int
    seed: int = 0
    at: int | None = None  # the snapshot to draw from; None: the finished model

    @property
    def leaves(self) -> tuple[str, ...]:
        return ("samples.jsonl",)

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        trained = trained_by(self.model, store, resources, self.at)
        out, precision = drawn_from(trained, self.choice, self.n, self.steps, self.seed)
        tokens = out.tokens.tolist()
        texts = [trained.tokenizer.decode(row) for row in tokens]
        head = {"tokenizer": trained.tokenizer.kind, "options": asdict(self.choice)}
        write_samples(place / "samples.jsonl", SampleFile(texts, tokens, head))
        asked = float(out.evaluations.double().mean())
        return {"precision": precision, "evaluations": asked}


def drawn_from(
    trained: Pretrained, choice: SolverChoice, n: int, steps: int, seed: int = 0
) -> tuple[Samples, str]:
    """Samples of a model, and their precision: half where the device is fast at it."""
    device = next(trained.model.parameters()).device.type
    half = device == "cuda"
    trained.model.record_trunk()
    with torch.autocast(device, torch.bfloat16, enabled=half):
        out = generate(
            trained,
            choice.build(trained.method),
            n=n,
            steps=steps,
            seed=seed,
            batch_size=min(n, fitting_batch(trained)),
        )
    return out, "bfloat16" if half else "float32"


@dataclass(frozen=True)
class HeldOut(Job):
    """Held-out rows in the samples' place: the data's own row."""

    corpus: Corpus
    length: int
    n: int
    part: int = 0  # which n of them, so that two parts are apart

    @property
    def leaves(self) -> tuple[str, ...]:
        return ("samples.jsonl",)

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        found = tokens_of(self.corpus, self.length, store, resources)
        rows = found.valid[self.part * self.n : (self.part + 1) * self.n].tolist()
        if len(rows) < self.n:
            raise InputError(
                f"{found.name} holds out {len(found.valid)} sequences, and {self.part + 1} times "
                f"{self.n} are asked for; give more data"
            )
        texts = [found.tokenizer.decode(row) for row in rows]
        head = {"tokenizer": found.tokenizer.kind}
        write_samples(place / "samples.jsonl", SampleFile(texts, rows, head))
        return {"data": found.fingerprint}


@dataclass(frozen=True)
class Molecules(Job):
    """Valid, unique and novel molecules among samples."""

    samples: Sample | HeldOut
    fold_size: int

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        try:
            known = known_molecules(resources.corpus("molecules"))
        except InputError as error:
            raise Unavailable(str(error)) from error
        found = read_samples(store.place(self.samples) / "samples.jsonl")
        scores = score_molecules(found.texts, known, fold_size=self.fold_size)
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

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        if resources.judge is None:
            raise Unavailable(f"no judge; say where {self.judge} lies by --judge")
        store.same("judge", str(model_identity(resources.judge)["files"]))
        judge = loaded_judge(resources.judge, self.dtype)
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
        except InputError as error:
            if "pip install" in str(error):
                raise Unavailable(str(error)) from error
            raise


@dataclass(frozen=True)
class Likelihood(Job):
    """Negative log-likelihood of held-out rows, or the bound on it."""

    model: Train
    rows: int
    draws: int = 16

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        trained = trained_by(self.model, store, resources)
        valid = tokens_of(self.model.corpus, self.model.recipe.length, store, resources).valid
        return _bound(trained, valid, self.rows, self.draws)


@dataclass(frozen=True)
class TestLikelihood(Job):
    """The same of a corpus that the model was not trained on."""

    model: Train
    test: str
    rows: int
    draws: int = 16

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        where = resources.test(self.test)
        trained = trained_by(self.model, store, resources)
        found = load_tokens(where, length=trained.length, tokenizer=trained.tokenizer)
        store.same(f"test-{self.test}-{trained.length}", found.fingerprint)
        rows = found.valid if len(found.valid) else found.train
        return _bound(trained, rows, self.rows, self.draws)


class Snapshots:
    """Keeps the averaged model after some steps."""

    def __init__(self, run: Run, steps: tuple[int, ...], place: Path) -> None:
        self.run, self.steps, self.place = run, steps, place

    def step(self, step: int) -> None:
        if step in self.steps:
            self.run.averaged().save_pretrained(self.place / f"model-{step}")

    def record(self, record: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def _bound(trained: Pretrained, rows: NDArray[Any], limit: int, draws: int) -> Result:
    bound = bound_split(
        trained.method,
        trained.model,
        rows,
        limit=min(limit, len(rows)),
        draws=draws,
        fixed=torch.arange(trained.length) == 0 if trained.fix_first else None,
        batch_size=min(64, fitting_batch(trained)),
    )
    return bound.to_json()


def trained_by(job: Train, store: Store, resources: Resources, at: int | None = None) -> Pretrained:
    """The model that a job trained, on the machine's device."""
    name = "model" if at is None else f"model-{at}"
    return load(store.place(job) / name, resources.device)


@dataclass(frozen=True)
class Context(Job):
    """How hard masked tokens are to predict, by their context."""

    model: Train
    rows: int
    draws: int = 4

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


def corpus_of(job: Job) -> Corpus | None:
    """The corpus that a job, or what it needs, is about."""
    own: Corpus | None = getattr(job, "corpus", None)
    return own or next((corpus_of(other) for other in job.needs), None)


def tokens_of(corpus: Corpus, length: int, store: Store, resources: Resources) -> TokenData:
    """A corpus in windows of some length: the one that the store's other results come from."""
    found = load_tokens(resources.corpus(corpus), length=length)
    store.same(f"{corpus}-{length}", found.fingerprint)
    return found


@lru_cache(maxsize=1)
def known_molecules(name: str) -> frozenset[str]:
    """The molecules to train on, canonical."""
    reference = MoleculeReference.load(name)
    assert reference is not None
    return reference.known


@lru_cache(maxsize=1)
def loaded_judge(place: str, dtype: Literal["float32", "bfloat16"]) -> LoadedJudge:
    """The judge, read once."""
    return Judge(place, dtype=dtype).load()
