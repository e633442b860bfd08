"""How often solvers change a token on the way, and how often in vain."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_mask
from cwdfm.solver import Samples


@dataclass(frozen=True)
class UpdateStatistics:
    """Updates per token that was not given, and the share of updates that are loops.

    A loop is an update that brings back the data token that stood there before the last one. The
    standard error is over sequences, and None for a single one. `histogram[k]` tokens were updated
    k times.
    """

    updates_per_token: float
    standard_error: float | None
    loop_share: float  # of all updates; 0 where there are none
    histogram: tuple[int, ...]
    sequences: int

    @property
    def tokens(self) -> int:
        """How many tokens were counted."""
        return sum(self.histogram)

    def to_json(self) -> dict[str, Any]:
        """A plain dict of all of it."""
        return asdict(self) | {"histogram": list(self.histogram), "tokens": self.tokens}


def update_statistics(samples: Samples, fixed: Tensor | None = None) -> UpdateStatistics:
    """Count what `sample` recorded; `fixed` [B, N] or [N] marks given tokens, which never move."""
    check_instance("samples", samples, Samples, "what cwdfm.sample returns")
    updates_BN = samples.updates.cpu().long()
    fixed_BN = torch.zeros(updates_BN.shape, dtype=torch.bool)
    if fixed is not None:
        check_mask("fixed", fixed, tuple(updates_BN.shape), (updates_BN.shape[1],))
        fixed_BN = fixed.cpu().expand(updates_BN.shape)
    free_BN = ~fixed_BN
    if not bool(free_BN.any()):
        raise InputError("all positions are fixed: no token is left whose updates to count")
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


def updates_table(results: Mapping[str, UpdateStatistics]) -> str:
    """Solvers to compare, as a Markdown table."""
    check_results(results)
    lines = [
        "| solver | updates per token | loops | updated more than once | tokens |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, r in results.items():
        error = "" if r.standard_error is None else f" ± {r.standard_error:.4f}"
        again = sum(r.histogram[2:]) / r.tokens
        lines.append(
            f"| {name} | {r.updates_per_token:.4f}{error} | {r.loop_share:.3%} | {again:.2%} | "
            f"{r.tokens:,} |"
        )
    return "\n".join(lines)


def check_results(results: Mapping[str, UpdateStatistics]) -> None:
    """Refuse anything but a filled mapping from solvers' names to their statistics."""
    if not isinstance(results, Mapping) or not results:
        raise InputError(
            f"results must map at least one solver's name to its update_statistics, got {results!r}"
        )
    for name, result in results.items():
        check_instance(f"results[{name!r}]", result, UpdateStatistics, "update_statistics(samples)")
