"""Source distributions p_0: the initial state of sampling.

A source defines the token ids. Data tokens are 0..vocab_size-1; a mask source adds the mask as the
next id. Models return logits over `num_tokens` ids, of which the first `vocab_size` are data
tokens.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import (
    InputError,
    check_instance,
    check_mask,
    has_values,
    is_builtin,
    require,
)
from cwdfm.ops.random import Purpose, uniform_BN

__all__ = ["MaskSource", "Source", "UniformSource"]


@dataclass(frozen=True)
class Source(ABC):
    """p_0, factorized over coordinates.

    A subclass implements `num_tokens`, `noise`, `revealed`, `renoise_probability` and `renoise`.
    `noise` depends on the seed, the step and a sample's own index only (see
    `cwdfm.ops.random.uniform_BN`), so that samples do not depend on the batch.
    """

    vocab_size: int  # the number of data tokens, without the mask

    def __post_init__(self) -> None:
        valid = isinstance(self.vocab_size, int) and self.vocab_size >= 2
        rule = "be the number of data tokens without the mask, an integer >= 2"
        require(valid, "vocab_size", rule, self.vocab_size)

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """The number of ids: the width of the model's embedding and of its logits."""

    @abstractmethod
    def noise(self, index_B: Tensor, length: int, *, seed: int, step: int = 0) -> Tensor:
        """Draw x_0 ~ p_0 [B, N] for the sample indices index_B."""

    @abstractmethod
    def revealed(self, x_BN: Tensor) -> Tensor | None:
        """The reveal mask [B, N] of a state; None if it cannot be inferred from the state."""

    @property
    def marks_noise(self) -> bool:
        """Whether noise differs from data, so that a state determines its reveal mask."""
        return self.revealed(torch.zeros(1, 1, dtype=torch.int64)) is not None

    def movable(self, x_BN: Tensor, fixed_BN: Tensor) -> Tensor:
        """The coordinates [B, N] that may still change: neither fixed nor known to be revealed."""
        revealed_BN = self.revealed(x_BN)
        return ~fixed_BN if revealed_BN is None else ~(fixed_BN | revealed_BN)

    @abstractmethod
    def renoise_probability(self, x_BN: Tensor) -> Tensor:
        """1 - p_0(x^i) [B, N]: the probability that a fresh source token differs from x^i."""

    @abstractmethod
    def renoise(self, x_BN: Tensor, u_BN: Tensor) -> Tensor:
        """Draw source tokens [B, N] that differ from the current ones, using uniforms u_BN."""

    def data_logits(self, logits: Tensor) -> Tensor:
        """A view of the data tokens' logits [..., V], which excludes the mask."""
        return logits[..., : self.vocab_size]


def check_source(source: Source) -> None:
    """Require a source. What the methods of a user's class return is checked on an example."""
    check_instance("source", source, Source, "MaskSource(vocab_size=30)")
    if is_builtin(source):
        return
    name, shape, most = type(source).__name__, (2, 4), source.num_tokens - 1
    x_0 = source.noise(torch.arange(2), 4, seed=0)

    def is_valid(x: object, high: float, *, integers: bool) -> bool:
        if not has_values(x) or x.shape != shape or x.is_complex():
            return False
        typed = x.dtype == torch.int64 if integers else x.is_floating_point()
        return typed and bool((x >= 0).all() and (x <= high).all())

    ids = f"return int64 ids 0..{most} of shape {shape} for two samples of length 4"
    require(is_valid(x_0, most, integers=True), f"{name}.noise", ids, x_0)
    if not torch.equal(source.noise(torch.tensor([1]), 4, seed=0), x_0[1:]):
        raise InputError(
            f"{name}.noise gives sample 1 other noise in a different batch; draw it with "
            f"cwdfm.ops.random.uniform_BN(seed, Purpose.SOURCE, index_B, step, length)"
        )
    x_BN = source.renoise(x_0, torch.linspace(0.01, 0.99, 8, dtype=torch.float64).view(shape))
    require(is_valid(x_BN, most, integers=True), f"{name}.renoise", ids, x_BN)
    p_BN = source.renoise_probability(x_0)
    rule = f"return probabilities of the shape of x_BN, {shape}"
    require(is_valid(p_BN, 1, integers=False), f"{name}.renoise_probability", rule, p_BN)
    revealed_BN = source.revealed(x_0)
    if bool(((x_BN == x_0) & (p_BN > 0)).any()):
        raise InputError(f"{name}.renoise must return other tokens than the current ones")
    if revealed_BN is not None:
        check_mask(f"{name}.revealed's result", revealed_BN, shape)


@dataclass(frozen=True)
class MaskSource(Source):
    """p_0 = all mask. The mask id is vocab_size, the first id after the data tokens."""

    @property
    def mask_id(self) -> int:
        return self.vocab_size

    @property
    def num_tokens(self) -> int:
        return self.vocab_size + 1

    def noise(self, index_B: Tensor, length: int, *, seed: int, step: int = 0) -> Tensor:
        shape = (len(index_B), length)
        return torch.full(shape, self.mask_id, dtype=torch.int64, device=index_B.device)

    def revealed(self, x_BN: Tensor) -> Tensor:
        return x_BN != self.mask_id

    def renoise_probability(self, x_BN: Tensor) -> Tensor:
        return (x_BN != self.mask_id).double()

    def renoise(self, x_BN: Tensor, u_BN: Tensor) -> Tensor:
        return torch.full_like(x_BN, self.mask_id)


@dataclass(frozen=True)
class UniformSource(Source):
    """p_0 = independent uniform data tokens.

    A revealed token cannot be distinguished from noise, so `revealed` returns None. In training the
    path provides the reveal mask; in sampling a coordinate counts as revealed if it equals its
    proposal.
    """

    @property
    def num_tokens(self) -> int:
        return self.vocab_size

    def noise(self, index_B: Tensor, length: int, *, seed: int, step: int = 0) -> Tensor:
        u_BN = uniform_BN(seed, Purpose.SOURCE, index_B, step, length)
        return (u_BN * self.vocab_size).long()

    def revealed(self, x_BN: Tensor) -> Tensor | None:
        return None

    def renoise_probability(self, x_BN: Tensor) -> Tensor:
        probability = 1 - 1 / self.vocab_size
        return torch.full(x_BN.shape, probability, dtype=torch.float64, device=x_BN.device)

    def renoise(self, x_BN: Tensor, u_BN: Tensor) -> Tensor:
        shift_BN = 1 + (u_BN * (self.vocab_size - 1)).long()
        return (x_BN + shift_BN) % self.vocab_size
