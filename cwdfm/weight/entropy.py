"""Entropy: coordinates whose prediction is certain move first."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import check_scale
from cwdfm.ops import sum_dtype
from cwdfm.weight.base import PredictionWeight


@dataclass(frozen=True)
class Entropy(PredictionWeight):
    """alpha^i ~ exp(-beta * H(p^i)), H the entropy of the prediction in nats."""

    beta: float = 1.0

    def __post_init__(self) -> None:
        check_scale("beta", self.beta)

    def prediction_score(self, logits: Tensor) -> Tensor:
        return -self.beta * prediction_entropy(logits).double()

    @property
    def needs_summary_alone(self) -> bool:
        return True

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        return -self.beta * entropy


def prediction_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats [...] of softmax(logits [..., V]); tokens at -inf count nothing."""
    p = logits.to(sum_dtype(logits)).softmax(dim=-1)
    entropy: Tensor = torch.special.entr(p).sum(dim=-1)
    return entropy
