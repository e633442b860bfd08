"""A small target and exact posteriors for tests of postprocessing."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch

import cwdfm
from tests.support.exact import Array, correlated_target
from tests.support.models import SmallModel

V, N = 3, 4
TARGET = correlated_target(V, N, seed=7)
SCHEDULE = cwdfm.Polynomial(2.0)
MASK, UNIFORM = cwdfm.MaskSource(V), cwdfm.UniformSource(V)


def posterior(x: Sequence[int], noise_fraction: float) -> Array:
    """p(x_1^i = v | x) [N, V] by Bayes' rule, if each token is noise with this probability."""
    found = np.zeros((N, V))
    for y in product(range(V), repeat=N):
        likelihood = [
            noise_fraction / V + (1 - noise_fraction) * (a == b) for a, b in zip(x, y, strict=True)
        ]
        found[np.arange(N), y] += TARGET[y] * np.prod(likelihood)
    return np.asarray(found / found.sum(1, keepdims=True))


def conditional(x: Sequence[int], groups: Sequence[int]) -> Array:
    """p(x_1^i = v | the tokens outside the group of i) [N, V]."""
    found = np.zeros((N, V))
    for y in product(range(V), repeat=N):
        for i in range(N):
            if all(y[j] == x[j] for j in range(N) if groups[j] != groups[i]):
                found[i, y[i]] += TARGET[y]
    return np.asarray(found / found.sum(1, keepdims=True))


class InconsistentSplitModel(SmallModel):
    """A model whose head(trunk(x, t)) differs from model(x, t)."""

    def trunk(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*x_t.shape, 5)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*hidden.shape[:-1], V)
