"""What BD3LM asks of networks and sequences: checks, and a model of all blocks in one pass."""

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.model.transformer import DiT


class ParallelBlocks(nn.Module):
    """A split model that predicts every block of x_t [B, N] given the clean blocks before it.

    One pass over [x_t, x_1], with a block mask in the attention, covers all blocks.
    """

    def __init__(self, model: DiT, x_1: Tensor) -> None:
        super().__init__()
        self.model, self.x_1, self.readout = model, x_1, model.readout

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x_t, t))

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Hidden states [B, N, D] of the noised half."""
        return self.model.trunk(torch.cat([x_t, self.x_1], dim=1), t)[:, : x_t.shape[1]]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the model."""
        return self.model.head(hidden)

    def select(self, active_B: Tensor) -> "ParallelBlocks":
        """The model for a subset of the sequences."""
        return self if bool(active_B.all()) else ParallelBlocks(self.model, self.x_1[active_B])


def check_network(model: nn.Module, block: int) -> DiT:
    """Return the model if it is a transformer for blocks of `block` tokens."""
    if not isinstance(model, DiT):
        raise InputError(
            f"block diffusion needs a DiT, whose trunk accepts an attention, got "
            f"{type(model).__name__}; build it with DiT(method.network(config))"
        )
    config = model.config
    if (config.attention, config.block) != ("block", block) or config.time == "given":
        raise InputError(
            f"block diffusion with blocks of {block} tokens needs a network with "
            f"attention='block', block={block} and time='zero', got "
            f"attention={config.attention!r}, block={config.block}, time={config.time!r}; build it "
            f"with DiT(method.network(config))"
        )
    return model


def check_length(length: int, block: int) -> None:
    """Check that a sequence divides into blocks."""
    if length % block:
        raise InputError(
            f"a sequence of {length} tokens does not divide into blocks of {block}: cut or pad it "
            f"to a multiple, such as {(length // block + 1) * block}, or train with a block that "
            f"divides {length}"
        )


def check_fixed(fixed_BN: Tensor, block: int) -> None:
    """Check that no fixed token comes after a block with a free one.

    Blocks are generated from left to right, and a block does not see later ones. So a sequence may
    begin with complete fixed blocks, followed by one block that is fixed in part, with holes
    anywhere in it. The rest must be free.
    """
    fixed_BKL = fixed_BN.unflatten(1, (-1, block))
    some_fixed_BK, some_free_BK = fixed_BKL.any(2), ~fixed_BKL.all(2)
    free_before_BK = (some_free_BK.int().cumsum(1) - some_free_BK.int()) > 0
    wrong_BK = some_fixed_BK & free_before_BK
    if bool(wrong_BK.any()):
        b, k = wrong_BK.nonzero()[0].tolist()
        first = int(some_free_BK[b].int().argmax())
        raise InputError(
            f"sequence {b} has fixed tokens in block {k} (positions {k * block}.."
            f"{(k + 1) * block - 1}) and free ones in the earlier block {first}, which cannot "
            f"condition on later blocks; fix complete blocks at the start and then part of one "
            f"block, or use a flow to fill holes"
        )
