"""Benchmark subjects: models with random weights, training runs on random data, and a peer.

The peer is the path and the solver of flow_matching with the same transformer. That package is CC
BY-NC and not a dependency. It is imported only here, and only if it is installed. It keeps the
logits of all tokens in memory, in the loss and in each solver step.
"""

from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.data import TokenData
from cwdfm.data.dataset import token_dtype
from cwdfm.data.text.tokenizer import CharacterTokenizer
from cwdfm.errors import NotInstalled
from cwdfm.method.base import DataBatch, Objective, TrainingBatch
from cwdfm.model.presets import preset
from cwdfm.model.protocol import Model
from cwdfm.model.transformer import DiT
from cwdfm.schedule import Polynomial
from cwdfm.source import MaskSource, Source
from cwdfm.train.config import TrainConfig
from cwdfm.train.run import Run
from experiments.bench.settings import Settings

PEER = "flow_matching"
POWER = 2.0  # kappa = t^2
SCHEDULE = Polynomial(POWER)
_REVEALED = -100  # the target that F.cross_entropy ignores


def make_model(settings: Settings, source: Source, *, recorded: bool = True) -> DiT:
    """A transformer to sample from, cast, compiled and captured as in `cwdfm sample`."""
    torch.manual_seed(0)
    with settings.device:
        model = DiT(preset(settings.shapes.model, source.num_tokens, dropout=0.0)).eval()
    shake(model)
    model.requires_grad_(False)
    if settings.compiled:
        model.compile_trunk(by_block=not settings.whole)
    if recorded:
        model.capture_trunk()
    return model


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Perturb all weights, because the gates and the head of a new transformer are zero."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.02)


def make_run(settings: Settings, config: TrainConfig, vocab: int, **changes: Any) -> Run:
    """A training run on random tokens."""
    by_block = settings.compiled and not settings.whole
    changes |= {"model": settings.shapes.model, "compile": by_block}
    config = config.updated(**changes)
    run = Run(config, random_data(vocab, config), Path("nowhere"), settings.device)
    shake(run.model)
    if settings.compiled and settings.whole:
        run.model.compile_trunk(by_block=False)
    return run


def random_data(vocab: int, config: TrainConfig) -> TokenData:
    """Random tokens for one optimizer step."""
    shape = (config.optimizer.batch_size, config.data.length)
    rows = np.random.default_rng(0).integers(0, vocab, shape).astype(token_dtype(vocab))
    # Any characters work. There are no surrogates above 65,535.
    characters = "".join(map(chr, range(0x10000, 0x10000 + vocab - 1)))
    return TokenData(
        name="random",
        train=rows,
        valid=rows[:1],  # must not be empty
        tokenizer=CharacterTokenizer(characters),
        report={},
        examples={},
        source={},
    )


def peer_version() -> str | None:
    """The installed version of flow_matching, or None."""
    if find_spec(PEER) is None:
        return None
    try:
        return metadata.version(PEER)
    except metadata.PackageNotFoundError:
        return "unknown"


def peer_path() -> Any:
    """The mixture path of flow_matching with kappa = t^2."""
    paths, schedulers = _load("path"), _load("path.scheduler")
    return paths.MixtureDiscreteProbPath(schedulers.PolynomialConvexScheduler(n=POWER))


@dataclass(frozen=True)
class PeerObjective(Objective):
    """The corruption of flow_matching, with F.cross_entropy of all tokens or of masked tokens.

    Noise comes from PyTorch's global generator, as in its examples. `compiled` compiles head and
    loss together.
    """

    path: Any
    source: Source
    masked_only: bool
    compiled: bool = False

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        if isinstance(self.source, MaskSource):
            x_0 = torch.full_like(batch.x_1, self.source.mask_id)
        else:
            x_0 = torch.randint_like(batch.x_1, self.source.vocab_size)
        x_t = self.path.sample(x_0=x_0, x_1=batch.x_1, t=batch.t).x_t
        target = torch.where(x_t == x_0, batch.x_1, _REVEALED) if self.masked_only else batch.x_1
        loss = torch.compile(_cross_entropy) if self.compiled else _cross_entropy
        return TrainingBatch(x_t, batch.t, partial(loss, target))


def _cross_entropy(target: Tensor, hidden: Tensor, readout: nn.Linear) -> Tensor:
    logits: Tensor = readout(hidden)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=_REVEALED)


def peer_walk(model: Model, source: Source, noise: Tensor, grid: Tensor) -> Tensor:
    """The Euler solver of flow_matching on a grid of times with float64 sampling."""
    solver = _load("solver").MixtureDiscreteEulerSolver(
        lambda x, t: model(x, t).float().softmax(-1), peer_path(), vocabulary_size=source.num_tokens
    )
    tokens: Tensor = solver.sample(
        x_init=noise, step_size=None, time_grid=grid, dtype_categorical=torch.float64
    )
    return tokens


def _load(part: str) -> Any:
    if peer_version() is None:
        raise NotInstalled(f"not installed: {PEER}")
    return import_module(f"{PEER}.{part}")
