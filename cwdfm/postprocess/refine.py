"""Refinement: noise a fraction of the tokens of finished samples and sample them again.

Samples contain errors where tokens drawn at the same time are incompatible. If a fraction of the
tokens is noised, the remaining ones provide context in which a few solver steps correct the errors:

    x_t ~ p_t(. | x_1),  kappa_t = 1 - noise_fraction;     x_1' by the solver, from x_t at time t.

With the true posterior and an exact solver this is a blocked Gibbs sampler: it leaves the data
distribution invariant and moves any other distribution closer to it. A temperature below 1 corrects
more aggressively, but gives up this invariance.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Unpack

import torch
from torch import Tensor

from cwdfm.errors import check_instance, check_integer
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw
from cwdfm.ops.random import derive_seed
from cwdfm.path import path_for
from cwdfm.postprocess.base import (
    Postprocess,
    SampleOptions,
    check_noise_fraction,
    check_samples,
    combine,
    describe_like,
)
from cwdfm.schedule import Schedule, Spacing
from cwdfm.solver.base import Solver, with_draws
from cwdfm.solver.sample import Samples, Start, sample
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class Refine(Postprocess):
    """Noise a fraction of the tokens and sample them again.

    - `rounds`: number of rounds.
    - `noise_fraction`: fraction of the tokens that is noised in each round.
    - `steps`: number of solver steps in each round.
    - `temperature`: sampling temperature; None for the solver's.
    """

    rounds: int = 2
    noise_fraction: float = 0.1
    steps: int = 6
    temperature: float | None = None

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds)
        check_integer("steps", self.steps)
        check_noise_fraction(self.noise_fraction, 0.1)
        if self.temperature is not None:
            check_draw(self.temperature, 1.0, torch.float64)

    @property
    def progress_steps(self) -> int:
        return self.rounds * self.steps

    def check(self, solver: Solver) -> None:
        self.adjust(solver)

    def apply(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        solver: Solver,
        grid: Spacing,
        tokens: Tensor,
        **options: Unpack[SampleOptions],
    ) -> Samples:
        return refine(model, source, schedule, solver, tokens, self, grid=grid, **options)

    def adjust(self, solver: Solver) -> Solver:
        """Return the solver with the temperature of the refinement."""
        changed: Solver = with_draws(solver, temperature=self.temperature)
        return changed


def refine(
    model: Model,
    source: Source,
    schedule: Schedule,
    solver: Solver,
    tokens: Tensor | Samples,
    config: Refine | None = None,
    *,
    grid: Spacing = "t",
    weight: Weight | None = None,
    **options: Unpack[SampleOptions],
) -> Samples:
    """Refine `tokens` [B, N], except those marked by `fixed` [B, N] or [N].

    `fixed` defaults to the prompt tokens if `tokens` are `Samples`. Completely fixed sequences are
    returned unchanged. See `cwdfm.sample` for the options.

    The tokens are noised along the mixture path or, with a context `weight`, along its
    context-weighted path. Statistics are summed over all rounds; noising counts neither as an
    update nor as a loop.
    """
    config = Refine() if config is None else config
    check_instance("config", config, Refine, "Refine(rounds=2, noise_fraction=0.1)")
    check_instance("solver", solver, Solver, "Euler()")
    original = tokens
    tokens, fixed_BN, index_B = check_samples(model, source, schedule, tokens, options)
    shape = (len(tokens), tokens.shape[1])
    path = path_for(source, schedule, weight)
    flow = (model, source, schedule, config.adjust(solver))
    t = float(schedule.inverse(torch.tensor(1 - config.noise_fraction, dtype=torch.float64)))
    t_B = torch.full((len(tokens),), t, dtype=torch.float64, device=tokens.device)
    rounds: list[Samples] = []
    for number in range(1, config.rounds + 1):
        round_seed = derive_seed(options.get("seed", 0), number)
        x_BN = path.sample(tokens, t_B, seed=round_seed, index=index_B, fixed=fixed_BN).x_t
        round_samples = sample(
            *flow,
            shape=shape,
            steps=config.steps,
            seed=round_seed,
            grid=grid,
            prompt=tokens,
            fixed=fixed_BN,
            index=index_B,
            start=Start(x_BN, t),
            batch_size=options.get("batch_size"),
            progress=options.get("progress"),
            device=tokens.device,
        )
        tokens = round_samples.tokens
        rounds.append(round_samples)
    return describe_like(reduce(combine, rounds), original)
