"""A learned confidence: how likely a draw is right, fitted to the model's own errors.

Entropy and confidence measure what the model believes. A network that is too sure, or not sure
enough, ranks its coordinates wrongly. `fit_confidence` noises data, lets the model predict it, and
fits a logistic regression of "a draw from the prediction is right" on

    1, entropy, log max p, margin

of the predictions at masked coordinates. It takes one evaluation per time, and seconds.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError, check_scale
from cwdfm.weight.base import PredictionWeight
from cwdfm.weight.entropy import prediction_entropy


@dataclass(frozen=True)
class Learned(PredictionWeight):
    """alpha^i ~ q(p^i)^scale, where q is the fitted probability that a draw from p^i is right.

    `coefficients` are those of the features above; see `fit_confidence`.
    """

    coefficients: tuple[float, float, float, float]
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)
        numbers = isinstance(self.coefficients, tuple) and len(self.coefficients) == 4
        if not numbers or not all(isinstance(c, int | float) for c in self.coefficients):
            raise InputError(
                f"coefficients must be a tuple of four numbers, got {self.coefficients!r}; use "
                f"fit_confidence"
            )

    def prediction_score(self, logits: Tensor) -> Tensor:
        weight_4 = torch.tensor(self.coefficients, dtype=torch.float64, device=logits.device)
        return self.scale * F.logsigmoid(features(logits) @ weight_4)


def features(logits: Tensor) -> Tensor:
    """The features of predictions, float64 [..., 4]."""
    log_p = logits.double().log_softmax(-1)
    top = log_p.topk(2, dim=-1).values
    entropy, margin = prediction_entropy(logits.double()), top[..., 0].exp() - top[..., 1].exp()
    return torch.stack([torch.ones_like(entropy), entropy, top[..., 0], margin], dim=-1)


def fit_logistic(features_KF: Tensor, right_K: Tensor, steps: int = 30) -> Tensor:
    """The coefficients [F] of a logistic regression with a small ridge, by Newton's method.

    `right_K` [K] are targets in [0, 1].
    """
    ridge = 1e-3 * torch.eye(features_KF.shape[1], dtype=torch.float64, device=right_K.device)
    weight_F = torch.zeros(len(ridge), dtype=torch.float64, device=right_K.device)
    for _ in range(steps):
        q_K = torch.sigmoid(features_KF @ weight_F)
        gradient_F = features_KF.T @ (q_K - right_K) + ridge @ weight_F
        curvature_FF = (features_KF * (q_K * (1 - q_K))[:, None]).T @ features_KF + ridge
        weight_F = weight_F - torch.linalg.solve(curvature_FF, gradient_F)
    return weight_F
