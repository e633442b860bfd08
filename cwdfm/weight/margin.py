"""Margin weights: coordinates with a large gap between the top two tokens move first."""

from dataclasses import dataclass

from torch import Tensor

from cwdfm.errors import check_scale
from cwdfm.weight.base import PredictionWeight


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
