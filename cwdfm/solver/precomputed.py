"""Precomputed reveals: sampling when the reveal steps are drawn before the model is evaluated.

With a mask source and a weight that needs no logits, the step at which a coordinate is revealed
does not depend on the revealed tokens, so all reveal steps are drawn first. Sequences then do not
have to advance in lockstep: in each round every sequence moves to its next step with a reveal, at
its own time. The number of model evaluations of a batch is the largest number of such steps in any
sequence, and the host never waits for the result of a round before it launches the next. The
samples are identical to those of the step-by-step loop.

Shapes: B batch, N length, R rounds, K coordinates revealed in a round, M = B N.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.solver.base import DrawOptions, State
from cwdfm.solver.proposal import propose
from cwdfm.source import Source

GPU_BATCH_SIZES = 4  # distinct sizes of partial batches; a CUDA graph is captured for each


def batch_unit(batch: int, device: torch.device) -> int:
    """The unit that the sizes of partial batches are multiples of."""
    return -(-batch // GPU_BATCH_SIZES) if device.type == "cuda" else 1


@dataclass(frozen=True)
class Round:
    """The next reveals of every unfinished sequence."""

    rows: Positions
    step: Tensor  # [B] int64: the step of each sequence; its last step if it is finished
    t: Tensor  # [B]: the time of that step


@dataclass(frozen=True)
class Plan:
    """All rounds of a batch."""

    rounds: list[Round]
    evaluations: Tensor  # [B] int64: number of rounds of each sequence

    @classmethod
    def of(cls, reveal_BN: Tensor, times: Sequence[float]) -> "Plan":
        """Assign each sequence's steps with a reveal to consecutive rounds."""
        shape, device = (reveal_BN.shape[0], reveal_BN.shape[1]), reveal_BN.device
        step_BN, rank_BN, count_B = _rank_steps(reveal_BN.cpu())
        size = int(count_B.max())
        # Coordinates grouped by round, in row-major order within a round.
        rank_M = rank_BN.flatten()
        sizes = rank_M[rank_M >= 0].bincount(minlength=size).tolist()
        flat_M = rank_M.argsort(stable=True)[int((rank_M < 0).sum()) :].to(device)
        # Sort the sequences by their number of rounds, so that the active ones are a prefix.
        order_B = count_B.argsort(descending=True, stable=True).to(device)
        active = (count_B[None, :] > torch.arange(size)[:, None]).sum(1)
        unit = batch_unit(shape[0], device)
        batch_sizes = [min(shape[0], -(-count // unit) * unit) for count in active.tolist()]
        # The step of each sequence in each round. Finished sequences repeat their last step.
        round_BR = torch.minimum(torch.arange(size)[None, :], (count_B[:, None] - 1).clamp(min=0))
        step_RB = step_BN.gather(1, round_BR).T.contiguous()
        t_RB = torch.tensor(times, dtype=torch.float32)[step_RB].to(device)
        parts = zip(flat_M.split(sizes), batch_sizes, step_RB.to(device), t_RB, strict=True)
        rounds = []
        for flat_K, batch_size, step_B, t_B in parts:
            sequences = None if batch_size == shape[0] else order_B[:batch_size]
            rounds.append(Round(Positions(shape, flat_K, sequences), step_B, t_B))
        return cls(rounds, count_B.to(device))


def run_plan(
    model: Model,
    source: Source,
    draw: DrawOptions,
    state: State,
    plan: Plan,
    report: Callable[[int], object],
) -> Tensor:
    """Run all rounds and return the finished tokens [B, N].

    `report` is called after each round with the number of finished rounds.
    """
    tokens_BN = state.tokens
    for finished, round_ in enumerate(plan.rounds, start=1):
        current = replace(state, tokens=tokens_BN, step=state.step + round_.step)
        tokens_BN, _ = propose(model, source, current, round_.t, round_.rows, draw)
        report(finished)
    return tokens_BN


def _rank_steps(reveal_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort and count the distinct reveal steps of each sequence.

    Returns the sorted distinct steps [B, N] (padded arbitrarily), the rank of each coordinate's
    step among them [B, N] (-1 if it is never revealed), and their number [B].
    """
    sorted_BN, order_BN = reveal_BN.sort(dim=1)
    before_BN = F.pad(sorted_BN[:, :-1], (1, 0), value=-1)
    new_BN = sorted_BN != before_BN  # -1 (never revealed) sorts first and is not counted
    count_BN = new_BN.cumsum(1)
    rank_BN = torch.empty_like(reveal_BN).scatter(1, order_BN, count_BN - 1)
    buffer_BM = torch.zeros(len(reveal_BN), reveal_BN.shape[1] + 1, dtype=torch.int64)
    slot_BN = torch.where(new_BN, count_BN - 1, reveal_BN.shape[1])
    step_BN = buffer_BM.scatter(1, slot_BN, sorted_BN)[:, :-1]
    return step_BN, rank_BN.masked_fill(reveal_BN < 0, -1), count_BN[:, -1]
