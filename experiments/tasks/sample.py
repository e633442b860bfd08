"""Tasks that sample from a model, or use held-out data instead of samples."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from cwdfm.config import added
from cwdfm.errors import InputError
from cwdfm.generation import generate
from cwdfm.pretrained import Pretrained
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.solver import Samples
from cwdfm.source import MaskSource, Source
from cwdfm.trained import auto_batch_size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.tasks.base import Corpus, Resources, Result, Task
from experiments.tasks.corpora import check_corpus
from experiments.tasks.train import Train, load_corpus, load_model

SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class RewritableMaskSource(Source):
    """A mask source whose revealed tokens may change: a solver without carry-over.

    As with a uniform source, the solver treats a token as revealed if it equals its proposal, and
    may update all others. In the last step every token becomes its proposal. The solver of the
    package `flow_matching` does the same for all sources.
    """

    @property
    def mask(self) -> MaskSource:
        """The source that the network was trained with."""
        return MaskSource(self.vocab_size)

    @property
    def num_tokens(self) -> int:
        return self.mask.num_tokens

    def noise(self, index_B: Tensor, length: int, *, seed: int, step: int = 0) -> Tensor:
        return self.mask.noise(index_B, length, seed=seed, step=step)

    def revealed(self, x_BN: Tensor) -> Tensor | None:
        return None

    def renoise_probability(self, x_BN: Tensor) -> Tensor:
        return self.mask.renoise_probability(x_BN)

    def renoise(self, x_BN: Tensor, u_BN: Tensor) -> Tensor:
        return self.mask.renoise(x_BN, u_BN)


class WithDropout(nn.Module):
    """Keeps a network in training mode, even if this wrapper is in eval mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.train()

    def forward(self, x_BN: Tensor, t_B: Tensor) -> Tensor:
        logits_BNV: Tensor = self.network(x_BN, t_B)
        return logits_BNV

    def train(self, mode: bool = True) -> Self:
        self.training = mode
        return self


@dataclass(frozen=True)
class Sample(Task):
    """Samples from a trained model."""

    model: Train
    choice: SolverChoice
    steps: int
    n: int
    seed: int = 0
    at: int | None = None  # training step of the snapshot to sample from; None: the final model
    dropout: bool = added(False)  # leave the network's dropout on
    carry_over: bool = added(True)  # with a mask source: keep revealed tokens

    @property
    def length(self) -> int:
        return self.model.recipe.length

    @property
    def outputs(self) -> tuple[str, ...]:
        return (SAMPLES,)

    @property
    def summary(self) -> str:
        changes = (", dropout on" if self.dropout else "") + (
            "" if self.carry_over else ", no carry-over"
        )
        return f"{self.model.summary}; {self.choice.solver}, {self.steps} steps{changes}"

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained = load_model(self.model, store, resources, self.at)
        if not self.carry_over:
            source = RewritableMaskSource(trained.source.vocab_size)
            trained = replace(trained, method=replace(trained.flow, source=source))
        options = self.choice, self.n, self.steps, self.seed
        out, precision = draw_samples(trained, *options, dropout=self.dropout)
        tokens = out.tokens.tolist()
        texts = [trained.tokenizer.decode(row) for row in tokens]
        header = {"tokenizer": trained.tokenizer.kind, "options": asdict(self.choice)}
        write_samples(folder / SAMPLES, SampleFile(texts, tokens, header))
        evaluations = float(out.evaluations.double().mean())
        return {"precision": precision, "evaluations": evaluations}


def draw_samples(
    trained: Pretrained,
    choice: SolverChoice,
    n: int,
    steps: int,
    seed: int = 0,
    *,
    dropout: bool = False,
) -> tuple[Samples, str]:
    """Draw samples; also returns the precision: bfloat16 on a GPU, float32 elsewhere.

    With `dropout` the network stays in training mode, so samples depend on the batch size.
    """
    device = next(trained.model.parameters()).device.type
    half = device == "cuda"
    if dropout:
        torch.manual_seed(seed)
        trained = replace(trained, model=WithDropout(trained.model))
    else:
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
    """Held-out sequences used like samples, for the row "data" of a table."""

    corpus: Corpus
    length: int
    n: int
    part: int = 0  # index of the part of n held-out sequences; parts do not overlap

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
