"""Discrete flow matching; and MDLM, which is a flow too.

MDLM (Sahoo et al. 2024) in the language of flows: a mask source, the linear schedule, the NELBO on
masked tokens (hazard 1 / (1 - t)), and a network that is not told the time. Its ancestral sampler
unmasks with probability (m_t - m_s) / m_t = 1 - exp(-integrated hazard): `Euler("integrated")`.
"""

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from cwdfm.errors import check_instance
from cwdfm.likelihood.bound import Bound
from cwdfm.likelihood.elbo import elbo
from cwdfm.loss import NELBO, Bregman, Loss
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.method.base import (
    DataBatch,
    DrawRequest,
    Method,
    Objective,
    TrainingBatch,
    refuse_solver,
)
from cwdfm.model.positions import Positions
from cwdfm.model.wrappers import BannedTokens
from cwdfm.path import Path
from cwdfm.postprocess.base import together
from cwdfm.postprocess.reject import insist, read_whole
from cwdfm.schedule import Schedule
from cwdfm.solver import Euler, Samples, Solver, sample
from cwdfm.solver.base import given
from cwdfm.source import Source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class Flow(Method):
    """A network of p_{1|t}, with the source and the schedule it was trained for."""

    source: Source
    schedule: Schedule

    def __post_init__(self) -> None:
        check_instance("source", self.source, Source, "MaskSource(vocab_size=30)")
        check_instance("schedule", self.schedule, Schedule, "Polynomial(2.0)")

    @property
    def num_tokens(self) -> int:
        return self.source.num_tokens

    def draw(self, model: nn.Module, solver: object, asked: DrawRequest) -> Samples:
        solver = Euler() if solver is None else solver
        if not isinstance(solver, Solver):
            reason = "it does not step a flow, whose network gives probabilities of data tokens"
            refuse_solver(self, solver, "Euler() or another Solver (--solver euler)", reason)
        model = BannedTokens(model, asked.without) if asked.without else model
        for rework in asked.after:
            rework.check(solver)
        how, tick = asked.accept, asked.tick
        if how is None:
            return self._drawn(model, solver, asked)[0]

        def attempt(place_A: Tensor | None, seed: int) -> Samples:
            some = asked if place_A is None else asked.some(place_A, seed)
            return self._judged(model, solver, some, how.share)

        def spared(tries: int) -> None:
            if tick is not None:
                tick(tries * (asked.steps + sum(rework.ticks for rework in asked.after)))

        return insist(attempt, how, asked.seed, spared)

    def _judged(
        self, model: nn.Module, solver: Solver, asked: DrawRequest, share: float | None
    ) -> Samples:
        """Sequences, each drawn once, and their plausibility with a `share` of them noise."""
        found, fixed_BN = self._drawn(model, solver, asked)
        plausibility_B, evaluations_B, rows = read_whole(
            model,
            self.source,
            self.schedule,
            found.tokens,
            share=share,
            seed=asked.seed,
            fixed=fixed_BN,
            index=asked.index,
            batch_size=asked.batch_size,
        )
        return replace(
            found,
            evaluations=found.evaluations + evaluations_B,
            rows=found.rows + rows,
            plausibility=plausibility_B,
        )

    def _drawn(
        self, model: nn.Module, solver: Solver, asked: DrawRequest
    ) -> tuple[Samples, Tensor | None]:
        """Sequences [B, N], each drawn once, and which tokens were given [B, N]."""
        found = sample(
            model,
            self.source,
            self.schedule,
            solver,
            shape=asked.shape,
            steps=asked.steps,
            seed=asked.seed,
            grid=asked.grid,
            prompt=asked.prompt,
            fixed=asked.fixed,
            index=asked.index,
            batch_size=asked.batch_size,
            progress=asked.tick,
        )
        fixed_BN = None
        if asked.prompt is not None:
            place = (asked.prompt, asked.fixed, found.tokens.device)
            fixed_BN = given(self.source, asked.shape, *place)[1]
        for rework in asked.after:
            better = rework.work(
                model,
                self.source,
                self.schedule,
                solver,
                asked.grid if isinstance(asked.grid, str) else "t",
                found.tokens,
                seed=asked.seed,
                fixed=fixed_BN,
                index=asked.index,
                batch_size=asked.batch_size,
                progress=asked.tick,
            )
            found = together(found, better)
        return found, fixed_BN

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
        weight: Weight | None = None,
    ) -> Bound:
        return elbo(
            model,
            self.source,
            self.schedule,
            x_1,
            seed=seed,
            draws=draws,
            weight=weight,
            fixed=fixed,
            index=index,
            batch_size=batch_size,
        )


@dataclass(frozen=True)
class FlowObjective(Objective):
    """A path that corrupts, and a loss of what the network makes of it."""

    path: Path
    loss: Loss

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        noised = self.path.sample(
            batch.x_1,
            batch.t,
            seed=batch.seed,
            step=batch.step,
            index=batch.index,
            fixed=batch.fixed,
        )
        # Logits that the loss does not need are not computed, and none are stored.
        rows = Positions.of(self.loss.needed(noised))
        read = partial(self.loss.from_head, batch=noised, schedule=self.path.schedule, rows=rows)
        return TrainingBatch(noised.x_t, noised.t, read)

    @property
    def worst_weight(self) -> float:
        if not isinstance(self.loss, NELBO | Bregman):
            return 1.0
        return float(self.path.schedule.hazard(1 - TIME_EPSILON))
