"""Context weights alpha: how much faster or slower each masked coordinate moves.

A weight gives a raw score per coordinate, times a scale: the log-weight. Then

    alpha^i = exp(log-weight^i) / mean over the masked set of exp(log-weight)

so that alpha averages to exactly 1 over the masked coordinates. That is the first condition of
Theorem 1: it keeps the total rate, and with it the law of how many coordinates are revealed. The
second condition, equivariance under circular shifts and dependence on the reveal mask alone,
keeps the marginal of every single coordinate too; a weight says so in `equivariant`.

Shapes: B batch, N length, V data tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_finite, describe
from cwdfm.source import Source


class Weight(ABC):
    """A context weight. Evidence is of two kinds, and the log-weight is the sum of both:
    the reveal mask (`context_score`) and the model's prediction (`prediction_score`).
    """

    @property
    @abstractmethod
    def needs_logits(self) -> bool:
        """Whether alpha is known only once the model was asked: the sampler's cost hangs on it."""

    @property
    @abstractmethod
    def equivariant(self) -> bool:
        """Whether Theorem 1's second condition holds, so that P(revealed^i) = kappa_t for all i."""

    @abstractmethod
    def context_score(self, revealed_BN: Tensor) -> Tensor:
        """The part of the log-weight [B, N] that the reveal mask determines, float64."""

    @abstractmethod
    def prediction_score(self, logits: Tensor) -> Tensor:
        """The part of the log-weight [...] that logits [..., V] of data tokens determine."""

    @property
    def needs_only_summary(self) -> bool:
        """Whether `summary_score` can stand in for `prediction_score`: no logits need be kept."""
        return not self.needs_logits

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        """`prediction_score` [...] from the prediction's entropy in nats and largest probability.

        Only asked of weights with `needs_logits` and `needs_only_summary`.
        """
        raise TypeError(f"{self} needs the logits themselves")

    def __call__(
        self, revealed_BN: Tensor, logits: Tensor | None = None, *, source: Source | None = None
    ) -> Tensor:
        """alpha [B, N], float64: mean 1 over the masked set, 0 on revealed coordinates.

        `logits` [B, N, V] are needed only where `needs_logits`, and must cover data tokens alone:
        for a mask source pass `source.data_logits(logits)`, or name the source, so that the mask
        id's logit is left out. Where nothing is masked the row is all zeros.
        """
        is_mask = isinstance(revealed_BN, Tensor) and revealed_BN.dtype == torch.bool
        if not is_mask or revealed_BN.dim() != 2:
            raise InputError(
                f"revealed must be a bool tensor of shape [batch, length], "
                f"got {describe(revealed_BN)}"
            )
        if not self.needs_logits:
            return self.alpha(revealed_BN)
        if logits is None:
            raise InputError(
                f"{self} needs the model's logits, and there are none here; pass logits=, or use a "
                f"weight of the reveal mask alone (Neighbor, Distance)"
            )
        if logits.shape[:-1] != revealed_BN.shape:
            raise InputError(
                f"logits must have shape [*{tuple(revealed_BN.shape)}, vocabulary], "
                f"got {describe(logits)}"
            )
        if source is not None:
            logits = source.data_logits(logits)
        check_finite(logits)
        return self.alpha(revealed_BN, self.prediction_score(logits))

    def alpha(self, revealed_BN: Tensor, prediction_score_BN: Tensor | float = 0.0) -> Tensor:
        """alpha [B, N] from the reveal mask and the scores that `prediction_score` gave."""
        log_weight_BN = self.context_score(revealed_BN).double() + prediction_score_BN
        return normalize(log_weight_BN, ~revealed_BN).masked_fill(revealed_BN, 0.0)

    def __add__(self, other: "Weight") -> "Sum":
        """The weight whose log-weight is the sum of both."""
        return Sum((self, other))


def normalize(log_weight_BN: Tensor, over_BN: Tensor) -> Tensor:
    """exp(log_weight) scaled in log space to mean 1 over the set `over_BN`; 0 where it is empty."""
    size_B1 = over_BN.sum(1, keepdim=True).double()
    log_sum_B1 = log_weight_BN.masked_fill(~over_BN, -torch.inf).logsumexp(1, keepdim=True)
    alpha_BN = (log_weight_BN - log_sum_B1 + size_B1.log()).exp()
    return torch.where(size_B1 > 0, alpha_BN, 0.0)


class ContextWeight(Weight):
    """A weight of the reveal mask alone: known before the model is asked."""

    @property
    def needs_logits(self) -> bool:
        return False

    def prediction_score(self, logits: Tensor) -> Tensor:
        return torch.zeros(logits.shape[:-1], dtype=torch.float64, device=logits.device)


class PredictionWeight(Weight):
    """A weight of the model's prediction alone."""

    @property
    def needs_logits(self) -> bool:
        return True

    @property
    def equivariant(self) -> bool:
        return False  # the model may prefer positions or values, so the marginals may move

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        return torch.zeros(revealed_BN.shape, dtype=torch.float64, device=revealed_BN.device)


@dataclass(frozen=True)
class Sum(Weight):
    """The sum of several weights' scores; written `Neighbor(...) + Entropy(...)`."""

    terms: tuple[Weight, ...]

    def __post_init__(self) -> None:
        tuple_of_weights = isinstance(self.terms, tuple) and all(
            isinstance(term, Weight) for term in self.terms
        )
        if not tuple_of_weights or not self.terms:
            raise InputError(f"a sum needs a tuple of weights as its terms, got {self.terms!r}")

    @property
    def needs_logits(self) -> bool:
        return any(term.needs_logits for term in self.terms)

    @property
    def equivariant(self) -> bool:
        return all(term.equivariant for term in self.terms)

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        return torch.stack([term.context_score(revealed_BN) for term in self.terms]).sum(0)

    def prediction_score(self, logits: Tensor) -> Tensor:
        return torch.stack([term.prediction_score(logits) for term in self.terms]).sum(0)

    @property
    def needs_only_summary(self) -> bool:
        return all(term.needs_only_summary for term in self.terms)

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        asked = [term for term in self.terms if term.needs_logits]
        return torch.stack([term.summary_score(entropy, confidence) for term in asked]).sum(0)


def terms(weight: Weight | None) -> Iterator[Weight]:
    """The weights that a weight is the sum of, sums within sums (a + b + c) too; of None, none."""
    if isinstance(weight, Sum):
        for term in weight.terms:
            yield from terms(term)
    elif weight is not None:
        yield weight
