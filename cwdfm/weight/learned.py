"""Weights calibrated on the model's errors: a learned confidence, and calibrated entropies.

Entropy and confidence measure what the model believes, so an over- or underconfident network ranks
its coordinates wrongly. `fit_confidence` noises data, lets the model predict it, and fits a
logistic regression of "a draw from the prediction is correct" on the features

    1, entropy, log max p, margin

of the predictions at masked coordinates. `fit_temperature` fits a temperature by maximum
likelihood. Both evaluate the model once per time and take seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError, check_scale, is_number
from cwdfm.weight.base import PredictionWeight
from cwdfm.weight.entropy import prediction_entropy


@dataclass(frozen=True)
class Learned(PredictionWeight):
    """alpha^i ~ q(p^i)^scale, where q is the fitted probability that a draw from p^i is correct.

    `coefficients` are those of the features (1, entropy, log max p, margin); see `fit_confidence`.
    """

    coefficients: tuple[float, float, float, float]
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)
        valid = isinstance(self.coefficients, tuple) and len(self.coefficients) == 4
        if not valid or not all(isinstance(c, int | float) for c in self.coefficients):
            raise InputError(
                f"coefficients must be a tuple of four numbers, got {self.coefficients!r}; use "
                f"fit_confidence"
            )

    def prediction_score(self, logits: Tensor) -> Tensor:
        weight_4 = torch.tensor(self.coefficients, dtype=torch.float64, device=logits.device)
        return self.scale * F.logsigmoid(features(logits) @ weight_4)


@dataclass(frozen=True)
class CalibratedEntropy(PredictionWeight):
    """alpha^i ~ exp(-beta * H(softmax(logits^i / temperature))); see `fit_temperature`."""

    temperature: float
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_scale("beta", self.beta)
        if not is_number(self.temperature) or not 0 < self.temperature < inf:
            raise InputError(
                f"temperature must be a finite number > 0, got {self.temperature!r}; use "
                f"fit_temperature",
                fields=("temperature",),
            )

    def prediction_score(self, logits: Tensor) -> Tensor:
        return -self.beta * prediction_entropy(logits.double() / self.temperature)


def features(logits: Tensor) -> Tensor:
    """The features (1, entropy, log max p, margin) of predictions [..., V], float64 [..., 4]."""
    log_p = logits.double().log_softmax(-1)
    top = log_p.topk(2, dim=-1).values
    entropy, margin = prediction_entropy(logits.double()), top[..., 0].exp() - top[..., 1].exp()
    return torch.stack([torch.ones_like(entropy), entropy, top[..., 0], margin], dim=-1)


def fit_logistic(features_KF: Tensor, target_K: Tensor, steps: int = 30) -> Tensor:
    """Fit a logistic regression with a small ridge penalty by Newton's method.

    The targets [K] lie in [0, 1]. Returns the coefficients [F].
    """
    ridge = 1e-3 * torch.eye(features_KF.shape[1], dtype=torch.float64, device=target_K.device)
    weight_F = torch.zeros(len(ridge), dtype=torch.float64, device=target_K.device)
    for _ in range(steps):
        q_K = torch.sigmoid(features_KF @ weight_F)
        gradient_F = features_KF.T @ (q_K - target_K) + ridge @ weight_F
        curvature_FF = (features_KF * (q_K * (1 - q_K))[:, None]).T @ features_KF + ridge
        weight_F = weight_F - torch.linalg.solve(curvature_FF, gradient_F)
    return weight_F


def calibrating_temperature(
    logits: Sequence[Tensor], targets: Sequence[Tensor], steps: int = 30
) -> float:
    """The temperature that maximizes the likelihood of targets [k] under logits [k, V].

    The negative log-likelihood is convex in b = 1 / temperature, with derivatives
    E p_b[l] - l(target) and Var p_b[l]. Newton's method changes b by at most a factor of two.
    """
    b = 1.0
    for _ in range(steps):
        slope = curvature = 0.0
        for logits_kV, target_k in zip(logits, targets, strict=True):
            l_kV = logits_kV.double()
            p_kV = (b * l_kV).softmax(-1)
            l_kV = l_kV.masked_fill(p_kV == 0, 0.0)  # avoids 0 * -inf = NaN
            mean_k = (p_kV * l_kV).sum(-1)
            slope += float((mean_k - l_kV.gather(1, target_k[:, None])[:, 0]).sum())
            curvature += float((p_kV * (l_kV - mean_k[:, None]).square()).sum())
        step = -slope / max(curvature, 1e-12)
        b *= min(2.0, max(0.5, 1 + step / b))
    return 1 / b
