"""The two forward chains of SEDD, and what follows from a network's score for each.

A token is corrupted by the chain with rates d sigma/ds Q, so its law after sigma of noise is
exp(sigma Q). The score is s_y = p_sigma(y) / p_sigma(x) for sequences y that differ from x in one
token; with it the chain runs backwards at rates d sigma/ds Q(y, x) s_y, and by Tweedie's rule

    p(y at sigma' | x at sigma) = [s exp(-c Q)]_y exp(c Q)(y, x),      c = sigma - sigma'

is one token's law after a step back. Shapes: K rows, one a coordinate, V data tokens.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cwdfm.baselines.sedd.sums import Sums
from cwdfm.ops.precision import sum_dtype
from cwdfm.path.base import independent_reveals
from cwdfm.source import Source


@dataclass(frozen=True)
class Move:
    """Where tokens go in a step: elsewhere with probability go / (go + stay), by weight."""

    go_K: Tensor  # float64
    stay_K: Tensor  # float64
    weight_KV: Tensor  # log-weights of the data tokens to go to

    @property
    def chance_K(self) -> Tensor:
        """The probability [K] to move."""
        return self.go_K / (self.go_K + self.stay_K)

    def log_prob(self, x_K: Tensor, y_K: Tensor) -> Tensor:
        """log p(y) [K] of the step's law from x."""
        weight_KV = self.weight_KV.double()
        to_K = weight_KV.gather(1, y_K[:, None])[:, 0] - weight_KV.logsumexp(-1)
        mass_K = torch.where(x_K == y_K, self.stay_K.log(), self.go_K.log() + to_K)
        return mass_K - (self.go_K + self.stay_K).log()

    def without(self, x_K: Tensor, tokens: list[int]) -> "Move":
        """The same, but never to some tokens, and always away from them."""
        weight_KV = self.weight_KV.clone()
        weight_KV[:, tokens] = -torch.inf
        leave_K = torch.isin(x_K, torch.tensor(tokens, device=x_K.device))
        go_K, stay_K = torch.where(leave_K, 1.0, self.go_K), torch.where(leave_K, 0.0, self.stay_K)
        return Move(go_K, stay_K, weight_KV)


@dataclass(frozen=True)
class Graph(ABC):
    """A forward chain, coordinate by coordinate."""

    vocab_size: int

    @property
    @abstractmethod
    def source(self) -> Source:
        """The chain's limit, and its token ids."""

    @abstractmethod
    def rate_matrix(self) -> Tensor:
        """Q [T, T] over the T ids, from rows to columns, float64."""

    @abstractmethod
    def transition(self, sigma: float) -> Tensor:
        """exp(sigma Q), in closed form."""

    @abstractmethod
    def log_score(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> Tensor:
        """log s_y [K, V] of the data tokens, from what the network puts out; 0 at y = x."""

    @abstractmethod
    def ratio(self, sigma_K: Tensor) -> Tensor:
        """p(x_1 | x_1) / p(x | x_1) for any x but x_1 that noise can make of x_1."""

    @abstractmethod
    def unmasked(self, sigma: float) -> float:
        """The share of tokens that are no mask; 0 where there is no mask."""

    @abstractmethod
    def largest_weight(self, sigma: Tensor) -> Tensor:
        """The largest factor of a log-score in `entropy`."""

    @abstractmethod
    def head_sums(self, hidden_KD: Tensor, readout: nn.Linear, x_K: Tensor, x_1_K: Tensor) -> Sums:
        """What `entropy` needs, from hidden vectors and a linear head."""

    @abstractmethod
    def entropy(self, sums: Sums, same_K: Tensor, sigma_K: Tensor) -> Tensor:
        """sum_{y != x} Q(y, x) [s_y - r_y log s_y + r_y (log r_y - 1)] of each row.

        r_y = p(y | x_1) / p(x | x_1); `same` says where x = x_1.
        """

    @abstractmethod
    def rate(self, logits_KV: Tensor, x_K: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """The reverse rate sum_{y != x} Q(y, x) s_y [K], and log-weights [K, V] of where to."""

    @abstractmethod
    def tweedie(self, logits_KV: Tensor, x_K: Tensor, sigma: float, sigma_next: float) -> Move:
        """The law of a step back; to sigma_next = 0, of data tokens alone."""

    @abstractmethod
    def conditioned(
        self, logits_KV: Tensor, x_K: Tensor, sigma: float, tokens: list[int]
    ) -> Tensor:
        """What the network would put out if its data had none of some tokens at this place."""

    @abstractmethod
    def place(self, sigma: float) -> float:
        """The variable v in which the likelihood is integrated (see `likelihood`)."""

    @abstractmethod
    def noise_at(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """sigma and d sigma / dv at v."""

    def corrupt(
        self,
        x_1: Tensor,
        sigma_B: Tensor,
        fixed: Tensor,
        *,
        seed: int,
        step: int,
        index: Tensor,
    ) -> Tensor:
        """x ~ exp(sigma Q)(x_1, .): each token is kept with probability exp(-sigma), else noise."""
        noise_BN = self.source.noise(index, x_1.shape[1], seed=seed, step=step)
        kept_BN = independent_reveals(
            (-sigma_B).exp(), fixed.shape[1], seed=seed, step=step, index=index, fixed=fixed
        )
        return torch.where(kept_BN, x_1, noise_BN)

    def rows(self, x_BN: Tensor, fixed: Tensor) -> Tensor:
        """The coordinates [B, N] that can move backwards: the only ones that need a score."""
        return self.source.movable(x_BN, fixed)


def log_sum(logits_KV: Tensor) -> Tensor:
    """log sum exp [K] in float64, of logits that are summed in at least float32."""
    return logits_KV.to(sum_dtype(logits_KV)).logsumexp(-1).double()
