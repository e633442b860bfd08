"""Refining finished sequences: some tokens go back to noise, and are sampled again in context.

A sample is wrong where tokens were drawn that do not fit each other. With a share of all tokens
noised anew, the rest is context for them, and a few steps mend what does not fit:

    x_t ~ p_t(. | x_1),  kappa_t = 1 - share;     x_1' by the solver from x_t, t to 1.

With the true posterior and an exact solver the data's law stays as it is, and any other comes
closer to it: this is a blocked Gibbs sampler. Temperatures below 1 mend more boldly, at the price
of that.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer, check_tokens
from cwdfm.model.protocol import Model
from cwdfm.path import MixturePath, Path
from cwdfm.random import mix, sample_index
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Solver
from cwdfm.solver.sample import Samples, Start, Tick, sample
from cwdfm.source import Source
from cwdfm.times import Spacing


@dataclass(frozen=True)
class Refine:
    """How to refine samples."""

    rounds: int = 2
    share: float = 0.1  # of the tokens that go back to noise in each round
    steps: int = 6  # of the solver in each round
    temperature: float | None = None  # of the draws; None: the solver's own

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds)
        check_integer("steps", self.steps)
        if not 0 < self.share <= 1:
            raise InputError(f"share must lie in (0, 1], got {self.share}; 0.1 is a good one")

    def applied(self, solver: Solver) -> Solver:
        """The solver that refines, made of the one that samples."""
        if self.temperature is None:
            return solver
        if not hasattr(solver, "temperature"):
            raise InputError(f"{solver} has no temperature to refine with; leave it out")
        return replace(solver, temperature=self.temperature)  # type: ignore[type-var]


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
    path: Path | None = None,
    batch_size: int | None = None,
    progress: Tick | None = None,
) -> Samples:
    """Refined versions of `tokens` [B, N], data tokens; those `fixed` [B, N] stay as they are.

    `path` noises them, by default the mixture path; a `ContextPath` leaves islands of context. For
    the rest see `sample`. The counts of what it took are those of all rounds.
    """
    how = how or Refine()
    check_tokens("tokens", tokens, source.vocab_size)
    index_B = sample_index(index, len(tokens), tokens.device)
    fixed_BN = torch.zeros_like(tokens, dtype=torch.bool) if fixed is None else fixed
    path, solver = path or MixturePath(source, schedule), how.applied(solver)
    t = float(schedule.inverse(torch.tensor(1 - how.share, dtype=torch.float64)))
    t_B = torch.full((len(tokens),), t, dtype=torch.float64, device=tokens.device)
    done: Samples | None = None
    for number in range(1, how.rounds + 1):
        now = mix(seed, number)
        x_BN = path.sample(tokens, t_B, seed=now, index=index_B, fixed=fixed_BN).x_t
        found = sample(
            model,
            source,
            schedule,
            solver,
            shape=(len(tokens), tokens.shape[1]),
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


def together(first: Samples, then: Samples) -> Samples:
    """What came of the second, and what both took."""
    return Samples(
        tokens=then.tokens,
        updates=first.updates + then.updates,
        loops=first.loops + then.loops,
        evaluations=first.evaluations + then.evaluations,
        rows=first.rows + then.rows,
    )
