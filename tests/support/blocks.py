"""Small block diffusion networks, and a reference for their logits.

The reference calls the network on [clean blocks before, noised block] with an explicit mask. It
uses neither the parallel pass of training nor the cache of sampling.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import cwdfm
from cwdfm.baselines.bd3lm.method import BlockDiffusion
from cwdfm.model.attention import AttentionFn, AttentionPattern
from cwdfm.model.transformer import DiT, DiTConfig
from tests.support.kernels import perturbed

LINEAR = cwdfm.Linear()
CPU = torch.device("cpu")


def method(block: int, vocab: int = 7) -> BlockDiffusion:
    return BlockDiffusion(cwdfm.MaskSource(vocab), LINEAR, block)


def network(block: int, vocab: int = 7, *, double: bool = False, seed: int = 0) -> DiT:
    """A random network in which every layer has an effect."""
    size = DiTConfig(vocab + 1, width=32, depth=2, heads=2, conditioning=16, dropout=0.1)
    config = method(block, vocab).network(size)
    # Time conditioning computes in float32, so a float64 network has none.
    config = replace(config, time="none") if double else config
    model = perturbed(config, 0.15, seed).eval()
    return model.double() if double else model


def tokens(batch: int, length: int, vocab: int = 7) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.manual_seed(1))


@dataclass(frozen=True)
class BlockCausal(AttentionPattern):
    """Every token attends to its own block and to earlier ones."""

    block: int

    def attention_fn(self, layer: int, num_inputs: int, device: torch.device) -> AttentionFn:
        block = torch.arange(num_inputs, device=device) // self.block
        mask = block[:, None] >= block[None, :]
        return partial(F.scaled_dot_product_attention, attn_mask=mask)


@torch.no_grad()
def plain_logits(model: DiT, before_BP: Tensor, noised_BL: Tensor) -> Tensor:
    """Logits [B, L, V + 1] of a block, without a cache."""
    x_BM = torch.cat([before_BP, noised_BL], dim=1)
    pattern = BlockCausal(model.config.block)
    hidden = model.trunk(x_BM, torch.zeros(len(x_BM)), pattern)[:, before_BP.shape[1] :]
    return model.head(hidden)


def called(model: DiT) -> Any:
    return lambda x, t, read: model(x, t, read)
