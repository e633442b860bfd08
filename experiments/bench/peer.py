"""The peer: flow_matching's path and solver with the same transformer.

The package is CC BY-NC and not a dependency. It is imported only here, if it is installed, for
comparison. It keeps the logits of all tokens in memory, for the loss and for each solver step.
"""

from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import NotInstalled
from cwdfm.method.base import DataBatch, Objective, TrainingBatch
from cwdfm.model.protocol import Model
from cwdfm.source import MaskSource, Source

NAME = "flow_matching"
POWER = 2.0  # kappa = t^2
_REVEALED = -100  # the target that F.cross_entropy ignores


def version() -> str | None:
    """The installed version, or None."""
    if find_spec(NAME) is None:
        return None
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "unknown"


def mixture_path() -> Any:
    """The mixture path with kappa = t^2."""
    paths, schedulers = _load("path"), _load("path.scheduler")
    return paths.MixtureDiscreteProbPath(schedulers.PolynomialConvexScheduler(n=POWER))


@dataclass(frozen=True)
class PeerObjective(Objective):
    """Its corruption, and F.cross_entropy of the logits of all or of masked tokens.

    Noise comes from PyTorch's global generator, as is usual with it. `compiled` compiles head and
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


def walk(model: Model, source: Source, noise: Tensor, grid: Tensor) -> Tensor:
    """Its Euler solver on a grid of times with float64 sampling."""
    solver = _load("solver").MixtureDiscreteEulerSolver(
        lambda x, t: model(x, t).float().softmax(-1),
        mixture_path(),
        vocabulary_size=source.num_tokens,
    )
    tokens: Tensor = solver.sample(
        x_init=noise, step_size=None, time_grid=grid, dtype_categorical=torch.float64
    )
    return tokens


def _load(part: str) -> Any:
    if version() is None:
        raise NotInstalled(f"not installed: {NAME}")
    return import_module(f"{NAME}.{part}")
