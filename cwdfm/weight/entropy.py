"""Entropy weights: coordinates whose prediction has low entropy move first."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import check_scale
from cwdfm.ops.precision import sum_dtype
from cwdfm.weight.base import PredictionWeight

MIN_ENTROPY = 1e-6  # in nats; keeps the weight of EntropyInverse finite


@dataclass(frozen=True)
class Entropy(PredictionWeight):
    """alpha^i ~ exp(-beta * H(p^i)), where H is the entropy of the prediction in nats."""

    needs_only_summary = True

    beta: float = 1.0

    def __post_init__(self) -> None:
        check_scale("beta", self.beta)

    def prediction_score(self, logits: Tensor) -> Tensor:
        return -self.beta * prediction_entropy(logits).double()

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        return -self.beta * entropy


@dataclass(frozen=True)
class EntropyInverse(PredictionWeight):
    """alpha^i ~ 1 / max(H(p^i), MIN_ENTROPY), the form in the paper's main text."""

    needs_only_summary = True

    def prediction_score(self, logits: Tensor) -> Tensor:
        return self._score(prediction_entropy(logits))

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        return self._score(entropy)

    def _score(self, entropy: Tensor) -> Tensor:
        return -entropy.double().clamp(min=MIN_ENTROPY).log()


def prediction_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats [...] of softmax(logits [..., V]); tokens at -inf contribute 0."""
    p = logits.to(sum_dtype(logits)).softmax(dim=-1)
    entropy: Tensor = torch.special.entr(p).sum(dim=-1)
    return entropy
