"""Block diffusion as a method: its network, sampling and likelihood."""

from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from cwdfm.baselines.bd3lm.solver import BlockSolver, check_fixed, check_length
from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.likelihood.bound import (
    Bound,
    BoundBatch,
    BoundTerms,
    LikelihoodOptions,
    estimate_bound,
    exact_terms,
)
from cwdfm.likelihood.elbo import flow_terms
from cwdfm.method.base import Method, SampleRequest, unsupported_solver
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.path import MixturePath
from cwdfm.schedule import Schedule
from cwdfm.solver import Samples, Solver
from cwdfm.source import MaskSource
from cwdfm.weight import Neighbor, NeighborShare


@dataclass(frozen=True)
class BlockDiffusion(Method):
    """A network of p_{1|t} of a block given all blocks before it.

    The length of a sequence must be a multiple of `block`.
    """

    default_solver = "ancestral"

    source: MaskSource
    schedule: Schedule
    block: int

    def __post_init__(self) -> None:
        check_instance("source", self.source, MaskSource, "MaskSource(vocab_size=30)")
        check_instance("schedule", self.schedule, Schedule, "Linear()")
        check_integer("block", self.block)

    @property
    def num_tokens(self) -> int:
        return self.source.num_tokens

    @property
    def exact(self) -> bool:
        """With blocks of one token the likelihood is exact."""
        return self.block == 1

    @property
    def causal_block(self) -> int:
        return self.block

    def network(self, config: DiTConfig) -> DiTConfig:
        return replace(
            config, num_tokens=self.num_tokens, attention="block", block=self.block, time="zero"
        )

    def steps(self, requested: int, length: int) -> int:
        """At least one step per block."""
        return max(requested, length // self.block)

    def adapt(self, solver: Any, stop: int | None = None) -> Any:
        """Cut context windows at the ends of a block, and step block by block."""
        weight = getattr(solver, "weight", None)
        if isinstance(weight, Neighbor | NeighborShare):
            solver = replace(solver, weight=replace(weight, boundary="cut"))
        return BlockSolver(solver, stop) if isinstance(solver, Solver) else solver

    def sample(self, model: nn.Module, solver: object, request: SampleRequest) -> Samples:
        """Sample block by block. A plain `Solver` of flows is used inside the blocks."""
        solver = BlockSolver() if solver is None else solver
        if isinstance(solver, Solver):
            solver = BlockSolver(solver)
        if not isinstance(solver, BlockSolver):
            allowed = "BlockSolver(), or a Solver to use inside the blocks"
            unsupported_solver(self, solver, allowed, "it does not step the flow inside a block")
        network = check_network(model, self.block)
        return solver.sample(network, self.source, self.schedule, self.block, request)

    def likelihood(
        self, model: nn.Module, x_1: Tensor, **options: Unpack[LikelihoodOptions]
    ) -> Bound:
        """-log p(x_1) = -sum_k log p(x_k | x_<k) <= the sum of the blocks' bounds.

        The bound of a block is an expectation over its own time and noise. Expectations add under
        any joint distribution of the blocks' times, so all blocks of a sequence share one time, and
        the estimate is `cwdfm.elbo` of a network that sees the clean blocks before each block.
        For blocks of one token the likelihood is exact. Otherwise the bound covers all noise
        levels, even if training was clipped to a smaller range. `fixed` is restricted as in
        sampling.
        """
        network = check_network(model, self.block)
        path = MixturePath(self.source, self.schedule)

        def check(fixed_BN: Tensor) -> None:
            check_length(fixed_BN.shape[1], self.block)
            check_fixed(fixed_BN, self.block)

        def terms(batch: BoundBatch) -> BoundTerms:
            blocks = ParallelBlocks(network, batch.x_1)
            if self.block > 1:
                return flow_terms(blocks, path, batch)
            masked_BN = torch.full_like(batch.x_1, self.source.mask_id)
            return exact_terms(blocks, self.source, masked_BN, batch)

        data = (model, x_1, terms, self.source.vocab_size)
        return estimate_bound(*data, exact=self.exact, check_fixed=check, **options)


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
    if (config.attention, config.block) != ("block", block) or config.time not in ("zero", "none"):
        raise InputError(
            f"block diffusion with blocks of {block} tokens needs a network with "
            f"attention='block', block={block} and time='zero' or 'none', got "
            f"attention={config.attention!r}, block={config.block}, time={config.time!r}; build it "
            f"with DiT(method.network(config))"
        )
    return model
