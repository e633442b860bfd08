"""A small target and exact posteriors for tests of postprocessing."""

from collections.abc import Sequence

import numpy as np
import torch

import cwdfm
from tests.support import chains
from tests.support.exact import Array, Chain, correlated_target
from tests.support.models import SmallModel

V, N = 3, 4
TARGET = correlated_target(V, N, seed=7)
MASKED, NOISED = Chain(TARGET, mask=True), Chain(TARGET, mask=False)
MASK, UNIFORM, SCHEDULE = cwdfm.MaskSource(V), cwdfm.UniformSource(V), chains.SCHEDULE
FLOWS: dict[cwdfm.Source, tuple[cwdfm.Model, cwdfm.Source, cwdfm.Schedule]] = {
    source: (chains.model_of(chain), source, SCHEDULE)
    for source, chain in ((MASK, MASKED), (UNIFORM, NOISED))
}


def posterior(x: Sequence[int], noise_fraction: float) -> Array:
    """p(x_1^i = v | x) [N, V], if each token is noise with this probability."""
    return NOISED.posterior(tuple(x), 1 - noise_fraction)


def conditional(x: Sequence[int], groups: Sequence[int]) -> Array:
    """p(x_1^i = v | the tokens outside the group of i) [N, V]."""
    rows = []
    for i in range(N):
        rest = tuple(V if groups[j] == groups[i] else x[j] for j in range(N))
        rows.append(MASKED.posterior(rest, 0.5)[i])
    return np.stack(rows)


class InconsistentSplitModel(SmallModel):
    """A model whose head(trunk(x, t)) differs from model(x, t)."""

    def trunk(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*x_t.shape, 5)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*hidden.shape[:-1], V)
