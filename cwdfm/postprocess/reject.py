"""Accepting finished sequences: those that the network finds implausible are drawn again, whole.

    plausibility = exp( mean over the free i of log chance^i ),   the chances as in `reading.py`;
    accepted:  plausibility >= least.

This is rejection sampling: with tries enough the law is the sampler's own, given that the sequence
is accepted. With a mask source that is a matter of chance for a sequence, since its groups are. A
sequence that no try makes plausible enough is the most plausible of them. Mending draws single
tokens again and stays near; this takes samples as they come, and is the stronger where a sequence
is wrong in ways that no single token sets right. Both ask the network alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer
from cwdfm.model.predict import check_flow_network, check_split, evaluating
from cwdfm.model.protocol import Model
from cwdfm.ops.random import derive_seed
from cwdfm.postprocess.base import check_share, finished
from cwdfm.postprocess.token_scores import Reader
from cwdfm.schedule import Schedule
from cwdfm.solver.sample import Samples, batches
from cwdfm.source import Source

# The share of the tokens that is noise to the network, by whether the source marks noise.
USUAL = {False: 0.04, True: 0.125}
_ROUND = 2**32 - 1  # a number that no round of mending has: other groups

# Draws the sequences with places [A] among all, None for all of them, by a seed; the samples tell
# their plausibility.
Attempt = Callable[[Tensor | None, int], Samples]


@dataclass(frozen=True)
class Accept:
    """Which samples to accept.

    - `least`: their plausibility; 0 accepts all, and tells it.
    - `tries`: of a sample, at most; then it is the most plausible of them.
    - `share`: of the tokens that is noise to the network; None is 0.04 with a uniform source, 0.125
      with a mask source.
    """

    least: float
    tries: int = 8
    share: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.least, int | float) or not 0 <= self.least <= 1:
            raise InputError(
                f"least must lie in [0, 1], the least plausibility of a sequence that is accepted "
                f"(a geometric mean of chances), got {self.least!r}; draw with 0 first, and take a "
                f"quantile of the samples' plausibility"
            )
        check_integer("tries", self.tries)
        if self.share is not None:
            check_share(self.share, "the part of the tokens that is noise to the network", 0.04)


def plausibility(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor,
    *,
    share: float | None = None,
    seed: int = 0,
    fixed: Tensor | None = None,
    index: Tensor | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """How plausible finished sequences [B, N] are, [B] float64: the geometric mean of the chances.

    Tokens that were given (`fixed`) do not count, and what is all given has 1: say so of them, of a
    first token that the model never draws too. For the rest see `mend`.
    """
    return read_whole(
        model,
        source,
        schedule,
        tokens,
        share=share,
        seed=seed,
        fixed=fixed,
        index=index,
        batch_size=batch_size,
    )[0]


@torch.no_grad()
def read_whole(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor,
    *,
    share: float | None,
    seed: int,
    fixed: Tensor | None,
    index: Tensor | None,
    batch_size: int | None,
) -> tuple[Tensor, Tensor, int]:
    """`plausibility`, the evaluations [B] that it took, and the rows of logits."""
    check_flow_network(model)
    if share is not None:
        check_share(share, "the part of the tokens that is noise to the network", 0.04)
    tokens, fixed_BN, index_B = finished(model, source, schedule, tokens, fixed, index, seed)
    places = batches(len(tokens), batch_size, tokens.device)
    share = share or USUAL[source.marks_noise]
    reader = Reader(model, source, schedule, tokens.shape[1], share=share, seed=seed)
    parts = []
    rows = 0
    with evaluating(model):
        check_split(model, tokens[:1], reader.t)
        for some in places:
            free_AN = ~fixed_BN[some]
            read = reader.read(tokens[some], free_AN, index_B[some], _ROUND, draw=False)
            free_A = free_AN.sum(1).clamp(min=1)
            parts.append(((read.chance.log().sum(1) / free_A).exp(), read.evaluations))
            rows += read.rows
    found, evaluations = zip(*parts, strict=True)
    return torch.cat(found), torch.cat(evaluations), rows


def insist(attempt: Attempt, how: Accept, seed: int, spared: Callable[[int], object]) -> Samples:
    """Sequences that are accepted, each the first of its tries that is.

    What they took is counted over all tries. `spared(k)` hears of k tries that are not needed.
    """
    best = attempt(None, seed)
    open_A = torch.arange(len(best.tokens), device=best.tokens.device)
    for number in range(1, how.tries + 1):
        assert best.plausibility is not None
        left_A = open_A[best.plausibility[open_A] < how.least]
        spared((len(open_A) - len(left_A)) * (how.tries - number))
        open_A = left_A
        if len(open_A) == 0 or number == how.tries:
            break
        found = attempt(open_A, derive_seed(seed, -number))
        best = _better(best, found, open_A)
    return best


def _better(best: Samples, found: Samples, place_A: Tensor) -> Samples:
    """With those that were found for places [A], where they are the more plausible."""
    assert best.plausibility is not None
    assert found.plausibility is not None
    more_A = found.plausibility > best.plausibility[place_A]
    where_A = place_A[more_A]

    def chosen(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, where_A, new[more_A])

    return Samples(
        tokens=chosen(best.tokens, found.tokens),
        updates=chosen(best.updates, found.updates),
        loops=chosen(best.loops, found.loops),
        evaluations=best.evaluations.index_add(0, place_A, found.evaluations),
        rows=best.rows + found.rows,
        plausibility=chosen(best.plausibility, found.plausibility),
    )
