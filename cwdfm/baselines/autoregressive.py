"""Autoregressive models: p(x) = prod_k p(x_k | start, x_1 .. x_{k-1}).

The network reads [start, x_1 .. x_{N-1}] and its output k predicts x_k, so that all N tokens are
predicted, and likelihoods compare with the bounds of the other methods.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from cwdfm.baselines.left_to_right import (
    LeftToRight,
    check_network,
    check_prefix,
    start_ids,
    with_start,
)
from cwdfm.likelihood.bound import Bound, free_tokens
from cwdfm.likelihood.exact import sequence_nats
from cwdfm.method.base import (
    DataBatch,
    DrawRequest,
    Method,
    Objective,
    TrainingBatch,
    refuse_solver,
)
from cwdfm.model.predict import evaluating
from cwdfm.model.transformer import DiTConfig
from cwdfm.ops.head_loss import head_cross_entropy
from cwdfm.ops.precision import product_dtype
from cwdfm.solver import Samples


@dataclass(frozen=True)
class Autoregressive(Method):
    """A causal network of p(x_k | x_<k). Behind the data's ids comes one for the start."""

    vocab_size: int

    def __post_init__(self) -> None:
        start_ids(self.vocab_size)  # which refuses what is no vocabulary

    @property
    def num_tokens(self) -> int:
        return start_ids(self.vocab_size).num_tokens

    @property
    def exact(self) -> bool:
        return True

    def network(self, config: DiTConfig) -> DiTConfig:
        return replace(config, num_tokens=self.num_tokens, attention="causal", time="none")

    def steps(self, asked: int, length: int) -> int:
        """One for each token, whatever was asked for."""
        return length

    def draw(self, model: nn.Module, solver: object, asked: DrawRequest) -> Samples:
        solver = LeftToRight() if solver is None else solver
        if not isinstance(solver, LeftToRight):
            reason = "its order is fixed, left to right, and there is no rate to step or to weigh"
            refuse_solver(self, solver, "LeftToRight() (--solver left-to-right)", reason)
        return solver.sample(model, self.vocab_size, asked)

    @torch.no_grad()
    def likelihood(
        self,
        model: nn.Module,
        x_1: Tensor,
        *,
        seed: int = 0,
        draws: int = 16,
        fixed: Tensor | None = None,
        index: Tensor | None = None,
        batch_size: int = 256,
    ) -> Bound:
        """-log p(x_1), exact: nothing is drawn, and `seed`, `draws` and `index` do not matter.

        Of `fixed` tokens, which must be how a sequence begins, it is that of the rest given them.
        """
        x_1, fixed, tokens = free_tokens(model, x_1, fixed, self.vocab_size, batch_size)
        check_network(model, x_1.shape[1])
        check_prefix(fixed)
        ids = start_ids(self.vocab_size)
        with evaluating(model):
            nats_B = torch.cat(
                [
                    sequence_nats(model, ids, with_start(x, ids)[:, :-1], x, free)
                    for x, free in zip(
                        x_1.split(batch_size), (~fixed).split(batch_size), strict=True
                    )
                ]
            )
        return Bound.of(nats_B, tokens, exact=True)


@dataclass(frozen=True)
class NextToken(Objective):
    """The mean of -log p(x_k | x_<k) over tokens that are not fixed. Nothing is corrupted."""

    vocab_size: int

    def __post_init__(self) -> None:
        start_ids(self.vocab_size)

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        read_BN = with_start(batch.x_1, start_ids(self.vocab_size))[:, :-1]
        read = partial(self._read, x_1=batch.x_1, free_BN=~batch.fixed)
        return TrainingBatch(read_BN, batch.t, read)

    def _read(
        self, hidden_BND: Tensor, readout: nn.Linear, *, x_1: Tensor, free_BN: Tensor
    ) -> Tensor:
        """The loss from hidden vectors and the head; logits of all tokens are never stored."""
        hidden_KD = hidden_BND.flatten(0, 1)
        hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
        weight_K = free_BN.flatten().float()
        with torch.autocast(hidden_KD.device.type, enabled=False):
            total = head_cross_entropy(hidden_KD, readout, x_1.flatten(), weight_K, self.vocab_size)
            return total / weight_K.sum().clamp(min=1)
