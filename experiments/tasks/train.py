"""The task that trains a model."""

import json
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cwdfm.config import added
from cwdfm.data import TokenData
from cwdfm.data import load as load_tokens
from cwdfm.data.dataset import CacheMode
from cwdfm.data.readers import file_type
from cwdfm.pretrained.model import Pretrained, load_trained
from cwdfm.train.loggers import Logger
from cwdfm.train.loop import fit
from cwdfm.train.run import Run
from experiments.recipe import Recipe
from experiments.store import Store
from experiments.tasks.base import Corpus, Resources, Result, Task
from experiments.tasks.corpora import check_corpus


@dataclass(frozen=True)
class Train(Task):
    """A training run. `Resources` maps the corpus to a path; the recipe's `data` is ignored."""

    recipe: Recipe
    corpus: Corpus
    snapshots: tuple[int, ...] = ()  # training steps after which the model is saved as well
    until: int = added(0)  # stop after this many of the recipe's steps; 0 for all of them

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("model", *(f"model-{step}" for step in self.snapshots))

    @property
    def summary(self) -> str:
        recipe = self.recipe
        parts: list[str] = [self.corpus, recipe.method]
        if recipe.method == "flow":
            parts = [self.corpus, f"{recipe.source} source", recipe.loss]
            parts += ["context path"] if recipe.path == "context" else []
        return ", ".join([*parts, f"seed {recipe.seed}"])

    def check(self, resources: Resources) -> None:
        path, text = resources.corpus(self.corpus), self.corpus == "text"
        check_corpus(path, text=text, length=self.recipe.length)

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        recipe = replace(self.recipe, data=resources.corpus(self.corpus))
        tokens = load_corpus(self.corpus, recipe.length, store, resources)
        _reset_compiler(recipe)
        run = Run(recipe.config(), tokens, folder / "run", resources.torch_device())
        run.resume()  # from the last checkpoint of an attempt that was interrupted
        with suppress(Stopped):  # which saves the model
            if number := fit(run, [Snapshots(run, self.snapshots, folder, self.until)]):
                raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
            run.averaged().save_pretrained(folder / "model")
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        return {
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "data": tokens.fingerprint,
            "metrics": [json.loads(line) for line in lines],
        }


# Recipes with equal values of these fields can reuse compiled code.
_COMPILED_FIELDS = (
    *("method", "block", "time", "source", "model", "learned_positions", "length", "dropout"),
    *("batch_size", "accumulation", "precision", "compile"),
)
_last_compiled: list[Any] = []


def _reset_compiler(recipe: Recipe) -> None:
    """Discard code compiled for other networks, which counts towards the recompile limit."""
    fields = [getattr(recipe, name) for name in _COMPILED_FIELDS]
    if fields != _last_compiled:
        torch.compiler.reset()
        _last_compiled[:] = fields


class Stopped(Exception):
    """Training has reached its last requested step."""


class Snapshots(Logger):
    """Saves the averaged model after the given steps, and stops after step `until` if it is not 0.

    This logger is called before a step is logged and validated, so training stops in the next step.
    """

    def __init__(self, run: Run, steps: tuple[int, ...], folder: Path, until: int = 0) -> None:
        self.run, self.steps, self.folder, self.until = run, steps, folder, until

    def step(self, step: int) -> None:
        if self.until and step > self.until:
            raise Stopped
        if step in self.steps:
            self.run.averaged().save_pretrained(self.folder / f"model-{step}")
        if step == self.until:
            self.run.averaged().save_pretrained(self.folder / "model")


def load_model(
    task: Train, store: Store, resources: Resources, snapshot: int | None = None
) -> Pretrained:
    """Load the model that a task trained, or a snapshot of it, on the worker's device."""
    name = "model" if snapshot is None else f"model-{snapshot}"
    return load_trained(store.folder(task) / name, resources.torch_device())


def load_corpus(
    corpus: Corpus, length: int, store: Store, resources: Resources, cache: CacheMode = True
) -> TokenData:
    """Load a corpus as sequences of `length` tokens; raises if the store used another corpus."""
    path = resources.corpus(corpus)
    # Without a tokenizer for text, a .txt file would be read as molecules.
    tokenizer = "gpt2" if corpus == "text" and file_type(Path(path)) == ".txt" else None
    found = load_tokens(path, length=length, tokenizer=tokenizer, cache=cache)
    store.check_fingerprint(f"{corpus}-{length}", found.fingerprint)
    return found
