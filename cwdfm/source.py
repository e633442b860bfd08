"""Source distributions p_0: where sampling starts and what "masked" means.

A source owns its token ids. Data tokens are 0..vocab_size-1; a mask source adds one id behind
them. Models put out logits over `num_tokens`; only the first `vocab_size` of them are data.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.ops.random import Purpose, uniform_BN


@dataclass(frozen=True)
class Source(ABC):
    """p_0, factorised over coordinates."""

    vocab_size: int

    def __post_init__(self) -> None:
        if not isinstance(self.vocab_size, int) or self.vocab_size < 2:
            raise InputError(
                f"vocab_size counts the data tokens, mask not included, and must be an integer "
                f">= 2, got {self.vocab_size!r}"
            )

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """How many ids there are: the width of the model's embedding and of its logits."""

    @abstractmethod
    def noise(self, index_B: Tensor, length: int, *, seed: int, step: int = 0) -> Tensor:
        """x_0 ~ p_0, [B, N], for the samples numbered index_B."""

    @abstractmethod
    def revealed(self, x_BN: Tensor) -> Tensor | None:
        """Which coordinates are revealed, [B, N]; None where the state alone does not tell."""

    @property
    def marks_noise(self) -> bool:
        """Whether a state tells which of its coordinates are revealed: noise looks like no data."""
        return self.revealed(torch.zeros(1, 1, dtype=torch.int64)) is not None

    def movable(self, x_BN: Tensor, fixed_BN: Tensor) -> Tensor:
        """Which coordinates may still move, [B, N]: neither given nor known to be revealed."""
        revealed_BN = self.revealed(x_BN)
        return ~fixed_BN if revealed_BN is None else ~(fixed_BN | revealed_BN)

    @abstractmethod
    def renoise_probability(self, x_BN: Tensor) -> Tensor:
        """1 - p_0(x^i): the chance [B, N] that a fresh source token differs from the present."""

    @abstractmethod
    def renoise(self, x_BN: Tensor, u_BN: Tensor) -> Tensor:
        """A source token other than the present one, [B, N], from uniform draws u_BN."""

    def data_logits(self, logits: Tensor) -> Tensor:
        """The logits [..., V] of the data tokens, a view: the mask id has probability zero."""
        return logits[..., : self.vocab_size]


@dataclass(frozen=True)
class MaskSource(Source):
    """p_0 = all mask. The mask id is vocab_size, the one behind the data tokens."""

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

    A revealed token cannot be told from noise by looking at it, so `revealed` is None: in training
    the path knows, in sampling the proposal stands in for x_1.
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
        chance = 1 - 1 / self.vocab_size
        return torch.full(x_BN.shape, chance, dtype=torch.float64, device=x_BN.device)

    def renoise(self, x_BN: Tensor, u_BN: Tensor) -> Tensor:
        shift_BN = 1 + (u_BN * (self.vocab_size - 1)).long()
        return (x_BN + shift_BN) % self.vocab_size
