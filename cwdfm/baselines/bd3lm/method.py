"""Block diffusion as a method: its network, sampling and likelihood."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from cwdfm.baselines.bd3lm.network import ParallelBlocks, check_fixed, check_length, check_network
from cwdfm.baselines.bd3lm.solver import BlockSolver
from cwdfm.errors import check_instance, check_integer
from cwdfm.likelihood.bound import (
    Bound,
    BoundTerms,
    check_inputs,
    estimate_bound,
    exact_likelihood,
    sequence_nats,
)
from cwdfm.likelihood.elbo import flow_terms
from cwdfm.method.base import Method, SampleRequest, refuse_solver
from cwdfm.model.transformer import DiTConfig
from cwdfm.path import MixturePath
from cwdfm.schedule import Schedule
from cwdfm.solver import Samples, Solver
from cwdfm.source import MaskSource


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

    def sample(self, model: nn.Module, solver: object, request: SampleRequest) -> Samples:
        """Sample block by block. A plain `Solver` of flows is used inside the blocks."""
        solver = BlockSolver() if solver is None else solver
        if isinstance(solver, Solver):
            solver = BlockSolver(solver)
        if not isinstance(solver, BlockSolver):
            allowed = "BlockSolver(), or a Solver to use inside the blocks"
            refuse_solver(self, solver, allowed, "it does not step the flow inside a block")
        network = check_network(model, self.block)
        return solver.sample(network, self.source, self.schedule, self.block, request)

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
        """-log p(x_1) = -sum_k log p(x_k | x_<k) <= the sum of the blocks' bounds.

        The bound of a block is an expectation over its own time and noise. Expectations add under
        any joint distribution of the blocks' times, so all blocks of a sequence share one time, and
        the estimate is `cwdfm.elbo` of a network that sees the clean blocks before each block.
        A block of one token needs no bound. The bound covers all noise levels, whatever range
        training was clipped to. `fixed` is restricted as in sampling.
        """
        network = check_network(model, self.block)
        x_1, fixed, _ = check_inputs(model, x_1, fixed, self.source.vocab_size, batch_size)
        check_length(x_1.shape[1], self.block)
        check_fixed(fixed, self.block)
        path = MixturePath(self.source, self.schedule)

        def nats(x_1: Tensor, fixed: Tensor) -> Tensor:
            masked = x_1.new_full(x_1.shape, self.source.mask_id)
            return sequence_nats(ParallelBlocks(network, x_1), self.source, masked, x_1, ~fixed)

        def terms(x_1: Tensor, fixed: Tensor, index_B: Tensor) -> BoundTerms:
            blocks = ParallelBlocks(network, x_1)
            return flow_terms(blocks, path, x_1, fixed, index_B, seed=seed, draws=draws)

        if self.block == 1:
            return exact_likelihood(
                model,
                x_1,
                nats,
                vocab_size=self.source.vocab_size,
                fixed=fixed,
                batch_size=batch_size,
            )
        return estimate_bound(
            model,
            x_1,
            terms,
            vocab_size=self.source.vocab_size,
            draws=draws,
            fixed=fixed,
            index=index,
            batch_size=batch_size,
        )
