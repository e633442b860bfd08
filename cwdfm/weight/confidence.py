"""Confidence and margin weights: coordinates with a clear best token move first."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.errors import check_scale
from cwdfm.weight.base import PredictionWeight


@dataclass(frozen=True)
class Confidence(PredictionWeight):
    """alpha^i ~ exp(scale * max_v p^i(v)), the "purity" of Campbell et al. 2024."""

    needs_only_summary = True

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)

    def prediction_score(self, logits: Tensor) -> Tensor:
        logits = logits.double()
        return self.scale * (logits.amax(dim=-1) - logits.logsumexp(dim=-1)).exp()

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        return self.scale * confidence


@dataclass(frozen=True)
class Margin(PredictionWeight):
    """alpha^i ~ exp(scale * (p^i(best) - p^i(second best))), as in Kim et al. 2025."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)

    def prediction_score(self, logits: Tensor) -> Tensor:
        logits = logits.double()
        top = (logits.topk(2, dim=-1).values - logits.logsumexp(dim=-1, keepdim=True)).exp()
        return self.scale * (top[..., 0] - top[..., 1])
