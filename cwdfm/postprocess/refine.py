"""Refining finished sequences: some tokens go back to noise, and are sampled again in context.

A sample is wrong where tokens were drawn that do not fit each other. With a share of all tokens
noised anew, the rest is context for them, and a few steps mend what does not fit:

    x_t ~ p_t(. | x_1),  kappa_t = 1 - share;     x_1' by the solver from x_t, t to 1.

With the true posterior and an exact solver the data's law stays as it is, and any other comes
closer to it: this is a blocked Gibbs sampler. Temperatures below 1 mend more boldly, at the price
of that.
"""

from dataclasses import dataclass, is_dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw
from cwdfm.ops.random import derive_seed
from cwdfm.path import path_for
from cwdfm.postprocess.base import Rework, Where, check_share, finished, together
from cwdfm.schedule import Schedule, Spacing
from cwdfm.solver.base import Solver
from cwdfm.solver.sample import Samples, Start, Tick, sample
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class Refine(Rework):
    """How to refine samples.

    - `rounds`: how often.
    - `share`: of the tokens that go back to noise in each round.
    - `steps`: of the solver in each round.
    - `temperature`: of the draws; None is the solver's own.
    """

    rounds: int = 2
    share: float = 0.1
    steps: int = 6
    temperature: float | None = None

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds)
        check_integer("steps", self.steps)
        check_share(self.share, "the part of the tokens that is noised in a round", 0.1)
        if self.temperature is not None:
            check_draw(self.temperature, 1.0, torch.float64)

    @property
    def ticks(self) -> int:
        return self.rounds * self.steps

    def check(self, solver: Solver) -> None:
        self.applied(solver)

    def work(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        solver: Solver,
        grid: Spacing,
        tokens: Tensor,
        **where: Unpack[Where],
    ) -> Samples:
        return refine(model, source, schedule, solver, tokens, self, grid=grid, **where)

    def applied(self, solver: Solver) -> Solver:
        """The solver that refines, made of the one that samples."""
        if self.temperature is None:
            return solver
        if not is_dataclass(solver) or not hasattr(solver, "temperature"):
            raise InputError(f"{solver} has no temperature to refine with; leave it out")
        return replace(solver, temperature=self.temperature)


def refine(
    model: Model,
    source: Source,
    schedule: Schedule,
    solver: Solver,
    tokens: Tensor,
    how: Refine | None = None,
    *,
    seed: int = 0,
    grid: Spacing = "t",
    fixed: Tensor | None = None,
    index: Tensor | None = None,
    weight: Weight | None = None,
    batch_size: int | None = None,
    progress: Tick | None = None,
) -> Samples:
    """Refined versions of `tokens` [B, N], data tokens; those `fixed` [B, N] or [N] stay.

    They are noised along the mixture path, or with a context `weight` along its path, which leaves
    what has context together. What is all fixed comes back as it is, and costs nothing, as with
    `mend`. For the rest see `sample`. What it took is counted over all rounds; noising is no
    update, and brings no loop.
    """
    how = Refine() if how is None else how
    check_instance("how", how, Refine, "Refine(rounds=2, share=0.1)")
    check_instance("solver", solver, Solver, "Euler()")
    tokens, fixed_BN, index_B = finished(model, source, schedule, tokens, fixed, index, seed)
    shape = (len(tokens), tokens.shape[1])
    path = path_for(source, schedule, weight)
    solver = how.applied(solver)
    t = float(schedule.inverse(torch.tensor(1 - how.share, dtype=torch.float64)))
    t_B = torch.full((len(tokens),), t, dtype=torch.float64, device=tokens.device)
    done: Samples | None = None
    for number in range(1, how.rounds + 1):
        now = derive_seed(seed, number)
        x_BN = path.sample(tokens, t_B, seed=now, index=index_B, fixed=fixed_BN).x_t
        found = sample(
            model,
            source,
            schedule,
            solver,
            shape=shape,
            steps=how.steps,
            seed=now,
            grid=grid,
            prompt=tokens,
            fixed=fixed_BN,
            index=index_B,
            start=Start(x_BN, t),
            batch_size=batch_size,
            progress=progress,
            device=tokens.device,
        )
        done = found if done is None else together(done, found)
        tokens = done.tokens
    assert done is not None
    return done
