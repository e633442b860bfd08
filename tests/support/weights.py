"""Weights for tests."""

from dataclasses import dataclass

import torch
from torch import Tensor

import cwdfm


@dataclass(frozen=True)
class PositionalBias(cwdfm.ContextWeight):
    """The paper's counterexample: leftmost coordinates first."""

    scale: float = 0.3

    @property
    def equivariant(self) -> bool:
        return False

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        place_N = torch.arange(revealed_BN.shape[1], dtype=torch.float64)
        return (-self.scale * place_N).expand(revealed_BN.shape)
