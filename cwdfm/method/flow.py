"""Discrete flow matching, which includes MDLM as a special case.

MDLM (Sahoo et al. 2024) is a flow with a mask source, the linear schedule, the NELBO on masked
tokens (hazard 1 / (1 - t)), and a network that is not conditioned on time. Its ancestral sampler
unmasks with probability (m_t - m_s) / m_t = 1 - exp(-integrated hazard): `Euler("integrated")`.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.guidance.base import guide
from cwdfm.likelihood.bound import Bound, LikelihoodOptions
from cwdfm.likelihood.elbo import elbo
from cwdfm.loss import NELBO, Bregman, Loss
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.method.base import (
    DataBatch,
    Method,
    Objective,
    SampleRequest,
    TrainingBatch,
    unsupported_solver,
)
from cwdfm.model.conditions import with_condition
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model
from cwdfm.model.wrappers import BannedTokens
from cwdfm.path import Path
from cwdfm.postprocess.base import combine
from cwdfm.postprocess.reject import Reject, rejection_sample, score_sequences
from cwdfm.schedule import Schedule, check_schedule
from cwdfm.solver import Euler, Samples, Solver, sample
from cwdfm.source import Source, check_source
from cwdfm.weight import Weight


@dataclass(frozen=True)
class Flow(Method):
    """A network for p_{1|t}, with the source and schedule that it was trained with."""

    default_solver = "euler"

    source: Source
    schedule: Schedule

    def __post_init__(self) -> None:
        check_source(self.source)
        check_schedule(self.schedule)

    @property
    def num_tokens(self) -> int:
        return self.source.num_tokens

    def sample(self, model: Model, solver: object, request: SampleRequest) -> Samples:
        solver = Euler() if solver is None else solver
        if not isinstance(solver, Solver):
            reason = "it does not step a flow, whose network predicts data tokens"
            unsupported_solver(self, solver, "Euler() or another Solver", reason)
        for stage in request.postprocess:
            stage.check(solver)
        if request.guidance:
            guided, calls = guide(model, request.guidance, self.source, self.schedule)
            samples = self.sample(guided, solver, replace(request, guidance=()))
            return replace(
                samples,
                evaluations=samples.evaluations * calls,
                logit_evaluations=samples.logit_evaluations * calls,
            )
        if request.reject is not None:
            return self._rejection_sample(model, solver, request, request.reject)
        model = BannedTokens(model, request.banned_tokens) if request.banned_tokens else model
        flow = (model, self.source, self.schedule, solver)
        samples = sample(*flow, **request.loop_options)
        grid = request.grid if isinstance(request.grid, str) else "t"
        for stage in request.postprocess:
            options = {**_options(request, samples), "progress": request.progress}
            improved = stage.apply(*flow, grid, samples.tokens, **options)
            samples = combine(samples, improved)
        return samples

    def _rejection_sample(
        self, model: Model, solver: Solver, request: SampleRequest, reject: Reject
    ) -> Samples:
        """Sample with rejection (see `postprocess/reject.py`)."""
        network = BannedTokens(model, request.banned_tokens) if request.banned_tokens else model
        once = replace(request, reject=None)

        def attempt(index_A: Tensor | None, seed: int) -> Samples:
            subset = once if index_A is None else once.subset(index_A, seed)
            samples = self.sample(model, solver, subset)
            flow, options = (network, self.source, self.schedule), _options(subset, samples)
            plausibility_B, evaluations_B, logit_evaluations = score_sequences(
                *flow, samples.tokens, reject.noise_fraction, **options
            )
            return replace(
                samples,
                evaluations=samples.evaluations + evaluations_B,
                logit_evaluations=samples.logit_evaluations + logit_evaluations,
                plausibility=plausibility_B,
            )

        def skip(tries: int) -> None:
            if request.progress is not None:
                request.progress(tries * request.progress_steps)

        return rejection_sample(attempt, reject, request.seed, skip)

    def likelihood(
        self,
        model: nn.Module,
        x_1: Tensor,
        *,
        weight: Weight | None = None,
        **options: Unpack[LikelihoodOptions],
    ) -> Bound:
        return elbo(model, self.source, self.schedule, x_1, weight=weight, **options)


def _options(request: SampleRequest, samples: Samples) -> dict[str, Any]:
    """The options of postprocessing, which keeps the prompt tokens."""
    options = {name: getattr(request, name) for name in ("seed", "index", "batch_size")}
    return {**options, "fixed": samples.fixed}


def flow_of(method: Method) -> Flow:
    """Return the method if it is a discrete flow; raise InputError otherwise."""
    if not isinstance(method, Flow):
        raise InputError(
            f"this requires a discrete flow, but the model was trained as {type(method).__name__}; "
            f"use a model trained with method flow or mdlm"
        )
    return method


@dataclass(frozen=True)
class FlowObjective(Objective):
    """A path that corrupts data, and a loss on the network's prediction."""

    path: Path
    loss: Loss

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        noised = self.path.sample(batch.x_1, batch.t, **batch.noise)
        # Logits that the loss does not need are not computed, and none are stored.
        rows = Positions.of(self.loss.needed(noised))
        read = partial(self.loss.from_head, batch=noised, schedule=self.path.schedule, rows=rows)
        return TrainingBatch(noised.x_t, with_condition(noised.t, batch.condition), read)

    @property
    def worst_weight(self) -> float:
        if not isinstance(self.loss, NELBO | Bregman):
            return 1.0
        return float(self.path.schedule.hazard(1 - TIME_EPSILON))
