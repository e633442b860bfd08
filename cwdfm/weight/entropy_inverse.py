"""EntropyInverse: Entropy as the paper's main text prints it, in inverse proportion."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.weight.base import PredictionWeight
from cwdfm.weight.entropy import prediction_entropy

LEAST = 1e-6  # nats; what is surer counts as this sure, so that the weight has a bound


@dataclass(frozen=True)
class EntropyInverse(PredictionWeight):
    """alpha^i ~ 1 / H(p^i), H the entropy of the prediction."""

    def prediction_score(self, logits: Tensor) -> Tensor:
        return self._score(prediction_entropy(logits))

    @property
    def needs_summary_alone(self) -> bool:
        return True

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        return self._score(entropy)

    def _score(self, entropy: Tensor) -> Tensor:
        return -entropy.double().clamp(min=LEAST).log()
