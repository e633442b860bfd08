"""Guidance changes what a model predicts, so that samples have a property y.

A guided model predicts p_{1|t}(. | x_t, y) in place of p_{1|t}(. | x_t). All solvers and all
postprocessing work with such predictions, so guidance combines with each of them.

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
    """What makes a guided model out of a model. Subclasses are frozen dataclasses."""

    @abstractmethod
    def guide(self, model: Model, source: Source, schedule: Schedule) -> Model:
        """The guided model of a flow with this source and schedule."""


class GuidedModel(nn.Module, ABC):
    """A model that predicts only the coordinates that are asked for."""

    network_calls = 1  # evaluations of the network per evaluation of this model

    def __init__(self, model: Model, source: Source) -> None:
        super().__init__()
        self.model, self.source = model, source

    @abstractmethod
    def logits_at(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Iterator[Tensor]:
        """Logits [k, V] of the data tokens at `rows`, in order, in chunks."""

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Logits [B, N, num_tokens] of all coordinates; the mask's is -inf."""
        rows = Positions.of(torch.ones_like(x_t, dtype=torch.bool))
        logits_BNV = torch.cat(list(self.logits_at(x_t, t, rows))).unflatten(0, x_t.shape)
        return F.pad(logits_BNV, (0, self.source.num_tokens - self.source.vocab_size), value=-inf)


def check_guidance(guidance: object) -> tuple[Guidance, ...]:
    """The guidances to apply, in order, from one or several."""
    several = tuple(guidance) if isinstance(guidance, list | tuple) else (guidance,)
    if not all(isinstance(each, Guidance) for each in several):
        raise InputError(
            f"guidance must be ClassifierFreeGuidance, PredictorGuidance or a list of them, got "
            f"{describe(guidance)}"
        )
    return several


def check_strength(strength: float) -> None:
    """Raise InputError unless a strength is a finite number >= 0."""
    if not is_number(strength) or not isfinite(strength) or strength < 0:
        raise InputError(
            f"strength must be a finite number >= 0, got {strength!r}; 1 samples "
            f"from the conditional distribution, and larger values sharpen it",
            fields=("strength",),
        )


def guide(
    model: Model, guidance: Sequence[Guidance], source: Source, schedule: Schedule
) -> tuple[Model, int]:
    """The model with all guidances, and the evaluations of the network that one of it costs."""
    calls = 1
    for each in guidance:
        model = each.guide(model, source, schedule)
        calls *= getattr(model, "network_calls", 1)
    return model, calls
