"""How often a solver updates each token, and how many updates are loops."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_mask
from cwdfm.solver import Samples


@dataclass(frozen=True)
class UpdateStatistics:
    """Updates per free token, and the fraction of updates that are loops.

    A loop is an update back to the data token before the previous update. The standard error is
    over sequences, and None for a single sequence. `histogram[k]` is the number of tokens with k
    updates.
    """

    updates_per_token: float
    standard_error: float | None
    loop_share: float  # of all updates; 0 if there are none
    histogram: tuple[int, ...]
    sequences: int

    @property
    def tokens(self) -> int:
        """Number of free tokens."""
        return sum(self.histogram)

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return asdict(self) | {"histogram": list(self.histogram), "tokens": self.tokens}


def update_statistics(samples: Samples, fixed: Tensor | None = None) -> UpdateStatistics:
    """Statistics of recorded updates; `fixed` [B, N] or [N] marks given tokens."""
    check_instance("samples", samples, Samples, "the return value of cwdfm.sample")
    updates_BN = samples.updates.cpu().long()
    fixed_BN = torch.zeros(updates_BN.shape, dtype=torch.bool)
    if fixed is not None:
        check_mask("fixed", fixed, tuple(updates_BN.shape), (updates_BN.shape[1],))
        fixed_BN = fixed.cpu().expand(updates_BN.shape)
    free_BN = ~fixed_BN
    if not bool(free_BN.any()):
        raise InputError("all positions are fixed; at least one must be free to count updates")
    updates_BN = updates_BN * free_BN
    updates_B, tokens_B = updates_BN.sum(1).double(), free_BN.sum(1).double()
    used_B = tokens_B > 0
    mean, count = float(updates_B.sum() / tokens_B.sum()), int(used_B.sum())
    square = float(((updates_B - mean * tokens_B) ** 2).sum())
    error = math.sqrt(square * count / (count - 1)) / float(tokens_B.sum()) if count > 1 else None
    loops = int((samples.loops.cpu() * free_BN).sum())
    return UpdateStatistics(
        updates_per_token=mean,
        standard_error=error,
        loop_share=loops / max(1, int(updates_BN.sum())),
        histogram=tuple(torch.bincount(updates_BN[free_BN]).tolist()),
        sequences=count,
    )
