"""Scores of models and of their samples, as tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cwdfm.data import CORPORA, TokenData, is_prepared, load, load_reference
from cwdfm.data.reference import canonical_texts
from cwdfm.data.smiles import CanonicalSet
from cwdfm.errors import InputError, NotInstalled
from cwdfm.likelihood.dataset import held_out_likelihood, load_held_out
from cwdfm.loss import CrossEntropy
from cwdfm.metrics.analysis import context_analysis, update_statistics
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.mauve import mauve_score
from cwdfm.metrics.molecule import score_molecules
from cwdfm.metrics.perplexity import generative_perplexity
from cwdfm.metrics.text import text_statistics
from cwdfm.metrics.text_model import hub_progress_bars, locate_model, model_fingerprint
from cwdfm.path import MixturePath
from cwdfm.pretrained import Pretrained
from cwdfm.sample_file import read_samples
from cwdfm.schedule import stratified_times
from cwdfm.trained import auto_batch_size, prompt_tokens
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.tasks.base import Resources, Result, Task, Unavailable
from experiments.tasks.corpora import check_corpus
from experiments.tasks.sample import SAMPLES, HeldOut, Sample, draw_samples
from experiments.tasks.train import Train, load_corpus, load_model


@dataclass(frozen=True)
class Molecules(Task):
    """Valid, unique and novel molecules among samples."""

    samples: Sample | HeldOut
    fold_size: int

    def check(self, resources: Resources) -> None:
        check_corpus(resources.corpus("molecules"), text=False)

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        length, path = self.samples.length, resources.corpus("molecules")
        try:
            training, fingerprint = known_molecules(path, length)
        except InputError as error:
            raise Unavailable(str(error)) from error
        store.check_fingerprint(f"molecules-{length}", fingerprint)
        found = read_samples(store.folder(self.samples) / SAMPLES)
        scores = score_molecules(found.texts, training, fold_size=self.fold_size)
        return {"fold_size": self.fold_size, **scores.to_json()}


@dataclass(frozen=True)
class Text(Task):
    """Perplexity under the evaluator LM, entropy and repetition. Saves the LM's features."""

    samples: Sample | HeldOut
    judge: str  # name of the evaluator LM; recorded keys contain this field's name
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("features.npy",)

    def check(self, resources: Resources) -> None:
        locate_model(self._path(resources))  # accepts any hub name

    def _path(self, resources: Resources) -> str:
        if resources.eval_model is None:
            name = "a causal language model" if self.judge == "any" else self.judge
            raise Unavailable(f"requires an evaluator LM ({name}): pass --eval-model")
        return resources.eval_model

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        path = self._path(resources)
        # Load it first, so that the store never records the fingerprint of something else.
        evaluator = load_evaluator(path, self.dtype, str(resources.torch_device()))
        store.check_fingerprint(evaluator_key(self.judge), evaluator_fingerprint(path))
        found = read_samples(store.folder(self.samples) / SAMPLES)
        folds = min(5, len(found.texts))
        np.save(folder / "features.npy", evaluator.features(found.texts))
        tokens = torch.tensor(found.tokens)
        return {
            "perplexity": generative_perplexity(found.texts, evaluator, folds=folds).to_json(),
            "statistics": text_statistics(tokens, folds=folds).to_json(),
        }


@dataclass(frozen=True)
class MauveScore(Task):
    """MAUVE between samples and reference texts, by the features of one evaluator LM."""

    samples: Text
    reference: Text

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        sides = [np.load(store.folder(t) / "features.npy") for t in (self.samples, self.reference)]
        try:
            return mauve_score(*sides).to_json()
        except NotInstalled as error:
            raise Unavailable(str(error)) from error


@dataclass(frozen=True)
class Likelihood(Task):
    """The negative log-likelihood of held-out sequences, or an upper bound on it."""

    model: Train
    rows: int
    draws: int = 16

    def check(self, resources: Resources) -> None:
        self.model.check(resources)

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained = load_model(self.model, store, resources)
        data = load_corpus(self.model.corpus, self.model.recipe.length, store, resources)
        return _bound(trained, data, self.rows, self.draws)


@dataclass(frozen=True)
class TestLikelihood(Task):
    """The likelihood on a corpus that the model was not trained on.

    Evaluates the test split of a named corpus if it has one, the held-out part of a prepared
    corpus, and all of a file.
    """

    model: Train
    test: str
    rows: int
    draws: int = 16

    def check(self, resources: Resources) -> None:
        check_corpus(resources.test(self.test), text=True, length=self.model.recipe.length)

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained, where = load_model(self.model, store, resources), resources.test(self.test)
        part = None if is_prepared(Path(where)) else "all"
        if part and where in CORPORA:
            part = "test" if "test" in CORPORA[where].part_names else None
        data = load_held_out(trained, where, part)
        store.check_fingerprint(f"heldout-{self.test}-{trained.length}", data.fingerprint)
        return _bound(trained, data, self.rows, self.draws)


def _bound(trained: Pretrained, data: TokenData, rows: int, draws: int) -> Result:
    size = min(64, auto_batch_size(trained))
    return held_out_likelihood(trained, data, limit=rows, draws=draws, batch_size=size).to_json()


@dataclass(frozen=True)
class Context(Task):
    """Entropy and loss of masked tokens as a function of their context."""

    model: Train
    rows: int
    draws: int = 4

    def check(self, resources: Resources) -> None:
        self.model.check(resources)

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained = load_model(self.model, store, resources)
        valid = load_corpus(self.model.corpus, self.model.recipe.length, store, resources).valid
        rows = torch.from_numpy(valid[: self.rows].astype(np.int64)).to(resources.torch_device())
        analysis = context_analysis(
            trained.model,
            trained.source,
            trained.schedule,
            rows,
            draws=self.draws,
            batch_size=min(64, auto_batch_size(trained)),
        )
        return analysis.to_json()


@dataclass(frozen=True)
class LossModes(Task):
    """Cross-entropy of held-out sequences, in nats per token, in both modes of the network.

    The modes differ only in dropout. "path" averages over times, "start" is the loss of fully
    noised sequences. Both are means over `draws` copies of each sequence, with different noise and
    times.
    """

    model: Train
    rows: int
    draws: int = 4
    seed: int = 0
    at: int | None = None  # training step of the snapshot; None: the final model

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained = load_model(self.model, store, resources, self.at)
        data = load_corpus(self.model.corpus, self.model.recipe.length, store, resources)
        rows_BN = torch.from_numpy(data.valid[: self.rows].astype(np.int64))
        rows_BN = rows_BN.to(resources.torch_device())
        torch.manual_seed(self.seed)
        found = {}
        for mode, training in (("training", True), ("evaluation", False)):
            trained.model.train(training)
            sums = torch.zeros(2, dtype=torch.float64)
            for draw in range(self.draws):
                for index_B in torch.arange(len(rows_BN)).split(auto_batch_size(trained)):
                    index_B = index_B.to(rows_BN.device)
                    sums += self._losses(trained, rows_BN, index_B, draw) * len(index_B)
            path, start = (sums / self.draws / len(rows_BN)).tolist()
            found[mode] = {"path": path, "start": start}
        return found

    @torch.no_grad()
    def _losses(self, trained: Pretrained, rows_BN: Tensor, index_B: Tensor, draw: int) -> Tensor:
        """The loss of one batch at stratified times, and at t = 0."""
        path = MixturePath(trained.source, trained.schedule)
        times_B = stratified_times(self.seed, draw, index_B, len(rows_BN))
        _, given_N = prompt_tokens(trained)
        fixed_BN = None if given_N is None else given_N.to(index_B.device).expand_as(rows_BN)

        def loss(t_B: Tensor) -> float:
            given_BN = None if fixed_BN is None else fixed_BN[index_B]
            batch = path.sample(
                rows_BN[index_B], t_B, seed=self.seed, step=draw, index=index_B, fixed=given_BN
            )
            logits_BNV = trained.model(batch.x_t, batch.t)
            return float(CrossEntropy()(logits_BNV, batch, trained.schedule))

        return torch.tensor([loss(times_B), loss(torch.zeros_like(times_B))], dtype=torch.float64)


@dataclass(frozen=True)
class Updates(Task):
    """How often a solver updates a token, and how often it reverts an update."""

    model: Train
    choice: SolverChoice
    steps: int
    n: int

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained = load_model(self.model, store, resources)
        out, precision = draw_samples(trained, self.choice, self.n, self.steps)
        return {
            "precision": precision,
            **update_statistics(out, prompt_tokens(trained)[1]).to_json(),
        }


@lru_cache(maxsize=1)
def known_molecules(name: str, length: int) -> tuple[CanonicalSet, str]:
    """All molecules that are not held out, and the fingerprint of the data at this length.

    This includes molecules that are too long for the models; otherwise samples of them would be
    novel.
    """
    data = load(name, length=length)
    held_out = set(canonical_texts(data, "valid"))
    known = (smiles for smiles in load_reference(name).training if smiles not in held_out)
    return CanonicalSet(known), data.fingerprint


def molecule_counts(
    texts: Sequence[str], training: CanonicalSet, fold_size: int
) -> dict[str, float]:
    """Valid, unique and novel molecules of 1,024 samples: means over folds."""
    scores = score_molecules(texts, training, fold_size=fold_size).to_json()
    names = ("valid", "unique", "novel")
    return {name: scores[name]["mean"] * 1024 / fold_size for name in names}


def evaluator_key(name: str) -> str:
    return f"judge-{name}"


def evaluator_fingerprint(path: str) -> str:
    """A checksum of the evaluator's files, or its name on the hub."""
    return model_fingerprint(path)["files"] or path


@lru_cache(maxsize=1)
def load_evaluator(
    path: str, dtype: Literal["float32", "bfloat16"], device: str
) -> LoadedEvaluatorLM:
    """The evaluator LM, loaded once per worker and without a progress bar."""
    with hub_progress_bars(shown=False):
        return EvaluatorLM(path, dtype=dtype, device=device).load()
