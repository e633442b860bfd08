"""Sampling where the reveals are known before the model is asked.

With a mask source, and weights that read no logits, which coordinates are revealed in which step
does not hang on what is revealed there. So that is drawn first, for all steps. Then sequences need
not keep in step: each is taken from reveal to reveal, and a batch of them, every one at a time of
its own, asks the model as often as the busiest of them has steps with a reveal, with nothing to
wait for in between. The samples are those of the steps one after another.

Shapes: B batch, N length, S steps, R rounds, K coordinates of a round, M = B N.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.solver.base import Drawing, State
from cwdfm.solver.proposal import propose
from cwdfm.source import Source

QUARTERS = 4


def batch_unit(batch: int, device: torch.device) -> int:
    """Of what parts of a batch have a multiple of sequences.

    On a GPU a quarter, so that sizes are few: a recording of the trunk is made for each.
    """
    return -(-batch // QUARTERS) if device.type == "cuda" else 1


@dataclass(frozen=True)
class Round:
    """The next reveals of every sequence that has any left."""

    rows: Positions
    step: Tensor  # [B] int64: the step that each sequence is at; where it is done, its last
    t: Tensor  # [B]: the time of that step


@dataclass(frozen=True)
class Plan:
    """All rounds, which the host knows before the first."""

    rounds: list[Round]
    evaluations: Tensor  # [B] int64: the rounds of each sequence

    @classmethod
    def of(cls, reveal_BN: Tensor, times: Sequence[float]) -> "Plan":
        """Each sequence's steps with a reveal, one a round."""
        shape, device = (reveal_BN.shape[0], reveal_BN.shape[1]), reveal_BN.device
        step_BN, rank_BN, count_B = _ranked(reveal_BN.cpu())
        size = int(count_B.max())
        # The coordinates by round; within one in row-major order.
        rank_M = rank_BN.flatten()
        sizes = rank_M[rank_M >= 0].bincount(minlength=size).tolist()
        place_M = rank_M.argsort(stable=True)[int((rank_M < 0).sum()) :].to(device)
        # The sequences with the most rounds first: those that have another are its beginning.
        order_B = count_B.argsort(descending=True, stable=True).to(device)
        active = (count_B[None, :] > torch.arange(size)[:, None]).sum(1)
        # Towards the end they are fewer and fewer.
        unit = batch_unit(shape[0], device)
        sizes_A = [min(shape[0], -(-some // unit) * unit) for some in active.tolist()]
        # The step of each sequence in each round; its last one again where it has no more.
        round_BR = torch.minimum(torch.arange(size)[None, :], (count_B[:, None] - 1).clamp(min=0))
        step_RB = step_BN.gather(1, round_BR).T.contiguous()
        t_RB = torch.tensor(times, dtype=torch.float32)[step_RB].to(device)
        parts = zip(place_M.split(sizes), sizes_A, step_RB.to(device), t_RB, strict=True)
        rounds = [
            Round(
                Positions(shape, place_K, None if some == shape[0] else order_B[:some]), step_B, t_B
            )
            for place_K, some, step_B, t_B in parts
        ]
        return cls(rounds, count_B.to(device))


def visit(
    model: Model,
    source: Source,
    drawing: Drawing,
    state: State,
    plan: Plan,
    say: Callable[[float], object],
) -> Tensor:
    """The finished tokens [B, N]. `say(share)` hears how much of the work is done."""
    tokens_BN = state.tokens
    for number, each in enumerate(plan.rounds, start=1):
        now = replace(state, tokens=tokens_BN, step=state.step + each.step)
        tokens_BN, _ = propose(model, source, now, each.t, each.rows, drawing)
        say(number / len(plan.rounds))
    return tokens_BN


def _ranked(reveal_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's distinct steps in order, each coordinate's place among them, and their number.

    [B, N], with anything behind the last; [B, N], -1 for what has no step; [B].
    """
    sorted_BN, order_BN = reveal_BN.sort(dim=1)
    before_BN = F.pad(sorted_BN[:, :-1], (1, 0), value=-1)
    new_BN = sorted_BN != before_BN  # -1, which is no step, comes first
    count_BN = new_BN.cumsum(1)
    rank_BN = torch.empty_like(reveal_BN).scatter(1, order_BN, count_BN - 1)
    room_BM = torch.zeros(len(reveal_BN), reveal_BN.shape[1] + 1, dtype=torch.int64)
    slot_BN = torch.where(new_BN, count_BN - 1, reveal_BN.shape[1])
    step_BN = room_BM.scatter(1, slot_BN, sorted_BN)[:, :-1]
    return step_BN, rank_BN.masked_fill(reveal_BN < 0, -1), count_BN[:, -1]
