"""The jobs that experiments are made of: train, and sample. What they are worth: `scores`."""

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from cwdfm.data import TokenData
from cwdfm.data import load as load_tokens
from cwdfm.data.dataset import CacheMode
from cwdfm.data.readers import kind_of
from cwdfm.errors import InputError
from cwdfm.generation import fitting_batch, generate
from cwdfm.pretrained import Pretrained, load
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.solver import Samples
from cwdfm.solver_config import SolverChoice
from cwdfm.train.loop import fit
from cwdfm.train.recipe import Recipe
from cwdfm.train.run import Run
from experiments.job import Job, Resources, Result, Store
from experiments.places import check_corpus

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

    @property
    def about(self) -> str:
        recipe = self.recipe
        told = [recipe.method, f"{recipe.source} source", recipe.loss]
        told = told[1:] if recipe.method == "flow" else told[:1]
        told += ["context path"] if recipe.path == "context" else []
        return ", ".join([self.corpus, *told, f"seed {recipe.seed}"])

    def check(self, resources: Resources) -> None:
        place, text = resources.corpus(self.corpus), self.corpus == "text"
        check_corpus(place, text=text, length=self.recipe.length)

    def run(self, place: Path, store: Store, resources: Resources) -> Result:
        recipe = replace(self.recipe, data=resources.corpus(self.corpus))
        tokens = tokens_of(self.corpus, recipe.length, store, resources)
        _forget_others(recipe)
        run = Run(recipe, tokens, place / "run", resources.device)
        run.resume()
        # A checkpoint is there, were it of the last step.
        if stopped := fit(run, [Snapshots(run, self.snapshots, place)]):
            raise KeyboardInterrupt if stopped == signal.SIGINT else SystemExit(128 + stopped)
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

    @property
    def about(self) -> str:
        return f"{self.model.about}; {self.choice.solver}, {self.steps} steps"

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
    trained.model.capture_trunk()
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

    @property
    def about(self) -> str:
        return f"{self.corpus}, held out"

    def check(self, resources: Resources) -> None:
        place, text = resources.corpus(self.corpus), self.corpus == "text"
        check_corpus(place, text=text, length=self.length)

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


def trained_by(job: Train, store: Store, resources: Resources, at: int | None = None) -> Pretrained:
    """The model that a job trained, on the machine's device."""
    name = "model" if at is None else f"model-{at}"
    return load(store.place(job) / name, resources.device)


def corpus_of(job: Job) -> Corpus | None:
    """The corpus that a job, or what it needs, is about."""
    own: Corpus | None = getattr(job, "corpus", None)
    return own or next((corpus_of(other) for other in job.needs), None)


def tokens_of(
    corpus: Corpus, length: int, store: Store, resources: Resources, cache: CacheMode = True
) -> TokenData:
    """A corpus in windows of some length: the one that the store's other results come from."""
    place = resources.corpus(corpus)
    # A .txt file is taken for molecules where no tokenizer of text is given.
    tokenizer = "gpt2" if corpus == "text" and kind_of(Path(place)) == ".txt" else None
    found = load_tokens(place, length=length, tokenizer=tokenizer, cache=cache)
    store.same(f"{corpus}-{length}", found.fingerprint)
    return found
