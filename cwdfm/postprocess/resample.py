"""Resampling: redraw low-confidence tokens of finished samples, a few per round.

Token scores p^i (see `token_scores.py`) are low for tokens that are incompatible with the others.
Each round redraws some tokens of every sequence that has scores below a threshold:

    r^i = 1 - p^i if p^i < threshold, else 0;
    i ~ r / sum r;     x^i ~ p_{1|t}, the prediction at i, with temperature and top_p.

A sequence without scores below the threshold is finished. Related methods also choose positions by
confidence, but during sampling: informed correctors (Zhao et al. 2024) and path planning (Peng et
al. 2025). Resampling improves samples but does not preserve the data distribution: it makes
everything that the model finds unlikely rarer, including correct but rare data.
"""

from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.model.predict import check_flow_network, check_split, evaluating
from cwdfm.model.protocol import Model
from cwdfm.ops.random import Purpose
from cwdfm.postprocess.base import (
    Postprocess,
    SampleOptions,
    check_noise_fraction,
    check_samples,
    describe_like,
)
from cwdfm.postprocess.token_scores import TokenScorer
from cwdfm.schedule import Schedule, Spacing
from cwdfm.solver.base import DrawOptions, Solver
from cwdfm.solver.precomputed import batch_unit
from cwdfm.solver.sample import Samples, batches
from cwdfm.source import Source

# Default (noise_fraction, threshold), by `source.marks_noise`.
DEFAULTS = {False: (0.5, 0.8), True: (0.125, 0.05)}


@dataclass(frozen=True)
class Resample(Postprocess):
    """Redraw low-confidence tokens.

    - `rounds`: maximum number of rounds.
    - `noise_fraction`: fraction of noise that the model is conditioned on (see `token_scores.py`).
      The default is 0.5 with a uniform source, 0.125 with a mask source.
    - `threshold`: tokens with a lower probability are redrawn. The default is 0.8 with a uniform
      source, 0.05 with a mask source.
    - `temperature`, `top_p`: options of the draws. The default is the solver's, or 1 in `resample`.
    - `tokens_per_round`: maximum number of tokens per sequence and round.
    """

    rounds: int = 40
    noise_fraction: float | None = None
    threshold: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    tokens_per_round: int = 1

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds)
        check_integer("tokens_per_round", self.tokens_per_round)
        if self.noise_fraction is not None:
            check_noise_fraction(self.noise_fraction, 0.5)
        if self.threshold is not None and not (
            isinstance(self.threshold, int | float) and 0 < self.threshold <= 1
        ):
            raise InputError(
                f"threshold must be a probability in (0, 1], got {self.threshold!r}; try 0.8 with "
                f"a uniform source, 0.05 with a mask source",
                fields=("threshold",),
            )
        _ = self.draw  # checks temperature and top_p

    @property
    def draw(self) -> DrawOptions:
        """The options of the draws."""
        top_p = 1.0 if self.top_p is None else self.top_p
        temperature = 1.0 if self.temperature is None else self.temperature
        return DrawOptions(temperature=temperature, top_p=top_p)

    @property
    def progress_steps(self) -> int:
        return self.rounds

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
        defaults: dict[str, Any] = {
            name: getattr(solver, name, None)
            for name in ("temperature", "top_p")
            if getattr(self, name) is None
        }
        return resample(model, source, schedule, tokens, replace(self, **defaults), **options)


@torch.no_grad()
def resample(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor | Samples,
    config: Resample | None = None,
    **options: Unpack[SampleOptions],
) -> Samples:
    """Resample low-confidence tokens of `tokens` [B, N], except those marked by `fixed`.

    `fixed` defaults to the prompt tokens if `tokens` are `Samples`. The seed determines the result
    of sequence i regardless of the other sequences. Completely fixed sequences are returned
    unchanged. See `cwdfm.sample` for the options.
    """
    config = Resample() if config is None else config
    check_instance("config", config, Resample, "Resample(rounds=40, threshold=0.8)")
    check_flow_network(model)
    original = tokens
    tokens, fixed_BN, index_B = check_samples(model, source, schedule, tokens, options)
    noise_fraction, threshold = DEFAULTS[source.marks_noise]
    threshold, progress = config.threshold or threshold, options.get("progress")
    network = (model, source, schedule, tokens.shape[1])
    noise_fraction = config.noise_fraction or noise_fraction
    scorer = TokenScorer(*network, noise_fraction, options.get("seed", 0), config.draw)
    parts = []
    batch_indices = batches(len(tokens), options.get("batch_size"), tokens.device)
    with evaluating(model):
        check_split(model, tokens[:1], scorer.t)
        for batch in batch_indices:
            state = _Batch(tokens[batch], fixed_BN[batch], index_B[batch])
            for number in range(config.rounds):
                if len(state.active):
                    state.run_round(scorer, number, threshold, config.tokens_per_round)
                if progress is not None:
                    progress(len(batch))
            parts.append(state.samples())
    return describe_like(Samples.cat(parts), original)


class _Batch:
    """The state of a batch during resampling. A is the number of active sequences."""

    def __init__(self, tokens_BN: Tensor, fixed_BN: Tensor, index_B: Tensor) -> None:
        self.tokens, self.free, self.index = tokens_BN, ~fixed_BN, index_B
        self.active = torch.arange(len(tokens_BN), device=tokens_BN.device)  # [A] unfinished
        self.previous = torch.full_like(tokens_BN, -1)  # tokens before their last change
        self.updates = torch.zeros_like(tokens_BN, dtype=torch.int32)
        self.loops = torch.zeros_like(self.updates)
        self.evaluations = torch.zeros_like(index_B)
        self.logit_evaluations = 0
        self.unit = batch_unit(len(tokens_BN), tokens_BN.device)

    def samples(self) -> Samples:
        """The current tokens with their statistics."""
        return Samples(
            self.tokens, self.updates, self.loops, self.evaluations, self.logit_evaluations
        )

    def run_round(
        self, scorer: TokenScorer, number: int, threshold: float, tokens_per_round: int
    ) -> None:
        """Redraw some tokens of every active sequence, and deactivate finished sequences."""
        x_AN, index_A = self.tokens[self.active], self.index[self.active]
        scores = scorer.score(x_AN, self.free[self.active], index_A, number, unit=self.unit)
        low_AN = scores.probability < threshold
        # Exponential race with rates 1 - p: position i is first with probability r^i / sum r.
        u_AN = scorer.uniform(Purpose.ORDER, x_AN, index_A, number)
        clock_AN = torch.where(low_AN, -torch.log1p(-u_AN) / (1 - scores.probability), torch.inf)
        count = min(tokens_per_round, x_AN.shape[1])
        first_AK, position_AK = clock_AN.topk(count, largest=False)
        chosen_AN = torch.zeros_like(low_AN).scatter(1, position_AK, first_AK.isfinite())
        new_AN = torch.where(chosen_AN, scores.proposal, x_AN)
        changed_AN, previous_AN = new_AN != x_AN, self.previous[self.active]
        self.loops[self.active] += (changed_AN & (new_AN == previous_AN)).int()
        self.previous[self.active] = torch.where(changed_AN, x_AN, previous_AN)
        self.updates[self.active] += changed_AN.int()
        self.evaluations[self.active] += scores.evaluations
        self.logit_evaluations += scores.logit_evaluations
        self.tokens = self.tokens.index_copy(0, self.active, new_AN)
        self.active = self.active[low_AN.any(1)]
