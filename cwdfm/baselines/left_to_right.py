"""Building blocks of left-to-right samplers with a key-value cache.

Shapes: B batch, N length, L new tokens, C context tokens before them, D width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import InputError, check_integer
from cwdfm.method.base import SampleRequest
from cwdfm.model.attention import CachedAttention, KVCache
from cwdfm.model.predict import model_device
from cwdfm.model.transformer import DiT
from cwdfm.ops.random import check_seed, sample_index
from cwdfm.solver.base import broadcast_prompt
from cwdfm.solver.sample import batches
from cwdfm.source import MaskSource


class CachedModel(nn.Module):
    """A split model that evaluates only the tokens after a cached prefix.

    The input is [B, C + L]: the last C tokens of the prefix, then L new tokens. Solvers and context
    weights use all of them. The network evaluates only the new ones and attends to the prefix
    through its cache; the hidden states of the C tokens are zeros, which are never read.

    A forward pass writes the new keys and values after `cache.start`. The next pass overwrites
    them unless the caller advances `cache.start`.
    """

    def __init__(
        self, model: DiT, cache: KVCache, *, causal: bool = False, context: int = 0
    ) -> None:
        super().__init__()
        self.model, self.cache, self.readout = model, cache, model.readout
        self.causal, self.context = causal, context

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x, t))

    def trunk(self, x: Tensor, t: Tensor) -> Tensor:
        """Hidden states [B, C + L, D]."""
        hidden_BLD = self.model.trunk(
            x[:, self.context :], t, CachedAttention(self.cache, self.causal)
        )
        return F.pad(hidden_BLD, (0, 0, self.context, 0)) if self.context else hidden_BLD

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the model."""
        return self.model.head(hidden)

    def select(self, active_B: Tensor) -> "CachedModel":
        """The model for the active sequences only."""
        if bool(active_B.all()):
            return self
        cache = self.cache.select(active_B)
        return CachedModel(self.model, cache, causal=self.causal, context=self.context)

    def append(self, x_BL: Tensor) -> None:
        """Add finished tokens to the cache."""
        t_B = torch.zeros(len(x_BL), device=x_BL.device)
        self.model.trunk(x_BL, t_B, CachedAttention(self.cache, self.causal))
        self.cache.start += x_BL.shape[1]


@dataclass(frozen=True)
class Chunk:
    """The initial tokens of sequences that are sampled together."""

    tokens: Tensor  # [B, N]: the prompt, mask ids elsewhere
    fixed: Tensor  # [B, N]: positions of the prompt
    index: Tensor  # [B]: global sample indices

    @classmethod
    def of(cls, model: nn.Module, source: MaskSource, request: SampleRequest) -> "Chunk":
        """Check a request and create the initial tokens of its sequences on the model's device."""
        batch, length = request.shape
        check_integer("the number of samples", batch)
        check_integer("the length", length)
        check_seed(request.seed)
        device = model_device(model) or torch.device("cpu")
        index_B = sample_index(request.index, batch, device)
        prompt_BN, fixed_BN = broadcast_prompt(
            source, request.shape, request.prompt, request.fixed, device
        )
        if bool(fixed_BN.all()):
            raise InputError("all positions are fixed, so there is nothing to sample; free some")
        return cls(torch.where(fixed_BN, prompt_BN, source.mask_id), fixed_BN, index_B)

    def split(self, batch_size: int | None) -> list["Chunk"]:
        """Split into batches of `batch_size`; None for a single batch."""
        return [
            Chunk(self.tokens[part], self.fixed[part], self.index[part])
            for part in batches(len(self.index), batch_size, self.index.device)
        ]
