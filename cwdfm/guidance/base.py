"""The guidance interface: change a model's predictions so that samples have a property y.

A guided model predicts p_{1|t}(. | x_t, y) instead of p_{1|t}(. | x_t). It is a model like any
other, so guidance works with all solvers and all postprocessing.

Shapes: B batch, N length, k rows, V data tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import inf, isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import InputError, describe, is_number
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.schedule import Schedule
from cwdfm.source import Source


class Guidance(ABC):
    """Turns a model into a guided model. Subclasses are frozen dataclasses."""

    @abstractmethod
    def guide(self, model: Model, source: Source, schedule: Schedule) -> Model:
        """The guided model of a flow with this source and schedule."""


class GuidedModel(nn.Module, ABC):
    """A model that computes logits only at the requested coordinates."""

    network_calls = 1  # evaluations of the network per evaluation of this model

    def __init__(self, model: Model, source: Source) -> None:
        super().__init__()
        self.model, self.source = model, source

    @abstractmethod
    def logits_at(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Iterator[Tensor]:
        """Logits [k, V] of the data tokens at `rows`, in order, in chunks."""

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Logits [B, N, num_tokens] of all coordinates; -inf for the mask."""
        rows = Positions.of(torch.ones_like(x_t, dtype=torch.bool))
        logits_BNV = torch.cat(list(self.logits_at(x_t, t, rows))).unflatten(0, x_t.shape)
        return F.pad(logits_BNV, (0, self.source.num_tokens - self.source.vocab_size), value=-inf)


def check_guidance(guidance: object) -> tuple[Guidance, ...]:
    """Normalize one guidance or a list of them to a tuple, in the order of application."""
    items = tuple(guidance) if isinstance(guidance, list | tuple) else (guidance,)
    if not all(isinstance(item, Guidance) for item in items):
        raise InputError(
            f"guidance must be ClassifierFreeGuidance, PredictorGuidance or a list of them, got "
            f"{describe(guidance)}"
        )
    return items


def check_strength(strength: float) -> None:
    """Raise an InputError unless the strength is a finite number >= 0."""
    if not is_number(strength) or not isfinite(strength) or strength < 0:
        raise InputError(
            f"strength must be a finite number >= 0, got {strength!r}; 1 samples "
            f"from the conditional distribution, and larger values sharpen it",
            fields=("strength",),
        )


def guide(
    model: Model, guidance: Sequence[Guidance], source: Source, schedule: Schedule
) -> tuple[Model, int]:
    """Apply all guidance to a model.

    Returns the guided model and the number of network evaluations per evaluation of it.
    """
    calls = 1
    for item in guidance:
        model = item.guide(model, source, schedule)
        calls *= getattr(model, "network_calls", 1)
    return model, calls
