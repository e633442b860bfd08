"""Scaled cross-entropy: cross-entropy weighted by local context."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_choice
from cwdfm.loss.base import WeightedCrossEntropy, coordinates_needed
from cwdfm.loss.prediction import Prediction
from cwdfm.path.base import PathSample
from cwdfm.schedule import Schedule
from cwdfm.weight.base import Weight, checked_prediction_score, normalize

MAX_ALPHA = 1e30  # a loss of such terms overflows in float32
RevealedWeight = Literal["one", "zero", "extended", "joint", "raw", "level"]


@dataclass(frozen=True)
class ScaledCrossEntropy(WeightedCrossEntropy):
    """L = -E sum_i alpha^i(x_t) log p^i(x_1^i | x_t).

    The paper does not define alpha on revealed coordinates, nor its normalization in a loss;
    `revealed` selects a definition. With the following options alpha averages to 1 over the masked
    coordinates, as on a path, and on revealed coordinates it is

    - "one" (default): 1, as in plain cross-entropy.
    - "zero": 0. With a uniform source the model then does not learn to keep correct tokens.
    - "extended": the same formula, normalized over the masked coordinates; 0 if there are none.

    With the other options one formula applies to all coordinates:

    - "joint": exp(score), normalized to mean 1 over the sequence.
    - "raw": exp(score) divided by exp(context score of the fully revealed sequence). With Neighbor
      weights of positive scale, alpha is thus 1 with full context and smaller otherwise, so late
      times have more weight than early ones. With Entropy weights it is exp(-beta H).
    - "level": the mean of "raw" over the sequence. Late times have more weight, but local context
      has no effect: "raw" is the product of "level" and "joint".

    `fixed` coordinates have weight 0 and are excluded from all means. Weights that need logits
    receive the detached logits of the loss.
    """

    weight: Weight
    revealed: RevealedWeight = "one"

    def __post_init__(self) -> None:
        check_choice("revealed", self.revealed, get_args(RevealedWeight))
        if not isinstance(self.weight, Weight):
            raise InputError(f"weight must be a context weight, got {self.weight!r}")

    def needed(self, batch: PathSample) -> Tensor:
        return coordinates_needed("masked" if self.revealed == "zero" else "all", batch)

    def weights(self, prediction: Prediction, batch: PathSample, schedule: Schedule) -> Tensor:
        # A fixed coordinate may have a huge alpha, and 0 * inf would give NaN gradients.
        return self.alpha(prediction, batch).masked_fill(batch.fixed, 0.0)

    def alpha(self, prediction: Prediction, batch: PathSample) -> Tensor:
        """The weight of every coordinate, float64 [B, N]."""
        score_BN: Tensor | float = 0.0
        if self.weight.needs_logits:
            score = checked_prediction_score(self.weight, prediction.logits.detach())
            score_BN = prediction.scatter(score)
        log_weight_BN = self.weight.log_weight(batch.revealed, score_BN)
        masked_BN = ~batch.revealed
        if self.revealed == "joint":
            return normalize(log_weight_BN, ~batch.fixed)
        if self.revealed in ("raw", "level"):
            all_revealed_1N = torch.ones_like(batch.revealed[:1])
            alpha_BN = (log_weight_BN - self.weight.log_weight(all_revealed_1N)).exp()
            alpha_BN = alpha_BN.masked_fill(batch.fixed, 0.0)
            if bool((alpha_BN > MAX_ALPHA).any()):
                raise InputError(
                    f"alpha of {self.weight} exceeds {MAX_ALPHA:g}, because it is not normalized "
                    f"with revealed={self.revealed!r}; use a smaller scale, or revealed='one'"
                )
            if self.revealed == "raw":
                return alpha_BN
            free_B1 = (~batch.fixed).sum(1, keepdim=True).clamp(min=1)
            return (alpha_BN.sum(1, keepdim=True) / free_B1).expand_as(alpha_BN)
        alpha_BN = normalize(log_weight_BN, masked_BN)
        if self.revealed == "extended":
            return alpha_BN
        return torch.where(masked_BN, alpha_BN, 1.0 if self.revealed == "one" else 0.0)
