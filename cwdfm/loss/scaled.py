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
from cwdfm.weight.base import Weight, normalize

RevealedWeight = Literal["one", "zero", "extended", "joint", "raw", "level"]


@dataclass(frozen=True)
class ScaledCrossEntropy(WeightedCrossEntropy):
    """L = -E sum_i alpha^i(x_t) log p^i(x_1^i | x_t).

    The paper leaves open what alpha is on revealed coordinates, and whether it is normalised in a
    loss; `revealed` says. In three ways alpha averages to 1 over the masked coordinates, as on a
    path, and on the revealed ones it is

    - "one": 1, as in plain cross-entropy. The default.
    - "zero": 0. With a uniform source the model then never learns to keep a right token.
    - "extended": the same formula, with the masked set's normaliser; 0 where nothing is masked.

    In the others one formula holds for all coordinates, masked or not:

    - "joint": exp(score), normalised to mean 1 over the sequence.
    - "raw": exp(score), over what the reveal mask's part of it is where all is revealed. So with
      Neighbor weights of positive scale alpha is 1 there and less elsewhere, and late times, which
      have much context, weigh more than early ones; with Entropy weights it is exp(-beta H).
    - "level": the mean of "raw" over the sequence. So late times weigh more, and local context
      does not count: "raw" is "level" times "joint", factor by factor.

    Given (`fixed`) coordinates have weight 0 and count in no mean.

    A weight that needs logits gets the loss's own, cut off from the gradient.
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
        # A fixed coordinate's alpha may be huge, and 0 * inf would poison the gradient.
        return self.alpha(prediction, batch).masked_fill(batch.fixed, 0.0)

    def alpha(self, prediction: Prediction, batch: PathSample) -> Tensor:
        """The weight of every coordinate, float64 [B, N]."""
        log_weight_BN = self.weight.context_score(batch.revealed)
        if self.weight.needs_logits:
            score = self.weight.prediction_score(prediction.logits.detach())
            log_weight_BN = log_weight_BN + prediction.spread(score)
        masked_BN = ~batch.revealed
        if self.revealed == "joint":
            return normalize(log_weight_BN, ~batch.fixed)
        if self.revealed in ("raw", "level"):
            whole_1N = torch.ones_like(batch.revealed[:1])
            alpha_BN = (log_weight_BN - self.weight.context_score(whole_1N)).exp()
            if self.revealed == "raw":
                return alpha_BN
            total_B1 = alpha_BN.masked_fill(batch.fixed, 0.0).sum(1, keepdim=True)
            mean_B1 = total_B1 / (~batch.fixed).sum(1, keepdim=True).clamp(min=1)
            return mean_B1.expand_as(alpha_BN)
        alpha_BN = normalize(log_weight_BN, masked_BN)
        if self.revealed == "extended":
            return alpha_BN
        return torch.where(masked_BN, alpha_BN, 1.0 if self.revealed == "one" else 0.0)
