"""The network as the library's solvers and bounds know models: one block, or a whole sequence.

Shapes: B sequences, L tokens a block, C tokens of context before it, N length, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.model.attention import CachedAttention, KVCache
from cwdfm.model.transformer import DiT


class OneBlock(nn.Module):
    """A split model of the block behind a cache of clean ones.

    It is given [B, C + L] tokens, the last C clean ones and the block: solvers and weights see
    them, the network has them in its cache. Their hidden vectors are zeros that nobody reads.
    """

    def __init__(self, model: DiT, cache: KVCache, context: int = 0) -> None:
        super().__init__()
        self.model, self.cache, self.context, self.readout = model, cache, context, model.readout

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x, t))

    def trunk(self, x: Tensor, t: Tensor) -> Tensor:
        """Hidden vectors [B, C + L, D]."""
        hidden_BLD = self.model.trunk(x[:, self.context :], t, CachedAttention(self.cache))
        return F.pad(hidden_BLD, (0, 0, self.context, 0)) if self.context else hidden_BLD

    def head(self, hidden: Tensor) -> Tensor:
        """The model's own."""
        return self.model.head(hidden)

    def select(self, active_B: Tensor) -> "OneBlock":
        """The same for some of the sequences."""
        if bool(active_B.all()):
            return self
        return OneBlock(self.model, self.cache.select(active_B), self.context)

    def remember(self, x_BL: Tensor) -> None:
        """Read a finished block into the cache."""
        t_B = torch.zeros(len(x_BL), device=x_BL.device)
        self.model.trunk(x_BL, t_B, CachedAttention(self.cache))
        self.cache.length += x_BL.shape[1]


class Beside(nn.Module):
    """A split model of all blocks at once, each behind the clean ones before it: [x_t, x_1]."""

    def __init__(self, model: DiT, x_1: Tensor) -> None:
        super().__init__()
        self.model, self.x_1, self.readout = model, x_1, model.readout

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x_t, t))

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Hidden vectors [B, N, D] of the noised half."""
        return self.model.trunk(torch.cat([x_t, self.x_1], dim=1), t)[:, : x_t.shape[1]]

    def head(self, hidden: Tensor) -> Tensor:
        """The model's own."""
        return self.model.head(hidden)

    def select(self, active_B: Tensor) -> "Beside":
        """The same for some of the sequences."""
        return self if bool(active_B.all()) else Beside(self.model, self.x_1[active_B])
