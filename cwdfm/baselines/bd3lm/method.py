"""Block diffusion as a method: what its network is, how it is sampled and scored."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from cwdfm.baselines.bd3lm.checks import check_network
from cwdfm.baselines.bd3lm.likelihood import block_elbo
from cwdfm.baselines.bd3lm.sampling import BlockSolver
from cwdfm.errors import check_instance, check_integer
from cwdfm.likelihood.bound import Bound
from cwdfm.method.base import DrawRequest, Method, refuse_solver
from cwdfm.model.transformer import DiTConfig
from cwdfm.schedule import Schedule
from cwdfm.solver import Samples, Solver
from cwdfm.source import MaskSource


@dataclass(frozen=True)
class BlockDiffusion(Method):
    """A network of p_{1|t} of one block given all before it; sequences are whole blocks long."""

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
        """Blocks of one token need no bound."""
        return self.block == 1

    def network(self, config: DiTConfig) -> DiTConfig:
        return replace(
            config, num_tokens=self.num_tokens, attention="block", block=self.block, time="zero"
        )

    def steps(self, asked: int, length: int) -> int:
        """At least one for each block."""
        return max(asked, length // self.block)

    def draw(self, model: nn.Module, solver: object, asked: DrawRequest) -> Samples:
        """Block by block: see `BlockSolver`, which a plain solver of a flow is made into."""
        solver = BlockSolver() if solver is None else solver
        if isinstance(solver, Solver):
            solver = BlockSolver(solver)
        if not isinstance(solver, BlockSolver):
            allowed = "BlockSolver(), or a Solver, which then works inside the blocks"
            refuse_solver(self, solver, allowed, "it does not step the flow inside a block")
        network = check_network(model, self.block)
        return solver.sample(network, self.source, self.schedule, self.block, asked)

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
        """The whole range of noise, whatever training was clipped to. `fixed` as in sampling."""
        return block_elbo(
            check_network(model, self.block),
            self.source,
            self.schedule,
            self.block,
            x_1,
            seed=seed,
            draws=draws,
            fixed=fixed,
            index=index,
            batch_size=batch_size,
        )
