"""Sampling as a task, and held-out data that stands in for samples."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from cwdfm.errors import InputError
from cwdfm.generation import generate
from cwdfm.pretrained import Pretrained
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.solver import Samples
from cwdfm.solver_config import SolverChoice
from cwdfm.trained import auto_batch_size
from experiments.store import Store
from experiments.tasks.base import Corpus, Resources, Result, Task
from experiments.tasks.corpora import check_corpus
from experiments.tasks.train import Train, load_corpus, load_model

SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class Sample(Task):
    """Samples from a trained model."""

    model: Train
    choice: SolverChoice
    steps: int
    n: int
    seed: int = 0
    at: int | None = None  # training step of the snapshot to sample from; None: the final model

    @property
    def outputs(self) -> tuple[str, ...]:
        return (SAMPLES,)

    @property
    def summary(self) -> str:
        return f"{self.model.summary}; {self.choice.solver}, {self.steps} steps"

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained = load_model(self.model, store, resources, self.at)
        out, precision = draw_samples(trained, self.choice, self.n, self.steps, self.seed)
        tokens = out.tokens.tolist()
        texts = [trained.tokenizer.decode(row) for row in tokens]
        header = {"tokenizer": trained.tokenizer.kind, "options": asdict(self.choice)}
        write_samples(folder / SAMPLES, SampleFile(texts, tokens, header))
        evaluations = float(out.evaluations.double().mean())
        return {"precision": precision, "evaluations": evaluations}


def draw_samples(
    trained: Pretrained, choice: SolverChoice, n: int, steps: int, seed: int = 0
) -> tuple[Samples, str]:
    """Samples and their precision: bfloat16 on a GPU, float32 elsewhere."""
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
            batch_size=min(n, auto_batch_size(trained)),
        )
    return out, "bfloat16" if half else "float32"


@dataclass(frozen=True)
class HeldOut(Task):
    """Held-out sequences in place of samples: the row "data" of a table."""

    corpus: Corpus
    length: int
    n: int
    part: int = 0  # which n of the held-out sequences, so that two parts do not overlap

    @property
    def outputs(self) -> tuple[str, ...]:
        return (SAMPLES,)

    @property
    def summary(self) -> str:
        return f"{self.corpus}, held out"

    def check(self, resources: Resources) -> None:
        path, text = resources.corpus(self.corpus), self.corpus == "text"
        check_corpus(path, text=text, length=self.length)

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        found = load_corpus(self.corpus, self.length, store, resources)
        rows = found.valid[self.part * self.n : (self.part + 1) * self.n].tolist()
        if len(rows) < self.n:
            raise InputError(
                f"{found.name} holds out {len(found.valid)} sequences, but "
                f"{(self.part + 1) * self.n} are required; use a larger corpus"
            )
        texts = [found.tokenizer.decode(row) for row in rows]
        header = {"tokenizer": found.tokenizer.kind}
        write_samples(folder / SAMPLES, SampleFile(texts, rows, header))
        return {"data": found.fingerprint}
