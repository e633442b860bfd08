"""Rejection sampling: redraw entire sequences until the model finds them plausible.

    plausibility = exp( mean over the free positions i of log p^i ),  p^i as in `token_scores.py`;
    a sequence is accepted if its plausibility >= threshold.

With enough tries the result has the sampler's distribution conditioned on acceptance. With a mask
source acceptance is random, because the groups of `token_scores.py` are. If all tries are rejected,
the most plausible one is returned. Unlike resampling, which changes single tokens, rejection also
helps if no change of a single token would correct a sequence. Both need only the model itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer
from cwdfm.model.predict import check_flow_network, check_split, evaluating
from cwdfm.model.protocol import Model
from cwdfm.ops.random import derive_seed
from cwdfm.postprocess.base import SampleOptions, check_noise_fraction, check_samples
from cwdfm.postprocess.token_scores import TokenScorer
from cwdfm.schedule import Schedule
from cwdfm.solver.sample import Samples, batches
from cwdfm.source import Source

# Default noise_fraction, by `source.marks_noise`.
DEFAULTS = {False: 0.04, True: 0.125}
_STEP = 2**32 - 1  # larger than any round of resampling, whose groups therefore differ

# Samples the sequences at the batch indices [A] (None for all) with this seed, and computes their
# plausibility.
Attempt = Callable[[Tensor | None, int], Samples]


@dataclass(frozen=True)
class Reject:
    """Reject samples with a plausibility below a threshold, and draw them again.

    - `threshold`: lowest accepted plausibility. 0 accepts all samples and reports plausibilities.
    - `max_tries`: maximum number of tries per sample. If all are rejected, the most plausible one
      is returned.
    - `noise_fraction`: fraction of noise that the model is conditioned on (see `token_scores.py`).
      The default is 0.04 with a uniform source, 0.125 with a mask source.
    """

    threshold: float
    max_tries: int = 8
    noise_fraction: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int | float) or not 0 <= self.threshold <= 1:
            raise InputError(
                f"threshold must be a plausibility in [0, 1], a geometric mean of token "
                f"probabilities, got {self.threshold!r}; sample with 0 first and choose a quantile "
                f"of the plausibility of the samples",
                fields=("threshold",),
            )
        check_integer("max_tries", self.max_tries)
        if self.noise_fraction is not None:
            check_noise_fraction(self.noise_fraction, 0.04)


def plausibility(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor | Samples,
    *,
    noise_fraction: float | None = None,
    **options: Unpack[SampleOptions],
) -> Tensor:
    """The plausibility [B] of finished sequences [B, N]: the geometric mean of the token scores.

    `fixed` tokens do not count, and a completely fixed sequence has plausibility 1. If `tokens` are
    not `Samples`, which contain their prompt mask, mark the prompt tokens as fixed, including a
    first token that the model never draws. See `cwdfm.sample` for the options.
    """
    return score_sequences(model, source, schedule, tokens, noise_fraction, **options)[0]


@torch.no_grad()
def score_sequences(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor | Samples,
    noise_fraction: float | None,
    **options: Unpack[SampleOptions],
) -> tuple[Tensor, Tensor, int]:
    """The plausibility [B], the model evaluations [B] and the number of logit evaluations."""
    check_flow_network(model)
    if noise_fraction is not None:
        check_noise_fraction(noise_fraction, 0.04)
    tokens, fixed_BN, index_B = check_samples(model, source, schedule, tokens, options)
    noise_fraction = noise_fraction or DEFAULTS[source.marks_noise]
    network, seed = (model, source, schedule, tokens.shape[1]), options.get("seed", 0)
    scorer = TokenScorer(*network, noise_fraction, seed)
    plausibilities, evaluations, logit_evaluations = [], [], 0
    batch_indices = batches(len(tokens), options.get("batch_size"), tokens.device)
    with evaluating(model):
        check_split(model, tokens[:1], scorer.t)
        for batch in batch_indices:
            free_AN = ~fixed_BN[batch]
            scores = scorer.score(tokens[batch], free_AN, index_B[batch], _STEP)
            free_A = free_AN.sum(1).clamp(min=1)
            plausibilities.append((scores.probability.log().sum(1) / free_A).exp())
            evaluations.append(scores.evaluations)
            logit_evaluations += scores.logit_evaluations
    return torch.cat(plausibilities), torch.cat(evaluations), logit_evaluations


def rejection_sample(
    attempt: Attempt, reject: Reject, seed: int, skip: Callable[[int], object]
) -> Samples:
    """Return the first accepted try of each sequence, or else its most plausible one.

    The statistics include all tries. `skip(k)` is called when k of the allowed tries turn out not
    to be needed.
    """
    best = attempt(None, seed)
    pending_A = torch.arange(len(best.tokens), device=best.tokens.device)
    for number in range(1, reject.max_tries + 1):
        assert best.plausibility is not None
        rejected_A = pending_A[best.plausibility[pending_A] < reject.threshold]
        skip((len(pending_A) - len(rejected_A)) * (reject.max_tries - number))
        pending_A = rejected_A
        if len(pending_A) == 0 or number == reject.max_tries:
            break
        new = attempt(pending_A, derive_seed(seed, -number))
        assert new.plausibility is not None
        better_A = new.plausibility > best.plausibility[pending_A]
        best = best.replaced(pending_A, new, better_A)
    return best
