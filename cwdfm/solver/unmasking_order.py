"""What the samplers share that choose an order: they unmask a few coordinates a step, for good.

With a mask source and the true posterior every order of single reveals gives the target's law, so
which coordinates come next may hang on anything known before their tokens are drawn: on the
model's prediction, but not on the tokens it proposes.
"""

from typing import Literal

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.model.positions import Positions
from cwdfm.ops.random import Purpose, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Info, Solver, State, moved
from cwdfm.source import Source
from cwdfm.weight import Confidence, Entropy, Margin, PredictionWeight

Score = Literal["confidence", "margin", "entropy"]

# How sure a prediction is, more being surer: max p, p(best) - p(second best), -H(p).
SCORES: dict[Score, PredictionWeight] = {
    "confidence": Confidence(),
    "margin": Margin(),
    "entropy": Entropy(),
}


def masked_coordinates(solver: Solver, source: Source, state: State) -> Tensor:
    """Which coordinates are still to be unmasked, [B, N]; a source without a mask is refused."""
    if not source.marks_noise:
        raise InputError(
            f"{type(solver).__name__} unmasks tokens, each once, and with {source} a state does "
            f"not tell which are masked; use a MaskSource, or the Euler solver (--solver euler)"
        )
    return source.movable(state.tokens, state.fixed)


def share_times(schedule: Schedule, state: State, masked_BN: Tensor) -> Tensor:
    """The times [B] at which the path reveals, on average, what is revealed of each sequence.

    t = kappa^-1(share), the share being that of the coordinates that are not fixed: what a model
    that is told the time should hear, for samplers that have no time of their own. Where those were
    all masked at a later time than 0, they count for what was left then.
    """
    masked_B, free_B = masked_BN.sum(1).double(), (~state.fixed).sum(1)
    share_B = 1 - state.left * masked_B / free_B.clamp(min=1)
    return schedule.inverse(share_B)


def best_first(state: State, score_BN: Tensor, masked_BN: Tensor) -> Tensor:
    """The coordinates by falling score, int64 [B, N], all masked ones before the others.

    Ties are broken at random, by counted draws.
    """
    u_BN = uniform_BN(state.seed, Purpose.TIE, state.index, state.step, score_BN.shape[1])
    shuffled_BN = u_BN.argsort(dim=1)
    score_BN = score_BN.masked_fill(~masked_BN, -torch.inf).gather(1, shuffled_BN)
    return shuffled_BN.gather(1, score_BN.argsort(dim=1, descending=True, stable=True))


def first_of(order_BN: Tensor, count_B: Tensor) -> Tensor:
    """The first count_B coordinates of each row's order, bool [B, N]."""
    place_N = torch.arange(order_BN.shape[1], device=order_BN.device)
    first_BN = place_N < count_B[:, None]
    return torch.zeros_like(first_BN).scatter(1, order_BN, first_BN)


def unmask(
    source: Source,
    state: State,
    proposal_BN: Tensor,
    chosen_BN: Tensor,
    rows: Positions,
    times: tuple[float, float],
) -> tuple[State, Info]:
    """The step to the proposals at chosen_BN, for which the model was asked at `rows`."""
    tokens_BN = torch.where(chosen_BN, proposal_BN, state.tokens)
    nothing_BN = torch.zeros_like(chosen_BN)
    info = Info(*times, chosen_BN, nothing_BN, len(rows), rows.mask.any(1))
    return moved(source, state, tokens_BN), info
