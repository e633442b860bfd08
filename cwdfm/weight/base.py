"""Context weights alpha: the relative rates of masked coordinates.

A weight assigns a log-weight to each coordinate, and

    alpha^i = exp(log-weight^i) / mean over masked j of exp(log-weight^j)

averages to exactly 1 over the masked coordinates. This is the first condition of Theorem 1: it
preserves the total rate, and with it the distribution of the number of revealed coordinates. The
second condition, that alpha depends on the reveal mask only and is equivariant under circular
shifts, also preserves the marginal of every coordinate. Weights that satisfy it are `equivariant`.

Shapes: B batch, N length, V data tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from operator import is_

import torch
from torch import Tensor

from cwdfm.errors import (
    InputError,
    check_finite,
    check_instance,
    describe,
    has_values,
    is_builtin,
    require,
)
from cwdfm.ops.host_copy import check_rows
from cwdfm.source import Source


class Weight(ABC):
    """A context weight.

    The log-weight is the sum of a score of the reveal mask (`context_score`) and a score of the
    model's prediction (`prediction_score`).
    """

    @property
    @abstractmethod
    def needs_logits(self) -> bool:
        """Whether alpha depends on the model's prediction, which makes sampling more expensive."""

    @property
    @abstractmethod
    def equivariant(self) -> bool:
        """Whether the second condition of Theorem 1 holds: P(revealed^i) = kappa_t for all i."""

    @abstractmethod
    def context_score(self, revealed_BN: Tensor) -> Tensor:
        """The part of the log-weight that depends on the reveal mask, float64 [B, N]."""

    @abstractmethod
    def prediction_score(self, logits: Tensor) -> Tensor:
        """The part of the log-weight [...] that depends on the data tokens' logits [..., V]."""

    @property
    def needs_only_summary(self) -> bool:
        """Whether `summary_score` replaces `prediction_score`, so that no logits are stored."""
        return not self.needs_logits

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        """`prediction_score` [...] from the prediction's entropy in nats and largest probability.

        Called only if `needs_logits` and `needs_only_summary` are true.
        """
        raise TypeError(f"{self} requires the logits themselves")

    def __call__(
        self, revealed_BN: Tensor, logits: Tensor | None = None, *, source: Source | None = None
    ) -> Tensor:
        """alpha [B, N], float64: mean 1 over the masked coordinates, 0 on revealed ones.

        `logits` [B, N, V] are required if `needs_logits`, and must cover data tokens only: for a
        mask source pass `source.data_logits(logits)`, or pass `source`, so that the mask's logit is
        removed. A row without masked coordinates is all zeros.
        """
        is_mask = has_values(revealed_BN) and revealed_BN.dtype == torch.bool
        if not is_mask or revealed_BN.dim() != 2:
            raise InputError(
                f"revealed must be a bool tensor of shape [batch, length], "
                f"got {describe(revealed_BN)}"
            )
        if not self.needs_logits:
            return self.alpha(revealed_BN)
        if logits is None:
            raise InputError(
                f"{self} needs the model's logits, got None; pass logits=, or use a weight of the "
                f"reveal mask only (Neighbor, Distance)"
            )
        floating = has_values(logits) and logits.is_floating_point()
        if not floating or logits.shape[:-1] != revealed_BN.shape or logits.shape[-1] == 0:
            raise InputError(
                f"logits must be floating point, [*{tuple(revealed_BN.shape)}, vocabulary], "
                f"got {describe(logits)}"
            )
        if source is not None:
            check_instance("source", source, Source, "MaskSource(vocab_size=30)")
            logits = source.data_logits(logits)
        check_finite(logits)
        return self.alpha(revealed_BN, checked_prediction_score(self, logits))

    def alpha(
        self,
        revealed_BN: Tensor,
        prediction_score_BN: Tensor | float = 0.0,
        prompted_B: Tensor | None = None,
    ) -> Tensor:
        """alpha [B, N] from the reveal mask and the prediction scores."""
        log_weight_BN = self.log_weight(revealed_BN, prediction_score_BN, prompted_B)
        return normalize(log_weight_BN, ~revealed_BN).masked_fill(revealed_BN, 0.0)

    def log_weight(
        self,
        revealed_BN: Tensor,
        prediction_score_BN: Tensor | float = 0.0,
        prompted_B: Tensor | None = None,
    ) -> Tensor:
        """The log-weight [B, N], float64. Scores of classes outside this package are validated.

        `prompted_B` [B] marks sequences with a prompt, which use the weight `with_prompt()`.
        """
        shape = revealed_BN.shape
        score_BN = checked_score(self, "context_score", revealed_BN, shape)
        if prompted_B is not None and (variant := self.with_prompt()) is not self:
            variant_BN = checked_score(variant, "context_score", revealed_BN, shape)
            score_BN = torch.where(prompted_B[:, None], variant_BN, score_BN)
        log_weight_BN = score_BN + prediction_score_BN
        if not is_builtin(*terms(self)):
            top_B = log_weight_BN.masked_fill(revealed_BN, -torch.inf).amax(1)
            defined_B = revealed_BN.all(1) | (top_B > -torch.inf)
            check_rows(~(defined_B & (log_weight_BN < torch.inf).all(1)), self._not_finite)
        return log_weight_BN

    def with_prompt(self) -> "Weight":
        """The weight to use for sequences with a prompt; by default this one."""
        return self

    def _not_finite(self, bad: int, rows: int) -> InputError:
        return InputError(
            f"the log-weights of {self} are NaN or +inf, or -inf at all masked coordinates, in "
            f"{bad} of {rows} sequences; return finite scores (single entries of -inf are allowed: "
            f"weight zero)"
        )

    def __add__(self, other: "Weight") -> "Sum":
        """Add the log-weights, which multiplies the weights."""
        check_instance("the other term", other, Weight, "Entropy(1.0)")
        return Sum((self, other))


def check_weight(weight: Weight | None) -> None:
    """Raise an InputError unless `weight` is a context weight or None."""
    valid = weight is None or isinstance(weight, Weight)
    require(valid, "weight", "be a context weight or None", weight)


def checked_score(weight: Weight, name: str, x: Tensor, shape: torch.Size) -> Tensor:
    """Call the method `name` of a weight on x; raise InputError unless its score has this shape.

    The score is converted to float64.
    """
    score = getattr(weight, name)(x)
    if not isinstance(score, Tensor) or score.shape != shape or score.is_complex():
        raise InputError(
            f"{name} of {weight} must return a tensor of shape {tuple(shape)}, one score per "
            f"coordinate, got {describe(score)}"
        )
    return score.double()


def checked_prediction_score(weight: Weight, logits: Tensor) -> Tensor:
    """The prediction scores [...] of logits [..., V], float64."""
    return checked_score(weight, "prediction_score", logits, logits.shape[:-1])


def normalize(log_weight_BN: Tensor, over_BN: Tensor) -> Tensor:
    """exp(log_weight), scaled to mean 1 over the mask `over_BN`; rows with an empty mask are 0."""
    size_B1 = over_BN.sum(1, keepdim=True).double()
    log_sum_B1 = log_weight_BN.masked_fill(~over_BN, -torch.inf).logsumexp(1, keepdim=True)
    alpha_BN = (log_weight_BN - log_sum_B1 + size_B1.log()).exp()
    return torch.where(size_B1 > 0, alpha_BN, 0.0)


class ContextWeight(Weight):
    """A weight that depends on the reveal mask only, so that the model need not be called first."""

    needs_logits = False

    def prediction_score(self, logits: Tensor) -> Tensor:
        return torch.zeros(logits.shape[:-1], dtype=torch.float64, device=logits.device)


class PredictionWeight(Weight):
    """A weight that depends on the model's prediction only."""

    needs_logits = True
    equivariant = False  # the model may favor positions or tokens, which changes the marginals

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        return torch.zeros(revealed_BN.shape, dtype=torch.float64, device=revealed_BN.device)


@dataclass(frozen=True)
class Sum(Weight):
    """The sum of several log-weights, written as `Neighbor(...) + Entropy(...)`."""

    terms: tuple[Weight, ...]

    def __post_init__(self) -> None:
        valid = isinstance(self.terms, tuple) and all(isinstance(t, Weight) for t in self.terms)
        if not valid or not self.terms:
            raise InputError(f"terms must be a tuple of weights, got {self.terms!r}")

    @property
    def needs_logits(self) -> bool:
        return any(term.needs_logits for term in self.terms)

    @property
    def equivariant(self) -> bool:
        return all(term.equivariant for term in self.terms)

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        shape = revealed_BN.shape
        scores = [checked_score(term, "context_score", revealed_BN, shape) for term in self.terms]
        return torch.stack(scores).sum(0)

    def prediction_score(self, logits: Tensor) -> Tensor:
        return torch.stack([checked_prediction_score(term, logits) for term in self.terms]).sum(0)

    def with_prompt(self) -> "Sum":
        terms = tuple(term.with_prompt() for term in self.terms)
        return self if all(map(is_, terms, self.terms)) else Sum(terms)

    @property
    def needs_only_summary(self) -> bool:
        return all(term.needs_only_summary for term in self.terms)

    def summary_score(self, entropy: Tensor, confidence: Tensor) -> Tensor:
        terms = [term for term in self.terms if term.needs_logits]
        return torch.stack([term.summary_score(entropy, confidence) for term in terms]).sum(0)


def terms(weight: Weight | None) -> Iterator[Weight]:
    """The terms of a weight, with nested sums such as a + b + c flattened; none for None."""
    if isinstance(weight, Sum):
        for term in weight.terms:
            yield from terms(term)
    elif weight is not None:
        yield weight
